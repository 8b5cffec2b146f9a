"""The labels on what sandboxkit makes on an engine, and what they say about its owner: who made it, and whether it
lives.

Labels are what another process, or a later version, knows of a session. Their names and formats only ever grow;
`SCHEMA` counts what older versions would misread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from collections.abc import Mapping

import attrs

__all__ = [
    "CREATED",
    "DETACHED",
    "EXPIRES",
    "KEEP",
    "PREFIX",
    "ROLE",
    "SESSION",
    "SNAPSHOT",
    "TEMPORARY",
    "VOLUME",
    "VOLUME_SHARED",
    "Owner",
    "created_at",
    "expires_at",
    "is_true",
    "owner_labels",
]

PREFIX = "sandboxkit."
SCHEMA = "1"

SESSION = "sandboxkit.session"
"""The session's id; on a container and on the volumes that are its own."""
ROLE = "sandboxkit.role"
"""What is no session's: `agent` (a volume), `agent-installer` (a helper container), `workspace` (a named volume)."""
CREATED = "sandboxkit.created"
"""Seconds since the epoch by the maker's clock."""
EXPIRES = "sandboxkit.expires"
"""The same, when its time to live ends; absent without one."""
DETACHED = "sandboxkit.detached"
"""`1` when it outlives its owner."""
KEEP = "sandboxkit.keep"
"""`1` when it may be stopped and resumed, so that not running does not mean dead."""

SNAPSHOT = "sandboxkit.snapshot"
"""On an image: the id of the session that it was made of."""
TEMPORARY = "sandboxkit.temporary"
"""`1` on a volume that goes with its session."""
VOLUME = "sandboxkit.volume"
"""The named volume that a session's workspace is."""
VOLUME_SHARED = "sandboxkit.volume.shared"
"""`1` when that session takes others on the same volume."""

_HOST = "sandboxkit.owner.host"
_BOOT = "sandboxkit.owner.boot"
_NAMESPACE = "sandboxkit.owner.namespace"
_PID = "sandboxkit.owner.pid"
_STARTED = "sandboxkit.owner.started"


def owner_labels() -> dict[str, str]:
    """This process as an owner, and the time: for everything that is made."""
    host, boot, namespace = _here()
    pid = os.getpid()
    return {
        "sandboxkit.schema": SCHEMA,
        _HOST: host,
        _BOOT: boot,
        _NAMESPACE: namespace,
        _PID: str(pid),
        _STARTED: _process_started(pid) or "",
        CREATED: f"{time.time():.3f}",
    }


@attrs.frozen
class Owner:
    """The process that made something: `pid` in the PID namespace `namespace` of one boot of a host.

    `started` is in clock ticks since that boot: with the pid it names one process for good.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Owner | None:
        """None when the labels name nobody."""
        pid = labels.get(_PID, "")
        if not pid.isascii() or not pid.isdigit():
            return None
        return cls(
            labels.get(_HOST, ""), labels.get(_BOOT, ""), labels.get(_NAMESPACE, ""), int(pid), labels.get(_STARTED, "")
        )

    @property
    def is_alive(self) -> bool | None:
        """Whether the process lives; None where this process can't know: on another host, or in another namespace."""
        host, boot, namespace = _here()
        if not host or self.host != host or not self.started:
            return None
        if self.boot != boot:
            # The same name and another boot: this very host before it started anew, or another one of that name.
            return None
        if not namespace or self.namespace != namespace:
            return None
        return _process_started(self.pid) == self.started

    @property
    def is_this_process(self) -> bool:
        """Whether it is the caller."""
        return self.pid == os.getpid() and self.is_alive is True


def created_at(labels: Mapping[str, str]) -> float | None:
    """When, by the maker's clock; None when the labels do not say."""
    return _number(labels.get(CREATED, ""))


def expires_at(labels: Mapping[str, str]) -> float | None:
    """When its time to live ends; None without one."""
    return _number(labels.get(EXPIRES, ""))


def is_true(labels: Mapping[str, str], name: str) -> bool:
    """Whether a label that is a flag is set."""
    return labels.get(name) == "1"


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    return None


@functools.lru_cache(maxsize=1)
def _here() -> tuple[str, str, str]:
    # A container that shares its host's name and boot has a PID namespace of its own, in which pids mean others.
    return socket.gethostname(), _read("/proc/sys/kernel/random/boot_id").strip(), _pid_namespace()


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return ""


def _process_started(pid: int) -> str | None:
    # Field 22 of /proc/PID/stat (proc(5)). A zombie is dead: it holds nothing.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
