"""What a sandbox may use and how it is set up: plain frozen values, checked when they are made."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Sequence
from typing import Literal

import attrs

from . import _validate as check
from ._binds import checked_bind
from ._network import Network, NetworkMode

__all__ = ["Lifecycle", "Limits", "Network", "NetworkMode", "Pull", "Security", "Workspace", "WorkspaceKind"]

_LONGEST = 49 * 24 * 3600  # the protocol counts milliseconds in 32 bits
MIB = 1024 * 1024


class Pull(str, enum.Enum):
    """When an image is fetched: only if the engine lacks it, never, or before every session."""

    MISSING = "missing"
    NEVER = "never"
    ALWAYS = "always"


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of a session. A call or a tool can only narrow them, never widen.

    Seconds are floats, `_mb` are MiB, `_bytes` bytes. `None` means no bound of ours.

    - `timeout`: for a command whose call names none. `max_timeout`: the most a call may name.
    - `max_output_bytes`: kept of each of stdout and stderr; the rest is counted, not kept.
    - `max_file_bytes`: the largest file read or written through the session.
    - `max_processes`: live managed processes (there is room for 128). `max_concurrent_execs`: commands at once; a
      further one waits for its turn (within its own timeout), or with `when_busy="error"` raises SessionBusyError.
    - `memory_mb`, `cpus`, `pids`, `disk_mb`: of the container, set on the engine. `pids` counts the agent and a
      supervisor for each command too.
    - `allow_unenforced`: go on where the engine would ignore a limit, instead of LimitsNotEnforceableError.
    """

    timeout: float | None = 30.0
    max_timeout: float | None = None
    max_output_bytes: int = MIB
    max_file_bytes: int = 10 * MIB
    max_processes: int = 16
    max_concurrent_execs: int = 256
    when_busy: Literal["wait", "error"] = "wait"
    memory_mb: int | None = 2048
    cpus: float | None = None
    pids: int | None = 512
    disk_mb: int | None = None
    allow_unenforced: bool = False

    def __attrs_post_init__(self) -> None:
        check.number("limits.timeout", self.timeout, optional=True)
        check.number("limits.max_timeout", self.max_timeout, optional=True)
        check.integer("limits.max_output_bytes", self.max_output_bytes, minimum=0, maximum=1 << 40)
        check.integer("limits.max_file_bytes", self.max_file_bytes, minimum=0)
        check.integer("limits.max_processes", self.max_processes, minimum=0)
        check.integer("limits.max_concurrent_execs", self.max_concurrent_execs, minimum=1, maximum=512)
        if self.when_busy not in ("wait", "error"):
            check.fail("limits.when_busy", self.when_busy, "'wait' or 'error'")
        # 6 is Docker's own minimum; the bytes have to fit the engines' signed 64 bits.
        check.integer("limits.memory_mb", self.memory_mb, minimum=6, maximum=1 << 40, optional=True)
        check.number("limits.cpus", self.cpus, minimum=0.01, exclusive=False, optional=True)
        check.integer("limits.pids", self.pids, minimum=16, maximum=1 << 22, optional=True)  # Linux's PID_MAX_LIMIT
        check.integer("limits.disk_mb", self.disk_mb, minimum=1, maximum=1 << 40, optional=True)
        check.boolean("limits.allow_unenforced", self.allow_unenforced)
        if self.timeout is not None and self.max_timeout is not None and self.timeout > self.max_timeout:
            check.fail("limits.timeout", self.timeout, f"at most limits.max_timeout, {self.max_timeout:g}")


@attrs.frozen(kw_only=True)
class Security:
    """How tightly a sandbox is closed, on top of what always holds.

    Always: every capability dropped, no-new-privileges, the engine's default seccomp profile, no host mounts, no log on
    disk. `readonly_rootfs`: only the workspace and a `/tmp` in memory can be written. `runtime`: another OCI runtime
    the engine knows, such as `runsc`. `seccomp`: the JSON text of a profile to use instead of the engine's. `user`:
    `name`, `uid` or `uid:gid` inside the container instead of the image's.
    """

    readonly_rootfs: bool = False
    runtime: str | None = None
    seccomp: str | None = None
    user: str | None = None

    def __attrs_post_init__(self) -> None:
        check.boolean("security.readonly_rootfs", self.readonly_rootfs)
        for name in ("runtime", "user"):
            value = getattr(self, name)
            if value is not None:
                check.text(f"security.{name}", value, accepted="a non-empty string or None")
        if self.seccomp is not None:
            check.text("security.seccomp", self.seccomp, accepted="the JSON text of a seccomp profile, or None")
            try:
                profile = json.loads(self.seccomp)
            except ValueError:
                profile = None
            if not isinstance(profile, dict) or "defaultAction" not in profile:
                check.fail("security.seccomp", self.seccomp, "the JSON text of a profile with a defaultAction, or None")


