"""Checks in a forked copy of this process."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

SECONDS = 60
"""After which a child that hangs is ended."""


def in_child(function: Callable[[], object]) -> None:
    """`function` in a fork, whose failure is this one's."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking with threads; that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        report = b""
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            function()
        except BaseException:  # noqa: BLE001 - reported to the parent
            report = traceback.format_exc().encode()
        finally:
            os.write(writing, report or b"\0")
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        report = pipe.read()
    os.waitpid(pid, 0)
    assert report == b"\0", report.decode() or "the child hung"
