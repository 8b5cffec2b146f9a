"""The files in Docker's containers: the archive calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

from sandboxkit.engines.archives import STAT_HEADER, FileFacts, first_file, first_owner, folder_archive, parse_stat
from sandboxkit.engines.clients import Calls

__all__ = ["DockerFiles"]

_SMALL = 1024 * 1024


class DockerFiles:
    """An EngineFiles (see `sandboxkit.engines.api`, whose docstrings hold here)."""

    volumes_follow_user = False

    def __init__(self, call: Calls[Any], timeout: float) -> None:
        self._call = call
        self._timeout = timeout

    def stat(self, container: str, path: str) -> FileFacts | None:
        with self._call("look for a file in", container) as client:
            response = client.head(_url(client, container), params={"path": path}, timeout=self._timeout)
            if response.status_code == 404:
                return None
            client._raise_for_status(response)
            return parse_stat(response.headers[STAT_HEADER])

    def owner(self, container: str, folder: str) -> int | None:
        with self._archive(container, folder) as archive:
            return None if archive is None else first_owner(archive)

    def read(self, container: str, path: str) -> bytes | None:
        with self._archive(container, path) as archive:
            return None if archive is None else first_file(archive, _SMALL)

    def put(self, container: str, folder: str, archive: bytes) -> None:
        with self._call("put files into", container) as client:
            client.put_archive(container, folder, archive)

    def give(self, container: str, folder: str, uid: int | None) -> None:
        self.put(container, folder, folder_archive(uid))

    @contextlib.contextmanager
    def _archive(self, container: str, path: str) -> Iterator[IO[bytes] | None]:
        """A path as a tar stream; None when there is nothing."""
        with self._call("read from", container) as client:
            # The SDK's get_archive takes what Docker compresses for the way, and would read it all.
            headers = {"Accept-Encoding": "identity"}
            response = client._get(_url(client, container), params={"path": path}, headers=headers, stream=True)
            with contextlib.closing(response):
                if response.status_code == 404:
                    yield None
                else:
                    client._raise_for_status(response)
                    yield response.raw


def _url(client: Any, container: str) -> Any:
    return client._url("/containers/{0}/archive", container)
