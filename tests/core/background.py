"""Calls on threads of their own, whose value or exception is asked for later."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Call"]

T = TypeVar("T")


class Call(Generic[T]):
    """One call that runs."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._function = function
        self.thread = threading.Thread(target=self._run, name="test-call", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome.put((self._function(), None))
        except BaseException as error:  # noqa: BLE001 - raised in get()
            self._outcome.put((None, error))

    def get(self, timeout: float = 20) -> T:
        """Its value, or what it raised; at most `timeout` seconds from now."""
        value, error = self._outcome.get(timeout=timeout)
        self.thread.join(timeout)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]