class WorkspaceKind(str, enum.Enum):
    """Where a workspace's files live."""

    EPHEMERAL = "ephemeral"
    TMPFS = "tmpfs"
    VOLUME = "volume"
    BIND = "bind"


@attrs.frozen
class Workspace:
    """The folder commands start in and the session's files live in. Made by the class methods."""

    kind: WorkspaceKind = WorkspaceKind.EPHEMERAL
    size_mb: int | None = None
    name: str | None = attrs.field(default=None, kw_only=True)
    create: bool = attrs.field(default=True, kw_only=True)
    keep: bool = attrs.field(default=True, kw_only=True)
    shared: bool = attrs.field(default=False, kw_only=True)
    host_path: str | None = attrs.field(default=None, kw_only=True)
    read_only: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.kind, WorkspaceKind):
            check.fail("workspace", self.kind, "Workspace.ephemeral(), .tmpfs(), .volume(name) or .bind(host_path)")

    @classmethod
    def ephemeral(cls) -> Workspace:
        """An anonymous volume on the engine's disk that dies with the session: the default."""
        return cls(WorkspaceKind.EPHEMERAL)

    @classmethod
    def tmpfs(cls, *, size_mb: int = 64) -> Workspace:
        """Memory, at most `size_mb` MiB; it counts against `Limits.memory_mb`."""
        check.integer("workspace.size_mb", size_mb, minimum=1)
        return cls(WorkspaceKind.TMPFS, size_mb)

    @classmethod
    def volume(cls, name: str, *, create: bool = True, keep: bool = True, shared: bool = False) -> Workspace:
        """A named volume of the engine's, whose files are there again for the next session.

        - `create`: make it when it is missing. `keep=False`: what was made for this session goes with it.
        - `shared`: other sessions may use it at the same time, if they say so too. Without it a second session is
          refused
          with SessionBusyError, from whatever process or host it comes.

        The folder is given to the session's user; with `shared` it is writable for everybody.
        """
        check.volume_name("workspace.name", name)
        for field, value in (("create", create), ("keep", keep), ("shared", shared)):
            check.boolean(f"workspace.{field}", value)
        return cls(WorkspaceKind.VOLUME, name=name, create=create, keep=keep, shared=shared)

    @classmethod
    def bind(
        cls,
        host_path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        allowed: Sequence[str | os.PathLike[str]] = (),
    ) -> Workspace:
        """A folder of this host, for trusted use: what runs in the sandbox reads and, unless `read_only`, writes there.

        It must belong to the caller, or lie in a folder that `allowed` lists; symbolic links are resolved now. Refused
        with ConfigError: `/`, a home folder or one above it, folders of the system, one that holds an engine's socket,
        hidden folders of a home, and any engine that may run on another host. Unless `Security.user` is set,
        commands run as the folder's owner.
        """
        check.boolean("workspace.read_only", read_only)
        return cls(WorkspaceKind.BIND, host_path=checked_bind(host_path, allowed), read_only=read_only)


@attrs.frozen(kw_only=True)
class Lifecycle:
    """When a session ends by itself, whoever lives or does not: the agent inside holds both clocks.

    - `ttl`: seconds from its start; a stopped session's clock runs on. `idle_timeout`: seconds without a command
      or managed process running and without a request. None: no bound.
    """

    ttl: float | None = None
    idle_timeout: float | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("ttl", "idle_timeout"):
            value = getattr(self, name)
            check.number(f"lifecycle.{name}", value, optional=True)
            if value is not None and value > _LONGEST:
                check.fail(f"lifecycle.{name}", value, f"at most {_LONGEST} seconds, or None")


def checked(name: str, value: object, kind: type, accepted: str) -> None:
    """`value` is a `kind`, or ConfigError."""
    if not isinstance(value, kind):
        check.fail(name, value, accepted)


def pull_policy(value: Pull | str) -> Pull:
    """A Pull from itself or its string."""
    try:
        return Pull(value)
    except ValueError:
        check.fail("pull", value, _choices(list(Pull)))


def _choices(members: Sequence[enum.Enum]) -> str:
    return ", ".join(repr(member.value) for member in members)
