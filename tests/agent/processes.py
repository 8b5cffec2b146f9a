"""Processes on this machine, as /proc shows them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driver import Agent

DEADLINE = 30.0


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat behind the name: state, ppid, ...; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def all_children() -> dict[int, list[int]]:
    """Of every process, from one look at all of them."""
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat_fields(int(entry))) is not None:
            found.setdefault(int(fields[1]), []).append(int(entry))
    return found


def children(pid: int) -> list[int]:
    return all_children().get(pid, [])


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def commands_of(agent: Agent) -> list[int]:
    """Living processes below the agent that run something else than the agent's own program."""
    below = descendants(agent.process.pid)
    lines = {pid: command_line(pid) for pid in below if is_alive(pid)}
    return [pid for pid, line in lines.items() if line and b"--workspace" not in line]  # none: it is just ending


def supervisors_of(agent: Agent) -> list[int]:
    """Processes below the agent that run the agent's program: supervisors, and the process that waits in the spare."""
    return [pid for pid in descendants(agent.process.pid) if b"--workspace" in command_line(pid)]


def wait_gone(pids: Collection[int]) -> None:
    """Not even zombies are left of them."""
    wait_until(lambda: all(stat_fields(pid) is None for pid in pids), f"{list(pids)} are gone")


def descendants(pid: int) -> list[int]:
    known = all_children()
    found = [pid]
    for parent in found:
        found += known.get(parent, [])
    return found[1:]
