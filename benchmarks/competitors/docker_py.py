"""docker-py."""

from __future__ import annotations

from typing import Any

import docker

from .base import Engine
from .sdk import SLEEP, EngineSdk


class DockerPy(EngineSdk):
    """`containers.create`, `start`, `exec_run`, `remove(force=True)`."""

    modules = ("docker",)

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        self._client = docker.DockerClient(base_url=engine.url, timeout=300)

    def open(self) -> Any:
        return self._start([])

    def open_with_volume(self) -> Any:
        return self._start(["/workspace"])

    def close(self, session: Any) -> None:
        session.remove(force=True, v=True)

    def stop(self) -> None:
        self._client.close()

    def _start(self, volumes: list[str]) -> Any:
        container = self._client.containers.create(
            self.image, SLEEP, network_mode="none", volumes=volumes, log_config={"type": "none"}
        )
        container.start()
        return container
