"""autogen-ext's Docker code executor."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Sequence
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

from .base import AsyncCompetitor

TIMED_OUT = 124  # of timeout(1), which it runs commands under


class Autogen(AsyncCompetitor[Any]):
    """`DockerCommandLineCodeExecutor`: a command is a shell script, its folder one of the host's."""

    modules = ("autogen_ext.code_executors.docker",)

    def open(self) -> Any:
        return self._start(60)

    def container(self, session: Any) -> str:
        name: str = session.container_name
        return name

    def close(self, session: Any) -> None:
        self.wait(session.stop())

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        result = self._run(session, argv, CancellationToken())
        assert result.exit_code == 0, result
        text: str = result.output
        return text.encode()

    def exec_timeout(self, session: Any, argv: Sequence[str], seconds: float) -> None:
        # The executor's timeout is of whole seconds and for all its commands; nothing public changes it afterwards.
        session._timeout = round(seconds)
        try:
            assert self._run(session, argv, CancellationToken()).exit_code == TIMED_OUT
        finally:
            session._timeout = 60

    def exec_abort(self, session: Any, argv: Sequence[str], abort: threading.Event) -> None:
        token = CancellationToken()

        def cancel() -> None:
            abort.wait()
            self.loop.call_soon_threadsafe(token.cancel)

        threading.Thread(target=cancel, daemon=True).start()
        self._run(session, argv, token)

    def write(self, session: Any, path: str, data: bytes) -> None:
        (session.work_dir / path).write_bytes(data)  # a folder of the host, mounted

    def read(self, session: Any, path: str) -> bytes:
        found: bytes = (session.work_dir / path).read_bytes()
        return found

    def _start(self, timeout: int) -> Any:
        async def start() -> Any:
            executor = DockerCommandLineCodeExecutor(self.image, timeout=timeout)
            await executor.start()
            return executor

        return self.wait(start())

    def _run(self, session: Any, argv: Sequence[str], token: CancellationToken) -> Any:
        async def run() -> Any:
            try:
                return await session.execute_code_blocks([CodeBlock(code=shlex.join(argv), language="sh")], token)
            except asyncio.CancelledError:
                return None

        return self.wait(run())
