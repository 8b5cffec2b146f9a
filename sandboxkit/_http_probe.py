"""Asking an HTTP server in the sandbox, again and again, until it is well."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from .abort import Abort
from .errors import PortError

__all__ = ["HttpProbe"]

_TICK: Final = 0.02
_PAUSE: Final = 0.05  # between two questions
_PATIENCE: Final = 10.0  # for one answer
_LINE_MAX: Final = 1024
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")


class HttpProbe:
    """One wait. No byte of the answer but its first line is kept."""

    def __init__(
        self, port: int, path: str, deadline: float | None, timeout: float | None, abort: Abort | None
    ) -> None:
        self._port = port
        self._path = path
        self._deadline = deadline
        self._seconds = timeout or 0.0
        self._abort = abort
        self._last = "no answer"

    def until_ok(self, host: str, port: int, check: Callable[[], None]) -> None:
        """Ask there until the status is 200 to 399; `check` may raise meanwhile. PortError at the deadline."""
        pause = threading.Event()
        while not self._is_ok((host, port)):
            check()
            self._raise_if_over()
            pause.wait(_PAUSE)

    def _is_ok(self, address: tuple[str, int]) -> bool:
        question = f"GET {self._path} HTTP/1.1\r\nHost: localhost:{self._port}\r\nConnection: close\r\n\r\n"
        line, end = b"", time.monotonic() + _PATIENCE
        try:
            with socket.create_connection(address, timeout=_PATIENCE) as sock:
                sock.sendall(question.encode("ascii"))
                sock.settimeout(_TICK)
                while b"\n" not in line and len(line) < _LINE_MAX and time.monotonic() < end:
                    self._raise_if_over()
                    try:
                        part = sock.recv(_LINE_MAX - len(line))
                    except TimeoutError:
                        continue
                    if not part:
                        break
                    line += part
        except OSError:
            self._last = "no answer"
            return False
        found = _STATUS.match(line)
        self._last = "no answer" if not line else f"status {int(found[1])}" if found else "an answer that is not HTTP"
        return found is not None and 200 <= int(found[1]) < 400

    def _raise_if_over(self) -> None:
        if self._abort is not None and self._abort.is_set():
            raise PortError(
                f"The call was aborted; port {self._port} listens, and {self._path} was not well yet ({self._last}).",
                details={"reason": "aborted", "port": self._port},
            )
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise PortError(
                f"Port {self._port} listens, but {self._path} is not well after {self._seconds:g} s: {self._last}.",
                retryable=True,
                details={"reason": "http", "port": self._port},
            )
