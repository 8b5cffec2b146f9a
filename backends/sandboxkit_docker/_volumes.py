"""Docker's named volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import docker.errors

from sandboxkit.backend_parts import VolumeStatus

__all__ = ["DockerVolumes"]

_IN_USE = 409


class DockerVolumes:
    """See `sandboxkit.backend_parts.Volumes`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._call = call

    def ensure(self, name: str, labels: Mapping[str, str]) -> None:
        # Docker answers with the volume of that name when there is one.
        with self._call("create the volume", name) as client:
            client.create_volume(name, labels=dict(labels))

    def inspect(self, name: str) -> VolumeStatus | None:
        with self._call("look for the volume", name) as client:
            try:
                return _status(client.inspect_volume(name))
            except docker.errors.NotFound:
                return None

    def list(self, labels: Mapping[str, str]) -> Sequence[VolumeStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        with self._call("list volumes") as client:
            return [_status(row) for row in client.volumes(filters={"label": wanted}).get("Volumes") or ()]

    def remove(self, name: str) -> bool:
        with self._call("remove the volume", name) as client:
            try:
                client.remove_volume(name)
            except docker.errors.NotFound:
                return True
            except docker.errors.APIError as error:
                if error.status_code == _IN_USE:
                    return False
                raise
        return True


def _status(found: Any) -> VolumeStatus:
    return VolumeStatus(name=str(found["Name"]), labels=dict(found.get("Labels") or {}))
