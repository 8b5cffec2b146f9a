"""What /proc tells of processes: memory, who is alive, who shares a container. Only the standard library."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def memory(field: str, pid: int | str = "self") -> float:
    """MiB that /proc/PID/status gives for VmRSS, VmHWM, ...; 0.0 for a process that has gone."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def share(pid: int) -> float:
    """MiB that a process holds, pages shared with others counted in part (PSS), so that a sum is of real memory."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def reset_peak() -> None:
    """From here on this process's VmHWM is the peak since now."""
    Path("/proc/self/clear_refs").write_text("5")


def with_argument(argument: str) -> list[int]:
    """Processes that have it among their arguments, whole: a number nobody else uses finds a command anywhere here."""
    wanted = argument.encode()
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def is_program(pid: int, name: str) -> bool:
    """Whether it runs that program itself, rather than starting or watching something that does."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2] == name.encode()
    return False


def is_init(pid: int) -> bool:
    """Whether it is the first process of its PID namespace."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1"
    return False


def is_alive(pid: int) -> bool:
    """Not gone and not a zombie."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_dead(pids: Iterable[int], deadline: float) -> list[int]:
    """Those still alive when all have died or the deadline, a perf_counter value, has passed."""
    alive = [pid for pid in pids if is_alive(pid)]
    while alive and time.perf_counter() < deadline:
        time.sleep(0.0005)
        alive = [pid for pid in alive if is_alive(pid)]
    return alive


def pid_namespace(pid: int | str) -> str | None:
    """Names the PID namespace; None where it can't be read (others' processes, unless root asks)."""
    with contextlib.suppress(OSError):
        return os.readlink(PROC / str(pid) / "ns" / "pid")
    return None


def members(namespace: str) -> list[int]:
    """Everybody in a PID namespace."""
    return [int(e.name) for e in PROC.iterdir() if e.name.isdigit() and pid_namespace(e.name) == namespace]
