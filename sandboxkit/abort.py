"""Aborting commands: any `threading.Event` will do; AbortSignal adds a reason, callbacks, deadlines and combination."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from . import _validate as check

__all__ = ["Abort", "AbortSignal"]


@runtime_checkable
class Abort(Protocol):
    """What `abort=` takes: anything with `is_set()`, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to abort."""
        ...


class AbortSignal(threading.Event):
    """An Event that knows why it was set and tells those who asked, so that nobody has to poll it.

    Setting it is final: `clear` raises. Commands given a plain Event look at it every few milliseconds; those given an
    AbortSignal are told by the thread that calls `set`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: object = None
        self._guard = threading.RLock()  # finalizers unsubscribe, perhaps amid a call of ours
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._sources: tuple[Abort, ...] = ()
        self._deadline: float | None = None

    @classmethod
    def after(cls, seconds: float) -> AbortSignal:
        """A signal that is set `seconds` from now. No thread or timer runs: whoever waits for it knows the time."""
        check.number("seconds", seconds, minimum=0, exclusive=False)
        signal = cls()
        signal._deadline = time.monotonic() + seconds
        return signal

    @classmethod
    def any(cls, *sources: Abort) -> AbortSignal:
        """A signal that is set as soon as one of `sources` is, with its reason. Sources may be plain Events."""
        signal = cls()
        for index, source in enumerate(sources):
            if source is None:
                check.fail(f"sources[{index}]", source, "a threading.Event or an AbortSignal")
            checked_abort(f"sources[{index}]", source)
        signal._sources = sources
        return signal

    def set(self, reason: object = None) -> None:
        """Set it, once: the first reason stays. Callbacks run on this thread; then the first exception is raised."""
        with self._guard:
            if not super().is_set():
                self.reason = reason
                super().set()
        failed: BaseException | None = None
        # One at a time: should Ctrl-C end this, another `set` calls those that are left.
        while self._callbacks:
            with self._guard:
                callback = self._callbacks.pop(next(iter(self._callbacks), None), None)
            try:
                if callback is not None:
                    callback()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed = failed or error
        if failed is not None:
            raise failed

    def clear(self) -> None:
        """Refused: a command that was aborted stays aborted."""
        raise RuntimeError("an AbortSignal can't be cleared; make a new one")

    def is_set(self) -> bool:
        """Whether it is set, its time has come, or one of its sources is set."""
        if not super().is_set():
            self._look()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Like Event.wait, with its own deadline and its sources seen."""
        end = None if timeout is None else time.monotonic() + timeout
        forget = self.add_callback(_nothing)  # so that the sources tell this one
        try:
            while not self.is_set():
                pause = self.next_look()
                if end is not None:
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    pause = left if pause is None else min(pause, left)
                super().wait(None if pause is None else min(pause, threading.TIMEOUT_MAX))
            return True
        finally:
            forget()

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the signal is set, at once if it is; returns a function that takes it back."""
        entry = object()
        with self._guard:
            pending = not super().is_set()
            if pending:
                self._callbacks[entry] = callback
        if not pending:
            callback()
            return _nothing
        # The sources hold this signal only as long as somebody here is to be told.
        undo = [source.add_callback(self._look) for source in self._sources if isinstance(source, AbortSignal)]

        def forget() -> None:
            with self._guard:
                self._callbacks.pop(entry, None)
            while undo:
                undo.pop()()

        return forget

    def next_look(self) -> float | None:
        """Seconds after which a waiter must call `is_set` again without having been told; None: it will be told."""
        pauses = [] if self._deadline is None else [max(self._deadline - time.monotonic(), 0.0)]
        for source in self._sources:
            pause = source.next_look() if isinstance(source, AbortSignal) else POLL
            if pause is not None:
                pauses.append(pause)
        return min(pauses, default=None)

    def _look(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.set("deadline")
        for source in self._sources:
            if source.is_set():
                self.set(getattr(source, "reason", None))
                return


POLL = 0.005
"""Seconds between two looks at a plain Event."""


def _nothing() -> None:
    pass


def checked_abort(field: str, value: object) -> None:
    """None or an Abort, else ConfigError."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, "is_set", None))):
        check.fail(field, value, "a threading.Event or an AbortSignal")
