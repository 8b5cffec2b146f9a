"""Podman's named volumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sandboxkit.backend_parts import VolumeStatus

__all__ = ["PodmanVolumes"]

_IN_USE = 409
_JSON = {"Content-Type": "application/json"}


class PodmanVolumes:
    """See `sandboxkit.backend_parts.Volumes`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._call = call

    def ensure(self, name: str, labels: Mapping[str, str]) -> None:
        if self.inspect(name) is not None:
            return
        with self._call("create the volume", name) as client:
            response = client.post(
                "volumes/create", data=json.dumps({"Name": name, "Labels": dict(labels)}), headers=_JSON
            )
            # Another process may have made it meanwhile: a 500 then.
            if response.status_code >= 400 and client.get(f"volumes/{name}/exists").status_code != 204:
                response.raise_for_status()

    def inspect(self, name: str) -> VolumeStatus | None:
        with self._call("look for the volume", name) as client:
            response = client.get(f"volumes/{name}/json")
            if response.status_code == 404:
                return None
            response.raise_for_status()
            return _status(response.json())

    def list(self, labels: Mapping[str, str]) -> Sequence[VolumeStatus]:
        # One label in the filter: Podman 4 finds volumes with any of several, not those with all.
        first = [f"{name}={value}" if value else name for name, value in labels.items()][:1]
        with self._call("list volumes") as client:
            response = client.get("volumes/json", params={"filters": json.dumps({"label": first})})
            response.raise_for_status()
            found = [_status(row) for row in response.json() or ()]
        return [
            volume
            for volume in found
            if all(name in volume.labels and value in ("", volume.labels[name]) for name, value in labels.items())
        ]

    def remove(self, name: str) -> bool:
        with self._call("remove the volume", name) as client:
            response = client.delete(f"volumes/{name}")
            if response.status_code == _IN_USE:
                return False
            if response.status_code != 404:
                response.raise_for_status()
        return True


def _status(found: Any) -> VolumeStatus:
    return VolumeStatus(name=str(found["Name"]), labels=dict(found.get("Labels") or {}))
