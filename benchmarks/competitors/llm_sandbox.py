"""llm-sandbox with its Docker backend."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
from llm_sandbox import SandboxSession
from llm_sandbox.const import SandboxBackend, SupportedLanguage
from llm_sandbox.exceptions import SandboxTimeoutError
from llm_sandbox.pool import PoolConfig, PooledSandboxSession, create_pool_manager

from .base import Competitor, Engine

RUNTIME = {"network_mode": "none", "command": ["sleep", "100000"]}


class LlmSandbox(Competitor[Any]):
    """`SandboxSession`: network off, no environment set up, and a command that keeps a bare image's container alive."""

    modules = ("llm_sandbox",)

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        self._client = docker.DockerClient(base_url=engine.url, timeout=300)
        self._pool: Any = None

    def open(self) -> Any:
        session = SandboxSession(
            client=self._client,
            image=self.image,
            lang="python",
            skip_environment_setup=True,
            runtime_configs=dict(RUNTIME),
        )
        session.open()
        return session

    def container(self, session: Any) -> str:
        identity: str = session.container.id
        return identity

    def close(self, session: Any) -> None:
        session.close()

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        output = session.execute_command(shlex.join(argv))
        assert output.exit_code == 0, output
        text: str = output.stdout
        return text.encode()

    def exec_timeout(self, session: Any, argv: Sequence[str], seconds: float) -> None:
        # A command takes no timeout; a program does.
        try:
            session.run(f"import subprocess; subprocess.run({list(argv)!r})", timeout=seconds)
        except SandboxTimeoutError:
            return
        raise AssertionError("the command ended before its timeout")

    def write(self, session: Any, path: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:  # it copies files of the host, not bytes
            file.write(data)
            file.flush()
            session.copy_to_runtime(file.name, f"/tmp/{path}")

    def read(self, session: Any, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / path
            session.copy_from_runtime(f"/tmp/{path}", str(target))
            return target.read_bytes()

    def acquire(self) -> tuple[float, float]:
        # A pool of one: it hands out a container that the previous user has left.
        if self._pool is None:
            self._pool = create_pool_manager(
                client=self._client,
                backend=SandboxBackend.DOCKER,
                config=PoolConfig(min_pool_size=1, max_pool_size=1),
                lang=SupportedLanguage.PYTHON,
                image=self.image,
                runtime_configs=RUNTIME,
                skip_environment_setup=True,
            )
        start = time.perf_counter()
        with PooledSandboxSession(pool_manager=self._pool) as session:
            acquired = time.perf_counter() - start
            self.kept.add(session.backend_session.container.id)
            assert session.execute_command("true").exit_code == 0
            return acquired, time.perf_counter() - start

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._client.close()
