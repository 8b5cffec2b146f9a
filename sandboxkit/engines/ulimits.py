"""The resource limits that every container gets explicitly, no higher than the engine may set them.

An engine without CAP_SYS_RESOURCE fails to start a container whose hard limit is above its own, and Podman's defaults
are (seen with Podman 4.3 on a host with a hard limit of 20000 files: "setrlimit RLIMIT_NOFILE: Operation not
permitted").
"""

from __future__ import annotations

import attrs

from .sockets import hard_limit, listener_pid

__all__ = ["Ulimit", "ulimits_for"]

_MOST = 1024 * 1024
_SOFT_FILES = 64 * 1024  # programs that close "every descriptor" one by one, or allocate by it, crawl at a million
# Where the engine's own limits can't be read: what any Linux host grants (4096 is the kernel's own hard default for
# files, INR_OPEN_MAX in include/uapi/linux/fs.h).
_UNKNOWN_FILES = 4096
_UNKNOWN_PROCESSES = 4096


@attrs.frozen
class Ulimit:
    """One limit, by the name that both engines use (`nofile`)."""

    name: str
    soft: int
    hard: int


def ulimits_for(socket_path: str | None, timeout: float) -> tuple[Ulimit, ...]:
    """The limits for containers of the engine that listens at this unix socket; None when it is reached otherwise."""
    files, processes = _UNKNOWN_FILES, _UNKNOWN_PROCESSES
    pid = listener_pid(socket_path, timeout) if socket_path else None
    if pid:
        try:
            files = min(hard_limit(pid, "Max open files") or _MOST, _MOST)
            processes = min(hard_limit(pid, "Max processes") or _MOST, _MOST)
        except OSError:  # gone meanwhile, or /proc is mounted with hidepid
            pass
    return (
        Ulimit("nofile", min(files, _SOFT_FILES), files),
        Ulimit("nproc", processes, processes),
        Ulimit("core", 0, 0),
    )
