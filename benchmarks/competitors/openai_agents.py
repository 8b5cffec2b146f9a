"""openai-agents with its Docker sandbox client."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
from agents.sandbox.errors import ExecTimeoutError
from agents.sandbox.sandboxes.docker import DockerSandboxClient, DockerSandboxClientOptions

from .base import AsyncCompetitor, Engine


class OpenAiAgents(AsyncCompetitor[Any]):
    """`DockerSandboxClient`, network off."""

    modules = ("agents.sandbox.sandboxes.docker",)

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        self._docker = docker.DockerClient(base_url=engine.url, timeout=300)
        self._client = DockerSandboxClient(self._docker)

    def open(self) -> Any:
        options = DockerSandboxClientOptions(image=self.image, network_mode="none")

        async def start() -> Any:
            session = await self._client.create(options=options)
            await session.start()
            return session

        return self.wait(start())

    def container(self, session: Any) -> str:
        identity: str = session.state.container_id
        return identity

    def close(self, session: Any) -> None:
        self.wait(self._client.delete(session))

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        result = self.wait(session.exec(*argv, shell=False))
        assert result.exit_code == 0, result
        found: bytes = result.stdout
        return found

    def exec_timeout(self, session: Any, argv: Sequence[str], seconds: float) -> None:
        try:
            self.wait(session.exec(*argv, shell=False, timeout=seconds))
        except ExecTimeoutError:
            return
        raise AssertionError("the command ended before its timeout")

    def write(self, session: Any, path: str, data: bytes) -> None:
        self.wait(session.write(Path(path), io.BytesIO(data)))

    def read(self, session: Any, path: str) -> bytes:
        found: bytes = self.wait(session.read(Path(path))).read()
        return found

    def list(self, session: Any, folder: str) -> int:
        return len(self.wait(session.ls(Path(folder))))

    def stop(self) -> None:
        self._docker.close()
        super().stop()
