"""Which ports a sandbox's servers listen on: looking, and waiting for one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from . import _validate as check
from ._applets import AppletHost, Applets, Call
from ._frames import printable
from ._http_probe import HttpProbe
from ._records import Reader
from .abort import Abort, checked_abort
from .errors import FileError, PortError, SandboxError
from .port_results import ListeningPort, PublishedPort
from .processes import ManagedProcess

__all__ = ["PortHost", "PortWatch"]

_PIDS, _NOT_LOOPBACK = 1, 2  # flags of the applet
_CUT, _ENDED = 1, 2
_LOOK_TIMEOUT: Final = 10.0
_OTHER_ADDRESS: Final = 1.0
"""Seconds that a server has to listen on a second address, when its first is one that nobody outside reaches."""
_LOG_BYTES: Final = 2000
_LAST_WORDS: Final = 2.0
_PATH: Final = re.compile(r"/[\x21-\x7e]{0,2000}")


class PortHost(AppletHost, Protocol):
    """The session, as the calls on ports need it."""

    @property
    def published(self) -> Mapping[int, PublishedPort]: ...


class PortWatch:
    """The base of SessionPorts."""

    def __init__(self, host: PortHost) -> None:
        self._host = host
        self._applets = Applets(host)

    @property
    def published(self) -> Mapping[int, PublishedPort]:
        """By the sandbox's port, where the engine publishes it: what `Network.bridge(ports=[...])` asked for."""
        return self._host.published

    def listening(self) -> list[ListeningPort]:
        """The TCP sockets in LISTEN inside the sandbox, at most 1,024, lowest port first."""
        found, _ = self._look(0, _PIDS, 0, self._within(_LOOK_TIMEOUT), None) or ([], 0)
        return sorted(found, key=lambda one: (one.port, one.address))

    def wait(
        self,
        port: int,
        timeout: float | None = 30.0,
        *,
        abort: Abort | None = None,
        process: ManagedProcess | None = None,
        http_ok: str | None = None,
    ) -> ListeningPort:
        """Return as soon as something inside listens on `port`; which one, if there are several, is not said.

        - `timeout`: seconds, None for no bound.
        - `abort`: gives up when it is set.
        - `process`: gives up when this managed process has ended.
        - `http_ok`: a path, such as `/health`; then it is asked for over HTTP, through a tunnel, until the answer's
          status is 200 to 399.

        Raises PortError that says why nothing came: what listens elsewhere, that a published port's server listens on
        127.0.0.1 alone, how the process ended, what the last answer was. `details["reason"]` is `timeout`, `loopback`,
        `ended`, `aborted` or `http`.
        """
        check.port("port", port)
        check.number("timeout", timeout, optional=True)
        checked_abort("abort", abort)
        if process is not None and not isinstance(process, ManagedProcess):
            check.fail("process", process, "a ManagedProcess of this session, or None")
        if http_ok is not None and (not isinstance(http_ok, str) or not _PATH.fullmatch(http_ok)):
            check.fail("http_ok", http_ok, "a path such as '/health', in printable ASCII, or None")
        deadline = None if timeout is None else time.monotonic() + timeout
        found = self._wait_listen(port, timeout, deadline, abort, process)
        if http_ok is not None:
            probe = HttpProbe(port, http_ok, deadline, timeout, abort)
            with self._tunnel(port) as (host, host_port):
                probe.until_ok(host, host_port, lambda: _raise_if_ended(port, process))
        return found

    def _tunnel(self, port: int) -> AbstractContextManager[tuple[str, int]]:
        """A host and port here that lead to the port."""
        raise NotImplementedError

    def _wait_listen(
        self,
        port: int,
        timeout: float | None,
        deadline: float | None,
        abort: Abort | None,
        process: ManagedProcess | None,
    ) -> ListeningPort:
        found = self._first(port, 0, process, deadline, abort)
        if found is not None and found.is_loopback and port in self._host.published:
            other = time.monotonic() + _OTHER_ADDRESS
            late = other if deadline is None else min(deadline, other)
            reachable = self._first(port, _NOT_LOOPBACK, process, late, abort)
            if reachable is None:
                raise _loopback_error(port, found)
            found = reachable
        if found is not None:
            return found
        raise self._timeout_error(port, timeout)

    def _first(
        self, port: int, flags: int, process: ManagedProcess | None, deadline: float | None, abort: Abort | None
    ) -> ListeningPort | None:
        # One that listens; None when the time is over. PortError when the process has ended.
        pid = 0 if process is None else process.pid
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
            bound = self._within(left)
            answer = self._look(port, flags | _PIDS, pid, bound, abort)
            if answer is not None:
                found, cut = answer
                if found:
                    return min(found, key=lambda one: one.is_loopback)
                if cut & _ENDED and process is not None:
                    raise _ended_error(port, process)
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def _within(self, seconds: float | None) -> float | None:
        # How long one look may last: `limits.max_timeout` bounds it, and not how often we look.
        most = self._host.limits.max_timeout
        if seconds is None:
            return float("inf") if most is None else most
        return seconds if most is None else min(seconds, most)

    def _look(
        self, port: int, flags: int, pid: int, timeout: float | None, abort: Abort | None
    ) -> tuple[list[ListeningPort], int] | None:
        # None when the time was over.
        call = Call("listening", port, flags, pid, what="seen", path=f"port {port}", timeout=timeout, abort=abort)
        try:
            return self._applets.records(call, _answer, late=lambda: None)
        except FileError as error:
            reason = str(error.details.get("reason", ""))
            what = "The call was aborted" if reason == "aborted" else f"The sandbox gave no answer ({reason})"
            raise PortError(
                f"{what}; nothing is known of port {port}.", retryable=error.retryable, details=error.details
            ) from error

    def _timeout_error(self, port: int, timeout: float | None) -> PortError:
        others = ", ".join(map(str, self.listening()[:20])) or "nothing at all"
        return PortError(
            f"Nothing listens on port {port} after {timeout or 0:g} s; in the sandbox listens: {others}.",
            retryable=True,
            details={"reason": "timeout", "port": port},
        )


def _answer(reader: Reader) -> tuple[list[ListeningPort], int] | None:
    found = []
    while reader.kind() == ord("L"):
        found.append(reader.listener())
    cut, _ = reader.end()
    return found, cut


def _loopback_error(port: int, found: ListeningPort) -> PortError:
    return PortError(
        f"Port {port} listens on {found.address} only, which its published port can't reach. Let the server listen on "
        f"0.0.0.0, or use ports.forward({port}).",
        details={"reason": "loopback", "port": port, "address": found.address},
    )


def _raise_if_ended(port: int, process: ManagedProcess | None) -> None:
    if process is not None and process.exit is not None:
        raise _ended_error(port, process)


def _ended_error(port: int, process: ManagedProcess) -> PortError:
    with contextlib.suppress(SandboxError):  # its pid is gone; its exit and the last of its log come right behind
        process.wait(_LAST_WORDS)
    code, signal = process.exit_code, process.signal
    how = f"was ended by {signal}" if signal else f"exited with {code}"
    return PortError(
        f"Process {process.id} {how} and nothing listens on port {port}: {_last_lines(process)}",
        details={"reason": "ended", "port": port, "process": process.id, "exit_code": code},
    )


def _last_lines(process: ManagedProcess) -> str:
    text = process.logs(tail_bytes=_LOG_BYTES).text.strip()
    lines = [printable(line, "\t") for line in text.splitlines()[-10:]]
    return "its last output was\n" + "\n".join(lines) if lines else "it wrote nothing."
