"""Looking at things until they are so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MARGIN = float(os.environ.get("SANDBOXKIT_TEST_MARGIN", "2"))


def wait_until(condition: Callable[[], T], what: str, seconds: float = 10.0) -> T:
    """The first true value of `condition`; AssertionError naming `what` if there is none within `seconds` x margin."""
    deadline = time.monotonic() + seconds * MARGIN
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds * MARGIN:g} s: {what}"
        time.sleep(0.005)
    return value
