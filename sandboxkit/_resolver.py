"""Names to addresses, off the relay's thread: getaddrinfo(3) blocks, for a minute where no server answers."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from ._network import Lookup

__all__ = ["Resolution", "Resolver"]

_WAITING: Final = 64
_MOST: Final = 32  # addresses of one name that are looked at

Resolution: TypeAlias = list[str] | Exception


def system_addresses(host: str, port: int) -> list[str]:
    """As the system resolves names, in its order. OSError when there are none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """One thread, one name after the other, at most 64 that wait. It lives from the first name to `close`."""

    def __init__(self, lookup: Lookup | None) -> None:
        self._lookup = lookup or system_addresses
        self._queue: queue.SimpleQueue[tuple[str, int, Callable[[Resolution], object]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, host: str, port: int, answer: Callable[[Resolution], object]) -> bool:
        """Have `answer` called, on the resolver's thread; it must not block. False: too many wait already."""
        if self._closed or self._queue.qsize() >= _WAITING:
            return False
        self._queue.put((host, port, answer))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sandboxkit-resolver", daemon=True)
            self._thread.start()
        return True

    def close(self) -> None:
        """Answer no more. The thread ends, once the system has answered what it was asked. May be called twice."""
        self._closed = True
        self._queue.put(None)

    def _run(self) -> None:
        while True:
            asked = self._queue.get()
            if asked is None or self._closed:
                return
            host, port, answer = asked
            answer(self._resolve(host, port))

    def _resolve(self, host: str, port: int) -> Resolution:
        try:
            found = self._lookup(host, port)
            if isinstance(found, (str, bytes)) or not all(isinstance(address, str) for address in found):
                raise TypeError("a resolver gives a list of addresses as strings")
            return [address.partition("%")[0] for address in found[:_MOST]]
        except Exception as error:  # noqa: BLE001 - a resolver of the user's may raise anything
            return error
