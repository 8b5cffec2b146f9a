"""Ctrl-C, or anything else, at every place where CPython can run a signal handler.

It runs them at the start of a Python function and after a call of a C function (and at backward jumps, which lie
between two of those). A profile function sees exactly these places, and what it raises is raised there.
"""

from __future__ import annotations

import _weakrefset
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

__all__ = ["at_place", "finalizers_may_be_interrupted", "interrupted_at"]

T = TypeVar("T")


def at_place(place: int, act: Callable[[], object], call: Callable[[], T]) -> tuple[T, bool]:
    """The value of `call()`, in which `act()` is called at the place of that number; and whether there was one.

    Places within the fakes do not count, nor those within `threading`, whose Condition does not survive it and whose
    finalizers drop it.
    """
    seen = 0
    own = sys._getframe()

    def counts(frame: FrameType | None) -> bool:
        while frame is not None and frame is not own:
            name = frame.f_code.co_filename
            if "/tests/core/fake_" in name or name in (threading.__file__, _weakrefset.__file__):
                return False
            frame = frame.f_back
        return True

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame is not own and counts(frame):
            seen += 1
            if seen == place:
                sys.setprofile(None)
                act()

    gc.disable()  # its finalizers are places of their own, whose exceptions Python drops
    sys.setprofile(look)
    try:
        value = call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return value, seen >= place


@contextlib.contextmanager
def finalizers_may_be_interrupted() -> Iterator[None]:
    """Python drops what is raised in a finalizer, and reports it here."""
    before = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def interrupted_at(place: int, call: Callable[[], object], *, finalizers: bool = False) -> bool:
    """Whether there is a place of that number in `call()`; KeyboardInterrupt was raised there then, and came out.

    With `finalizers` it may have hit one of them.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        with finalizers_may_be_interrupted() if finalizers else contextlib.nullcontext():
            _, reached = at_place(place, interrupt, call)
    except KeyboardInterrupt:
        return True
    assert finalizers or not reached, "the interrupt was swallowed"
    return reached
