"""The files in Podman's containers: the archive calls of the libpod API."""

from __future__ import annotations

import contextlib
from typing import Any

from sandboxkit.engines.api import UNKNOWN_OWNER
from sandboxkit.engines.archives import STAT_HEADER, FileFacts, first_file, folder_archive, parse_stat
from sandboxkit.engines.clients import Calls

__all__ = ["PodmanFiles"]

_SMALL = 1024 * 1024
_TAR = {"Content-Type": "application/x-tar"}


class PodmanFiles:
    """An EngineFiles (see `sandboxkit.engines.api`, whose docstrings hold here)."""

    volumes_follow_user = True

    def __init__(self, call: Calls[Any]) -> None:
        self._call = call

    def stat(self, container: str, path: str) -> FileFacts | None:
        with self._call("look for a file in", container) as client:
            response = client.head(_path(container), params={"path": path})
            if response.status_code == 404:
                return None
            response.raise_for_status()
            return parse_stat(response.headers[STAT_HEADER])

    def owner(self, container: str, folder: str) -> int | None:
        # Podman's archives name the container's user as the owner of everything: only presence can be found out.
        return None if self.stat(container, folder) is None else UNKNOWN_OWNER

    def read(self, container: str, path: str) -> bytes | None:
        with self._call("read from", container) as client:
            response = client.get(
                _path(container), params={"path": path}, headers={"Accept-Encoding": "identity"}, stream=True
            )
            with contextlib.closing(response):
                if response.status_code == 404:
                    return None
                response.raise_for_status()
                return first_file(response.raw, _SMALL)

    def put(self, container: str, folder: str, archive: bytes) -> None:
        with self._call("put files into", container) as client:
            client.put(_path(container), params={"path": folder}, data=archive, headers=_TAR).raise_for_status()

    def give(self, container: str, folder: str, uid: int | None) -> None:
        # Podman fills and chowns a new volume when it makes the container ready: done before, this would be undone.
        with self._call("make ready", container) as client:
            client.post(f"containers/{container}/init").raise_for_status()
        self.put(container, folder, folder_archive(uid))


def _path(container: str) -> str:
    return f"containers/{container}/archive"
