"""A session whose processes and ports are played: for the tools' own part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import attrs
from typing_extensions import Self

from sandboxkit import Session
from sandboxkit.abort import Abort
from sandboxkit.errors import PortError, ProcessError


@attrs.frozen
class PlayedLogs:
    text: str
    next_cursor: int
    lost_bytes: int = 0
    ended: bool = False


@attrs.define(eq=False)
class PlayedProcess:
    id: str
    pid: int
    command: str
    args: tuple[str, ...]
    name: str | None
    options: dict[str, object]
    output: bytes = b""
    written: bytes = b""
    closed: bool = False
    status: Literal["running", "exited"] = "running"
    exit_code: int | None = None
    signal: str | None = None

    def logs(self, since: int | None = None, *, tail_bytes: int | None = None, max_bytes: int = 1 << 20) -> PlayedLogs:
        start = max(len(self.output) - (tail_bytes or 0), 0) if since is None else since
        data = self.output[start : start + max_bytes]
        ended = self.status == "exited" and start + len(data) == len(self.output)
        return PlayedLogs(data.decode("utf-8", "replace"), start + len(data), ended=ended)

    def write(self, data: bytes, *, timeout: float | None = None, abort: Abort | None = None) -> None:
        if self.closed:
            raise ProcessError(f"The input of process {self.id} is closed.")
        self.written += data

    def close_stdin(self) -> None:
        self.closed = True

    def stop(self, grace: float = 5.0) -> None:
        self.status, self.signal = "exited", "SIGTERM"


class PlayedProcesses:
    def __init__(self) -> None:
        self.all: list[PlayedProcess] = []

    def start(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        name: str | None = None,
    ) -> PlayedProcess:
        number = len(self.all) + 1
        options: dict[str, object] = {"cwd": cwd, "env": dict(env or {}), "stdin": stdin}
        process = PlayedProcess(f"p{number}", 100 + number, command, tuple(args), name, options)
        self.all.append(process)
        return process

    def list(self) -> list[PlayedProcess]:
        return list(self.all)

    def get(self, id: str) -> PlayedProcess:
        for process in self.all:
            if process.id == id:
                return process
        raise ProcessError(f"There is no process {id!r}.")


@attrs.frozen
class PlayedPort:
    port: int
    address: str
    pid: int | None = None


class PlayedPorts:
    def __init__(self) -> None:
        self.open: list[PlayedPort] = []
        self.waits: list[tuple[int, float, object]] = []

    def listening(self) -> list[PlayedPort]:
        return list(self.open)

    def wait(
        self, port: int, timeout: float = 30.0, *, abort: Abort | None = None, process: object = None
    ) -> PlayedPort:
        self.waits.append((port, timeout, process))
        for one in self.open:
            if one.port == port:
                return one
        raise PortError(f"Nothing listens on port {port} after {timeout:g} s.")


class WithProcesses:
    """The session, with these two in the place of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.processes = PlayedProcesses()
        self.ports = PlayedPorts()

    @property
    def session(self) -> Session:
        """Itself: what it does not play is the real one's."""
        return cast("Session", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Not this one's to end."""
