"""What threads wait for each other with."""

from __future__ import annotations

import contextlib
import threading

__all__ = ["Latch"]


class Latch:
    """A binary semaphore whose `set` may come at any time, from any thread, any number of times.

    Cheaper than a Condition, and `wait` in the main thread is interruptible by Ctrl-C. After `wait` the waiter looks at
    the state it waits for: a wake may be stale.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the one waiter, now or at its next wait."""
        with contextlib.suppress(RuntimeError):  # already set
            self._lock.release()

    def wait(self, timeout: float | None) -> bool:
        """Whether it was set within `timeout` seconds (None: however long)."""
        return self._lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))
