"""swe-rex: a server inside the container, reached over HTTP."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import Command, ReadFileRequest, UploadRequest

from .base import AsyncCompetitor, Engine


class SweRex(AsyncCompetitor[Any]):
    """`DockerDeployment`, in an image that holds the server; its port is published, so the network is on."""

    modules = ("swerex.deployment.docker", "swerex.runtime.abstract")

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        logging.disable(logging.CRITICAL)

    def open(self) -> Any:
        deployment = DockerDeployment(image=self.image, pull="never", startup_timeout=60)
        self.wait(deployment.start())
        return deployment

    def container(self, session: Any) -> str | None:
        name: str | None = session.container_name
        return name

    def close(self, session: Any) -> None:
        with contextlib.suppress(Exception):  # the server may have gone first
            self.wait(session.stop())

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        answer = self.wait(session.runtime.execute(Command(command=list(argv))))
        assert answer.exit_code == 0, answer
        text: str = answer.stdout
        return text.encode()

    def exec_timeout(self, session: Any, argv: Sequence[str], seconds: float) -> None:
        try:
            self.wait(session.runtime.execute(Command(command=list(argv), timeout=seconds)))
        except CommandTimeoutError:
            return
        raise AssertionError("the command ended before its timeout")

    def write(self, session: Any, path: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:  # `write_file` is for text; `upload` takes a file of the host
            source = Path(folder) / path
            source.write_bytes(data)
            self.wait(session.runtime.upload(UploadRequest(source_path=str(source), target_path=f"/tmp/{path}")))

    def read(self, session: Any, path: str) -> bytes:
        text: str = self.wait(session.runtime.read_file(ReadFileRequest(path=f"/tmp/{path}"))).content  # text alone
        return text.encode()
