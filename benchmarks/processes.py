"""What /proc tells of processes: memory, who is alive, who shares a container. Only the standard library."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def field(path: Path, name: str, separator: str = ":") -> str:
    """What a file of lines `NAME: VALUE` gives for a name; empty for one that is not there, or that has gone."""
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8", "replace").splitlines():
            found, is_there, value = line.partition(separator)
            if is_there and found.strip() == name:
                return value.strip()
    return ""


def memory(name: str, pid: int | str = "self") -> float:
    """MiB that /proc/PID/status gives for VmRSS, VmHWM, ...; 0.0 for a process that has gone."""
    return _mib(PROC / str(pid) / "status", name)


def share(pid: int) -> float:
    """MiB that a process holds, pages shared with others counted in part (PSS), so that a sum is of real memory."""
    return _mib(PROC / str(pid) / "smaps_rollup", "Pss")


def _mib(path: Path, name: str) -> float:
    return int((field(path, name) or "0").split()[0]) / 1024


def reset_peak() -> None:
    """From here on this process's VmHWM is the peak since now."""
    Path("/proc/self/clear_refs").write_text("5")


def with_argument(argument: str) -> list[int]:
    """Processes that have it among their arguments, whole: a number nobody else uses finds a command anywhere here."""
    wanted = argument.encode()
    return [int(e.name) for e in PROC.iterdir() if e.name.isdigit() and wanted in _arguments(e.name)]


def is_program(pid: int, name: str) -> bool:
    """Whether it runs that program itself, rather than starting or watching something that does."""
    return _arguments(pid)[0].rpartition(b"/")[2] == name.encode()


def _arguments(pid: int | str) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return [b""]


def is_init(pid: int) -> bool:
    """Whether it is the first process of its PID namespace."""
    return field(PROC / str(pid) / "status", "NSpid").split()[-1:] == ["1"]


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
