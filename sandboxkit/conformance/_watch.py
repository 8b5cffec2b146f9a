"""Looking at things until they are so: deadlines, the dial for slow machines, and what this process holds."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from typing_extensions import Self

T = TypeVar("T")

MARGIN = float(os.environ.get("SANDBOXKIT_TEST_MARGIN", "2"))
"""What every bound in time is multiplied by: raise it on a slow or busy machine. Benchmarks report the true times."""

BEGUN = 0.4 * MARGIN
"""Seconds of a timeout within which a shell must have begun: what its script says or sets up first is done by then."""

HORIZON = 0.75 * MARGIN
"""Seconds of a timeout within which a test must have seen the command alive."""

THREAD_PREFIX = "sandboxkit-"


def allowed(promise: float) -> float:
    """Seconds that a test lets pass where `promise` seconds are promised to users."""
    return (promise + 0.5) * MARGIN


def wait_until(condition: Callable[[], T], what: str, seconds: float = 10.0) -> T:
    """The first true value of `condition`; AssertionError naming `what` when none came within `seconds` x margin."""
    deadline = time.monotonic() + seconds * MARGIN
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds * MARGIN:g} s: {what}")
        time.sleep(0.003)
    return value


class Stopwatch:
    """`with Stopwatch() as watch: ...`, then `watch.seconds`."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._start


def thread_names() -> list[str]:
    """Sandboxkit's own threads of this process."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX))


def open_files() -> tuple[list[str], int]:
    """What this process has open: every descriptor that is no socket by its target, and the number of its sockets."""
    files, sockets = [], 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                sockets += 1
            elif not target.startswith("/proc/"):
                files.append(target)
    return sorted(files), sockets


def children() -> set[tuple[int, str]]:
    """This process's children that are no zombies: pid and name."""
    found = set()
    for pid, parent, state, name in host_processes():
        if parent == os.getpid() and state != "Z":
            found.add((pid, name))
    return found


def host_processes() -> list[tuple[int, int, str, str]]:
    """Every process this one can see: pid, parent, state, name."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")
                state, parent = rest.split()[:2]
                found.append((int(entry), int(parent), state, name.partition("(")[2]))
    return found


class PeakMemory:
    """`with PeakMemory() as memory: ...`, then `memory.growth`: bytes this process grew by, at its peak."""

    growth = 0

    def __enter__(self) -> Self:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak is from here on
        self._start = _memory("VmRSS")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.growth = _memory("VmHWM") - self._start


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")
