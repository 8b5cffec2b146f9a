"""The engines' own command-line clients, as a program that starts them would use them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence

from .base import Competitor
from .local import run_abort, run_timeout


class EngineCli(Competitor[str]):
    """`docker` or `podman`: `run`, `exec`, `rm`. Its session is a container's id."""

    def open(self) -> str:
        return self._run("run", "--detach", *self._options(), self.image, "sleep", "100000").decode().strip()

    def open_with_volume(self) -> str:
        options = [*self._options(), "--volume", "/workspace"]
        return self._run("run", "--detach", *options, self.image, "sleep", "100000").decode().strip()

    def container(self, session: str) -> str:
        return session

    def close(self, session: str) -> None:
        patience = ["--time", "0"] if self.engine.backend == "podman" else []
        self._run("rm", "--force", "--volumes", *patience, session)

    def exec(self, session: str, argv: Sequence[str]) -> bytes:
        return self._run("exec", session, *argv)

    def exec_timeout(self, session: str, argv: Sequence[str], seconds: float) -> None:
        run_timeout(self.engine.cli("exec", session, *argv), seconds)

    def exec_abort(self, session: str, argv: Sequence[str], abort: threading.Event) -> None:
        run_abort(self.engine.cli("exec", session, *argv), abort)

    def write(self, session: str, path: str, data: bytes) -> None:
        self._run("exec", "--interactive", session, "sh", "-c", f"cat >/tmp/{path}", stdin=data)

    def read(self, session: str, path: str) -> bytes:
        return self._run("exec", session, "cat", f"/tmp/{path}")

    def serve(self, program: str, port: int) -> int:
        options = [*self._options("bridge"), "--publish", f"127.0.0.1::{port}"]
        command = ["python3", "-c", program, "0.0.0.0", str(port)]
        container = self._run("run", "--detach", *options, self.image, *command).decode().strip()
        self.kept.add(container)
        return int(self._run("port", container, str(port)).decode().splitlines()[0].rpartition(":")[2])

    def stop(self) -> None:
        for container in self.kept:
            self.close(container)

    def _options(self, network: str = "none") -> list[str]:
        options = ["--network", network, "--log-driver", "none"]
        if self.engine.backend == "podman":  # which asks for more than some hosts allow
            options += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
        return options

    def _run(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        return subprocess.run(self.engine.cli(*arguments), input=stdin, capture_output=True, check=True).stdout
