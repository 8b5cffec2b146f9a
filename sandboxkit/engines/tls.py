"""A TLS connection that one thread reads and another writes."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["TlsSocket"]


class _Closable(Protocol):
    def close(self) -> object: ...


class TlsSocket:
    """What a stream needs of a socket, over an SSLSocket.

    OpenSSL's connection must not be used by two threads at once (SSL_read and SSL_write on one SSL object are not
    thread-safe), and CPython before 3.13 does not see to it. Here each step is short and under a lock, the waits are
    not.
    """

    def __init__(self, sock: ssl.SSLSocket, owner: _Closable) -> None:
        """`owner` holds the socket, too, and is closed with it."""
        sock.setblocking(False)
        self._sock = sock
        self._owner = owner
        self._lock = threading.Lock()
        self._timeout: float | None = None

    def settimeout(self, timeout: float | None) -> None:
        """See socket.socket."""
        self._timeout = timeout

    def send(self, data: Any) -> int:
        """See socket.socket."""
        return self._done(lambda: self._sock.send(data))

    def recv_into(self, buffer: Any) -> int:
        """See socket.socket."""
        return self._done(lambda: self._sock.recv_into(buffer))

    def shutdown(self, how: int) -> None:
        """See socket.socket."""
        # Not SSLSocket's own, which takes the session away from under a thread that reads.
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        """See socket.socket."""
        self._sock.close()
        with contextlib.suppress(OSError):
            self._owner.close()

    def _done(self, step: Callable[[], int]) -> int:
        end = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with self._lock:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            poll = select.poll()
            poll.register(self._sock.fileno(), wanted)
            left = None if end is None else end - time.monotonic()
            if left is not None and (left <= 0 or not poll.poll(left * 1000)):
                raise TimeoutError("timed out")
            if left is None:
                poll.poll()
