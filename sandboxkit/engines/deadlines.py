"""Waiting for something the engine does by itself, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(done: Callable[[], bool], timeout: float) -> bool:
    """Ask `done` until it says True; False when it did not within `timeout` seconds. It is asked at least once."""
    end = time.monotonic() + timeout
    pause = 0.002
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.1)
    return True
