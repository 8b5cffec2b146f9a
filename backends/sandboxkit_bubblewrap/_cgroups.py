"""Limits by cgroups: version 2 where a subtree is this user's, version 1 for root. Where neither, by rlimits, roughly.

A group is a folder of the kernel's, made for one session and removed by its keeper (`_process`). A keeper that was
killed leaves it empty; the next process that makes sandboxes here removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from sandboxkit.config import Limits

__all__ = ["Controllers", "Group", "Values", "find_controllers"]

_MIB = 1024 * 1024
_PERIOD = 100_000  # microseconds, the kernel's own default
_NAME = re.compile(r"sandboxkit\.(\d+)\.(\d+)\.(\d+)\..*")
_V2_NAMES = {"memory": "memory", "pids": "pids", "cpus": "cpu"}


@attrs.frozen(kw_only=True)
class Values:
    """What is in force, read back. 0 for "no limit", None where nothing says."""

    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None


@attrs.frozen
class Group:
    """One session's folders, a single one on version 2, one a controller on version 1. The keeper makes them."""

    version: int
    folders: dict[str, Path]
    limits: Limits

    def orders(self) -> Iterator[str]:
        """For the keeper: what it makes, writes and enters, and later removes. See `_process._KEEPER`."""
        folders = sorted(set(self.folders.values()))
        yield from (f"+{folder}" for folder in folders)
        for controller, how, file, value in self._settings():
            if controller in self.folders:
                yield f"{how}{self.folders[controller] / file}\t{value}"
        # On version 1 a single thread may move alone, for which the kernel need not wait until no process forks
        # anywhere (cgroup_threadgroup_rwsem): some 10 ms for each folder.
        yield from (f"@{folder / ('cgroup.procs' if self.version == 2 else 'tasks')}" for folder in folders)

    def _settings(self) -> Iterator[tuple[str, str, str, str]]:
        # Controller, `=` or `?` for a file that may be missing, file, value.
        limits = self.limits
        if limits.memory_mb is not None:
            size = str(limits.memory_mb * _MIB)
            yield "memory", "=", "memory.max" if self.version == 2 else "memory.limit_in_bytes", size
            # Only where swap is accounted for. Without this, a sandbox would use the host's swap beyond its limit.
            if self.version == 2:
                yield "memory", "?", "memory.swap.max", "0"
            else:
                yield "memory", "?", "memory.memsw.limit_in_bytes", size
        if limits.pids is not None:
            yield "pids", "=", "pids.max", str(limits.pids)
        if limits.cpus is not None:
            quota = max(int(limits.cpus * _PERIOD), 1000)  # the kernel takes no less
            if self.version == 2:
                yield "cpus", "=", "cpu.max", f"{quota} {_PERIOD}"
            else:
                yield "cpus", "=", "cpu.cfs_period_us", str(_PERIOD)
                yield "cpus", "=", "cpu.cfs_quota_us", str(quota)

    def read(self) -> Values:
        """What the kernel says."""
        if self.version == 2:
            quota, _, period = self._read("cpus", "cpu.max").partition(" ")
        else:
            quota, period = self._read("cpus", "cpu.cfs_quota_us"), self._read("cpus", "cpu.cfs_period_us")
        memory = self._read("memory", "memory.max" if self.version == 2 else "memory.limit_in_bytes")
        return Values(
            memory_bytes=_count(memory),
            pids=_count(self._read("pids", "pids.max")),
            cpus=None if not quota else _count(quota) / int(period) if quota.isdigit() else 0.0,  # type: ignore[operator]
        )

    def remove(self) -> None:
        """Nothing when it is gone. A group with a process in it stays."""
        for folder in set(self.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def mounts(self) -> Iterator[tuple[Path, str]]:
        """The folders, and where the agent looks for them inside."""
        if self.version == 2:
            yield from ((folder, "/sys/fs/cgroup") for folder in set(self.folders.values()))
        else:
            for name in ("memory", "pids"):
                if name in self.folders:
                    yield self.folders[name], f"/sys/fs/cgroup/{name}"

    def _read(self, controller: str, file: str) -> str:
        folder = self.folders.get(controller)
        return "" if folder is None else _text(folder / file).strip()


@attrs.frozen
class Controllers:
    """Where groups can be made: by limit (`memory`, `pids`, `cpus`), the folder that a group's folder goes into."""

    version: int
    parents: dict[str, Path]

    def group(self, session: str, limits: Limits) -> Group:
        """For a session with these limits; nothing is made yet."""
        asked = {"memory": limits.memory_mb, "pids": limits.pids, "cpus": limits.cpus}
        name = f"sandboxkit.{_pid_namespace()}.{os.getpid()}.{_started(os.getpid())}.{session}"
        return Group(
            self.version,
            {limit: parent / name for limit, parent in self.parents.items() if asked[limit] is not None},
            limits,
        )

    def sweep(self) -> None:
        """Remove the groups of processes that are gone. One in which something runs can't be removed, and is not."""
        for parent in set(self.parents.values()):
            with contextlib.suppress(OSError):
                for folder in parent.glob("sandboxkit.*"):
                    match = _NAME.fullmatch(folder.name)
                    if match and match[1] == _pid_namespace() and _started(int(match[2])) != match[3]:
                        with contextlib.suppress(OSError):
                            folder.rmdir()


def find_controllers(*, proc: Path = Path("/proc/self"), is_root: bool | None = None) -> Controllers:
    """What this process can limit: version 2 if it offers anything, else version 1. May be empty."""
    own = dict(_own_paths(proc))
    found = _version_2(proc, own.get("", "/"))
    if found:
        return Controllers(2, found)
    if os.geteuid() == 0 if is_root is None else is_root:
        return Controllers(1, dict(_version_1(proc, own)))
    return Controllers(2 if _is_unified(proc) else 1, {})


def _version_2(proc: Path, own: str) -> dict[str, Path]:
    # A group can be made in this process's own or one above it, where a process may be moved: the nearest in which the
    # controllers are handed down to the children. A group with processes of its own, except the root, can't do that
    # (cgroup-v2.rst, "Delegation").
    for _, mounted, mount in _mounts(proc, "cgroup2"):
        folder = _below(mount, mounted, own)
        while folder is not None:
            found = _handed_down(folder)
            if {"memory", "pids"} <= found.keys():
                return found
            folder = folder.parent if folder != mount else None
    return {}


def _handed_down(folder: Path) -> dict[str, Path]:
    if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
        return {}
    offered = _text(folder / "cgroup.controllers").split()
    for name in _V2_NAMES.values():
        if name in offered and name not in _text(folder / "cgroup.subtree_control").split():
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
    active = _text(folder / "cgroup.subtree_control").split()
    return {limit: folder for limit, name in _V2_NAMES.items() if name in active}


def _version_1(proc: Path, own: dict[str, str]) -> Iterator[tuple[str, Path]]:
    for limit, name in _V2_NAMES.items():
        for options, mounted, mount in _mounts(proc, "cgroup"):
            folder = _below(mount, mounted, own.get(name, "/"))
            if name in options and folder is not None and os.access(folder, os.W_OK) and not _is_read_only(folder):
                yield limit, folder
                break


def _own_paths(proc: Path) -> Iterator[tuple[str, str]]:
    # "id:controllers:path", no controllers for version 2; cgroups(7).
    for line in _text(proc / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _mounts(proc: Path, kind: str) -> Iterator[tuple[Sequence[str], str, Path]]:
    # proc_pid_mountinfo(5): fields, some of them optional, a dash, then type, source and the file system's own options.
    for line in _text(proc / "mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split(" ")[0] == kind:
            yield rest.split(" ")[2].split(","), fields.split(" ")[3], Path(fields.split(" ")[4])


def _below(mount: Path, mounted: str, own: str) -> Path | None:
    # `mounted` is the group that is to be seen at the mount point: in a container it may be its own one.
    if own == mounted or not own.startswith(mounted.rstrip("/") + "/"):
        return mount if own == mounted or mounted == "/" else None
    folder = mount / own[len(mounted.rstrip("/")) + 1 :]
    return folder if folder.is_dir() else mount


def _is_unified(proc: Path) -> bool:
    return any(mount == Path("/sys/fs/cgroup") for _, _, mount in _mounts(proc, "cgroup2"))


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _count(text: str) -> int | None:
    # Version 1 writes its highest number of pages where there is no limit, or -1.
    if not text:
        return None
    return int(text) if text.isdigit() and int(text) < 1 << 62 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _started(pid: int) -> str:
    # Field 22 of /proc/PID/stat: with the pid it names a process for good.
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
