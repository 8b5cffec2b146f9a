"""Looking at things until they are so, and the dial for slow machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MARGIN = float(os.environ.get("SANDBOXKIT_TEST_MARGIN", "2"))
"""What bounds in time are multiplied by, as in `sandboxkit.conformance`."""


def allowed(promise: float) -> float:
    """Seconds that a test lets pass where `promise` seconds are promised to users."""
    return (promise + 0.5) * MARGIN


def wait_until(condition: Callable[[], T], what: str, seconds: float = 15.0) -> T:
    """The first true value of `condition`; AssertionError naming `what` if there is none within `seconds` x margin."""
    deadline = time.monotonic() + seconds * MARGIN
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds * MARGIN:g} s: {what}"
        time.sleep(0.002)
    return value
