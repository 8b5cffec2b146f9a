"""podman-py."""

from __future__ import annotations

import json
from typing import Any

import podman

from .base import Engine
from .sdk import SLEEP, EngineSdk

JSON = {"Content-Type": "application/json"}


class PodmanPy(EngineSdk):
    """`containers.create`, `start`, `exec_run`, and a forced removal."""

    modules = ("podman",)
    frames_in_output = True

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        self._client: Any = podman.PodmanClient(base_url=engine.url, timeout=300)

    def open(self) -> Any:
        return self._start({})

    def open_with_volume(self) -> Any:
        return self._start({"volumes": [{"Name": "", "Dest": "/workspace"}]})

    def close(self, session: Any) -> None:
        # `remove(force=True)` waits ten seconds for a program that does not heed SIGTERM; the call it makes need not.
        query = {"force": "true", "timeout": "0", "v": "true"}
        self._client.api.delete(f"/containers/{session.id}", params=query).raise_for_status()

    def stop(self) -> None:
        self._client.close()

    def _start(self, more: dict[str, Any]) -> Any:
        # Not `containers.create`: it knows no anonymous volume, and asks for one inspect more than this does.
        body = {
            "image": self.image,
            "command": SLEEP,
            "netns": {"nsmode": "none"},
            "r_limits": [{"type": name, "soft": 1024, "hard": 1024} for name in ("nofile", "nproc")],
            "log_configuration": {"driver": "none"},
            **more,
        }
        answer = self._client.api.post("/containers/create", data=json.dumps(body), headers=JSON)
        answer.raise_for_status()
        container = self._client.containers.get(answer.json()["Id"])
        container.start()
        return container
