"""smolagents' Docker executor: a Jupyter kernel in the container, reached over a web socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor

from .base import Competitor


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Smolagents(Competitor[Any]):
    """`DockerExecutor`, in an image that holds the kernel. It runs Python alone: a command is run by a program."""

    modules = ("smolagents.remote_executors",)

    def open(self) -> Any:
        logger = AgentLogger(level=LogLevel.OFF)
        return DockerExecutor([], logger, port=free_port(), image_name=self.image, build_new_image=False)

    def container(self, session: Any) -> str:
        identity: str = session.container.id
        return identity

    def close(self, session: Any) -> None:
        session.cleanup()

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        # What the kernel prints comes back as text.
        run = f"subprocess.run({list(argv)!r}, capture_output=True, check=True, text=True)"
        code = f"import subprocess\nprint({run}.stdout, end='')"
        text: str = session.run_code_raise_errors(code).logs
        return text.encode()
