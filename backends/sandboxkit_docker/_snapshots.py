"""Images made of Docker's containers."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import docker.errors
import docker.utils

from sandboxkit.backend_parts import ImageStatus
from sandboxkit.engines.backend import helper_labels
from sandboxkit.engines.snapshots import CHUNK, clearing_archive, config_changes

__all__ = ["DockerSnapshots"]


class DockerSnapshots:
    """See `sandboxkit.backend_parts.Snapshots`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._call = call

    def commit(self, container_id: str, tag: str, labels: Mapping[str, str], folder: str | None) -> ImageStatus:
        with self._call("make an image of", container_id) as client:
            found = client.inspect_container(container_id)
            original = client.inspect_image(found["Image"])["Config"] or {}
        changes = config_changes(found["Config"], original, labels)
        if folder is None:
            self._commit(container_id, tag, changes)
        else:
            # A volume is no part of a container's files: they are put where it was into a second container of the
            # image.
            base = self._commit(container_id, None, changes)
            try:
                with self._helper(base) as helper:
                    self._copy(container_id, helper, folder)
                    self._commit(helper, tag, changes)
            finally:
                # Refused while the final image stands on it; it goes with that.
                with self._call("remove an image") as client, contextlib.suppress(docker.errors.APIError):
                    client.remove_image(base)
        with self._call("look for the image", tag) as client:
            return _status(client.inspect_image(tag), tag)

    def list(self, labels: Mapping[str, str]) -> Sequence[ImageStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        with self._call("list images") as client:
            rows = client.images(filters={"label": wanted})
        return [_status(row, tag) for row in rows for tag in row.get("RepoTags") or () if tag != "<none>:<none>"]

    def remove(self, tag: str) -> bool:
        with self._call("remove the image", tag) as client:
            try:
                client.remove_image(tag)
            except docker.errors.NotFound:
                return False
        return True

    def _commit(self, container: str, tag: str | None, changes: Sequence[str]) -> str:
        repository, version = docker.utils.parse_repository_tag(tag) if tag else (None, None)
        with self._call("make an image of", container) as client:
            found = client.commit(
                container, repository=repository, tag=version or ("latest" if tag else None), changes=list(changes)
            )
            return str(found["Id"])

    @contextlib.contextmanager
    def _helper(self, image: str) -> Iterator[str]:
        name = f"sandboxkit-helper-{secrets.token_hex(8)}"
        body = {
            "Image": image,
            "Entrypoint": ["/"],
            "Labels": helper_labels(),
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        }
        try:
            with self._call("create", name) as client:
                client.create_container_from_config(body, name)
            yield name
        finally:
            with self._call("remove", name) as client, contextlib.suppress(docker.errors.NotFound):
                client.remove_container(name, v=True, force=True)

    def _copy(self, source: str, target: str, folder: str) -> None:
        with self._call("read from", source) as reader, self._call("put files into", target) as writer:
            response = reader._get(
                reader._url("/containers/{0}/archive", source),
                params={"path": folder},
                headers={"Accept-Encoding": "identity"},
                stream=True,
            )
            with contextlib.closing(response):
                reader._raise_for_status(response)
                writer.put_archive(target, "/", clearing_archive(folder))
                writer.put_archive(target, "/", response.iter_content(CHUNK))


def _status(found: Any, tag: str) -> ImageStatus:
    labels = (found.get("Config") or {}).get("Labels") or found.get("Labels") or {}
    return ImageStatus(id=str(found["Id"]), tag=tag, size=int(found.get("Size") or 0), labels=dict(labels))
