"""Limits without an engine: sizes of what is kept in memory, and rlimits, second best where no cgroup can be had."""

from __future__ import annotations

import ctypes
import platform
import re
import resource

import attrs

from sandboxkit.config import Limits, Workspace

from ._cgroups import Controllers
from ._view import Sizes

__all__ = ["Fallback", "sizes_for"]

_MIB = 1024 * 1024
_SHARED_MEMORY = 64 * _MIB  # as the engines have it
_MOST_FILES = 1024 * 1024
_SOFT_FILES = 64 * 1024  # programs that allocate by the limit, or close "every descriptor", crawl at a million
_MOST_PROCESSES = 1024 * 1024
_AGENT = 16 * _MIB  # the agent itself has to start


def sizes_for(limits: Limits, workspace: Workspace) -> Sizes:
    """The workspace: what it asks for, else `disk_mb`, else half of `memory_mb`; /tmp half of the workspace.

    All of it counts as memory of the sandbox where a cgroup counts. Half and a quarter of it leave commands a quarter,
    so that a full workspace is "no space left" and not the end of everything for want of memory. Without any of them it
    is the kernel's own measure: half of the machine's memory.
    """
    if workspace.size_mb is not None:
        size = workspace.size_mb * _MIB
    elif limits.disk_mb is not None:
        size = limits.disk_mb * _MIB
    else:
        size = (limits.memory_mb or 0) * _MIB // 2
    tmp = size // 2 or _half_of_memory() // 2
    return Sizes(workspace=size or _half_of_memory(), tmp=tmp, shared_memory=min(_SHARED_MEMORY, tmp))


def _half_of_memory() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(file.readline().split()[1]) * 1024 // 2


@attrs.frozen(kw_only=True)
class Fallback:
    """What stands in for the cgroups that are missing."""

    memory: bool
    pids: bool
    cpus: bool
    pids_are_its_own: bool
    landlock: bool

    @classmethod
    def where(cls, controllers: Controllers, privileged: bool) -> Fallback:
        """For this host and this process."""
        missing = {"memory", "pids", "cpus"} - controllers.parents.keys()
        return cls(
            memory="memory" in missing,
            pids="pids" in missing,
            cpus="cpus" in missing,
            # Root's sandboxes are each a user of their own; others count by themselves from kernel 5.14 on (user
            # namespaces have their own count of a user's processes since then).
            pids_are_its_own=privileged or _kernel() >= (5, 14),
            landlock=_has_landlock(),
        )

    def rlimits(self, limits: Limits) -> list[tuple[int, int, int]]:
        """For the agent, and so for every command: number, soft and hard value."""
        found = [
            (resource.RLIMIT_NOFILE, _SOFT_FILES, _MOST_FILES),
            (resource.RLIMIT_NPROC, _MOST_PROCESSES, _MOST_PROCESSES),
        ]
        if self.pids and self.pids_are_its_own and limits.pids is not None:
            found[1] = (resource.RLIMIT_NPROC, limits.pids, limits.pids)
        if self.memory and limits.memory_mb is not None:
            size = max(limits.memory_mb * _MIB, _AGENT)
            found.append((resource.RLIMIT_DATA, size, size))
        return found

    def notes(self) -> tuple[str, ...]:
        """See EngineInfo.notes."""
        found = []
        if self.memory:
            found.append(
                "limits.memory_mb: no cgroup can be made here, so it bounds the data of each process (RLIMIT_DATA), "
                "not of all together."
            )
        if self.pids and self.pids_are_its_own:
            found.append(
                "limits.pids: no cgroup can be made here, so it bounds the user's processes (RLIMIT_NPROC) inside."
            )
        elif self.pids:
            found.append(
                "limits.pids: no cgroup can be made here, and this kernel can't count by sandbox: it bounds nothing."
            )
        if self.cpus:
            found.append("limits.cpus: no cgroup can be made here: it bounds nothing.")
        if not self.landlock:
            found.append("This kernel has no landlock: what can be written is bounded by mounts and permissions alone.")
        found.append("Workspace and /tmp are kept in memory.")
        return tuple(found)


def _has_landlock() -> bool:
    # landlock_create_ruleset(2), the same number on every CPU, asked for its version. A kernel may know it and have it
    # switched off.
    version: int = ctypes.CDLL(None).syscall(444, None, 0, 1)
    return version > 0


def _kernel() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(match[1]), int(match[2])) if match else (0, 0)
