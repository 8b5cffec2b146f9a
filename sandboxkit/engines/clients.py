"""A pool of SDK clients, so that each is used by one thread at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from sandboxkit.errors import EngineUnavailableError

__all__ = ["Calls", "Client", "ClientPool"]


class Client(Protocol):
    """What the pool needs of an SDK's client."""

    def close(self) -> object:
        """Close its connections."""
        ...


ClientT = TypeVar("ClientT", bound=Client)


class ClientPool(Generic[ClientT]):
    """Lends clients, made on demand, each to one thread at a time.

    Neither SDK promises that a client may be shared by threads (docker-py#3229), and one client behind a lock would
    let one hung call stop every other. Clients are kept for the next caller, `idle` of them at most, and never cross
    a fork.
    """

    def __init__(self, make: Callable[[], ClientT], *, idle: int = 4) -> None:
        self._make = make
        self._limit = idle
        # A deque, not a lock and a list: its append and pop are atomic, and a lock could be held by another thread
        # at the moment of a fork and stay locked in the child for ever.
        self._idle: deque[ClientT] = deque()
        self._pid = os.getpid()
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[ClientT]:
        """A client for the block. After an exception it is closed: its connection may be in the midst of an answer."""
        if self._closed:
            raise EngineUnavailableError("this backend was closed: connect again", retryable=False)
        client = self._take()
        clean = False
        try:
            yield client
            clean = True
        finally:
            if clean and not self._closed and len(self._idle) < self._limit:
                self._idle.append(client)
                if self._closed:  # close() may have emptied the deque just before the append
                    self._drain()
            else:
                client.close()

    def close(self) -> None:
        """Close the idle clients now, lent ones when they come back. Idempotent."""
        self._closed = True
        self._drain()

    def _take(self) -> ClientT:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            # Only this process's copies of the descriptors go; the parent's connections live on.
            self._drain()
        with suppress(IndexError):
            return self._idle.pop()
        return self._make()

    def _drain(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class Calls(Generic[ClientT]):
    """How a backend calls its engine: `with calls("start", id) as client`; the SDK's errors come out as ours."""

    def __init__(
        self, make: Callable[[], ClientT], translated: Callable[[str, str], AbstractContextManager[None]]
    ) -> None:
        self._pool = ClientPool(make)
        self._translated = translated

    @contextmanager
    def __call__(self, operation: str, subject: str = "") -> Iterator[ClientT]:
        """A client for the block; `operation` and `subject` say in an error what could not be done to what."""
        with self._pool.borrow() as client, self._translated(operation, subject):
            yield client

    def close(self) -> None:
        """See ClientPool.close."""
        self._pool.close()
