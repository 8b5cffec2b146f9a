"""Looking at things until they are so, and the dial for slow machines: as in `sandboxkit.conformance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sandboxkit.conformance import _watch
from sandboxkit.conformance._watch import MARGIN, allowed

__all__ = ["MARGIN", "allowed", "wait_until"]

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, seconds: float = 15.0) -> T:
    """The first true value of `condition`; AssertionError naming `what` if there is none within `seconds` x margin."""
    return _watch.wait_until(condition, what, seconds)
