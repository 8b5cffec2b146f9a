"""BubblewrapBackend: the Backend contract without an engine. A session is a few processes of this host, no more."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from sandboxkit.backend import (
    AGENT_FOLDER,
    WORKSPACE_FOLDER,
    AgentBundle,
    ByteStream,
    ContainerSpec,
    ContainerStatus,
    Effective,
    EngineInfo,
    Feature,
    ProgressCallback,
)
from sandboxkit.config import Pull, Security
from sandboxkit.errors import ConfigError, EngineError, SessionNotFoundError, UnsupportedError
from sandboxkit.streams import SocketStream

from . import _binary
from ._cgroups import Controllers, Group, Values, find_controllers
from ._descriptor import Descriptor
from ._limits import Fallback, sizes_for
from ._paths import extra_folders
from ._privilege import SETUP_CAPABILITIES, is_privileged, mapping_for
from ._process import Process, Record, Start, end_all, records
from ._rootfs import ROOTFS, Root, open_root
from ._view import User, View, default_path, host_path, user_named

__all__ = ["BubblewrapBackend"]

HOST = "host"
"""The image that is this host."""

FEATURES = frozenset(
    {
        Feature.ISOLATION,
        Feature.LIMITS,
        Feature.READONLY_ROOTFS,
        Feature.USERS,
        Feature.TMPFS,
        Feature.HOST_FILES,
        Feature.CRASH_CLEANUP,
    }
)

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--hostname", "sandbox", "--cap-drop", "ALL"),
)


class _Errors(Descriptor):
    """A file in memory for what bubblewrap and the agent have to say."""

    def __init__(self) -> None:
        super().__init__(os.memfd_create, "sandboxkit", os.MFD_CLOEXEC)

    def last(self, size: int) -> str:
        """The end of what was said."""
        if self.closed:
            return ""
        start = max(os.fstat(self.fileno()).st_size - size, 0)
        return os.pread(self.fileno(), size, start).decode("utf-8", "replace").strip()


class _Stream(SocketStream):
    """The agent's socket, and what is said beside it."""

    def __init__(self, sock: socket.socket, errors: _Errors) -> None:
        super().__init__(sock)
        self._errors = errors

    def diagnostics(self) -> str:
        """See ByteStream.diagnostics."""
        return self._errors.last(8192)

    def close(self) -> None:
        """See ByteStream.close."""
        super().close()
        self._errors.close()


@attrs.define(kw_only=True, eq=False)
class _Container:
    """One session, from `create` to `remove`."""

    spec: ContainerSpec
    name_lock: socket.socket
    user: User = attrs.field(factory=User)
    folders: list[str] = attrs.field(factory=list)
    root: Root | None = None
    group: Group | None = None
    end: socket.socket | None = None
    errors: _Errors | None = None
    process: Process | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it ran, and nothing of it does any more."""
        return self.process is not None and self.process.has_ended

    def close(self) -> None:
        """Everything but the process."""
        for end in (self.end, self.name_lock):
            if end is not None:
                end.close()
        self.errors = None
        if self.root is not None:
            self.root.close()
        if self.group is not None:
            self.group.remove()


class BubblewrapBackend:
    """See `sandboxkit.backend.Backend`, whose docstrings hold here; docs/bubblewrap.md tells what it isolates."""

    def __init__(self, bubblewrap: _binary.Bubblewrap, *, timeout: float) -> None:
        self._bubblewrap = bubblewrap
        self._timeout = timeout
        self._privileged = is_privileged()
        self._controllers: Controllers = find_controllers()
        self._controllers.sweep()
        self._fallback = Fallback.where(self._controllers, self._privileged)
        # Each use of it is one step for other threads. A lock would not be given back if Ctrl-C came at a bad moment.
        self._containers: dict[str, _Container] = {}

    @property
    def name(self) -> str:
        """See Backend.name."""
        return "bubblewrap"

    @property
    def features(self) -> frozenset[Feature]:
        """See Backend.features."""
        return FEATURES

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> BubblewrapBackend:
        """See Backend.connect: `url` is `bwrap://` and a program's path. Makes one sandbox, to see that it can."""
        return cls(_binary.find(url, timeout), timeout=timeout)

    def info(self) -> EngineInfo:
        """See Backend.info."""
        return EngineInfo(
            backend=self.name,
            url=self._bubblewrap.url,
            version=self._bubblewrap.version,
            api_version=self._bubblewrap.version,
            arch=platform.machine(),
            rootless=not self._privileged,
            cgroup_version=self._controllers.version,
            storage_driver="tmpfs",
            enforceable=frozenset({"disk", *self._controllers.parents}),
            notes=self._fallback.notes(),
        )

    def ensure_image(self, image: str, pull: Pull, progress: ProgressCallback | None = None) -> None:
        """See Backend.ensure_image: there is nothing to fetch, but a tar to unpack."""
        if image == HOST:
            return
        if not image.startswith(ROOTFS):
            raise ConfigError(
                f"image is {image!r}; accepted by the backend {self.name}: {HOST!r} (or Sandbox.host()) for the host's "
                f"own programs, or {ROOTFS!r} and the absolute path of a root filesystem. Docker has images.",
                details={"field": "image"},
            )
        open_root(image).close()

    def install_agent(self, agent: AgentBundle, image: str) -> None:
        """See Backend.install_agent: it is mounted from where it is installed."""

    def create(self, spec: ContainerSpec) -> str:
        """See Backend.create."""
        self._collect()
        self._check(spec.security)
        container = _Container(spec=spec, name_lock=_lock_name(spec.name))
        try:
            container.folders = extra_folders(spec.extra_paths)
            if spec.image != HOST:
                container.root = open_root(spec.image)
            container.user = _user(spec.security.user, container.root)
            container.group = self._controllers.group(spec.name, spec.limits)
            self._containers[spec.name] = container
        except BaseException:
            self._containers.pop(spec.name, None)
            container.close()
            raise
        return spec.name

    def attach(self, container_id: str) -> ByteStream:
        """See Backend.attach."""
        container = self._container(container_id)
        ours, container.end = socket.socketpair()
        container.errors = _Errors()
        return _Stream(ours, container.errors)

    def start(self, container_id: str) -> None:
        """See Backend.start."""
        container = self._container(container_id)
        assert container.end is not None, "attach comes first"
        assert container.errors is not None
        view = View()
        try:
            start = self._start(container, view)
            container.process = Process(start, container.end.fileno(), container.errors.fileno(), self._timeout)
        except OSError as error:
            raise EngineError(f"The sandbox can't be started: {error}") from error
        finally:
            view.close()
            # The sandbox's alone from here on: its end must show as the end of the stream.
            container.end.close()
            container.end = container.errors = None

    def inspect(self, container_id: str) -> ContainerStatus:
        """See Backend.inspect."""
        container = self._containers.get(container_id)
        if container is None:
            for record in records():
                if record.name == container_id:
                    return ContainerStatus(id=record.name, name=record.name, running=True, labels=record.labels)
            raise SessionNotFoundError(f"There is no sandbox {container_id}.")
        if container.has_ended:
            raise SessionNotFoundError(f"The sandbox {container_id} has ended.")
        return ContainerStatus(
            id=container_id,
            name=container_id,
            running=container.process is not None,
            labels=container.spec.labels,
            effective=_effective(container),
        )

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        """See Backend.list: those of other processes of this user too."""
        self._collect()
        waiting = [found.spec for found in list(self._containers.values()) if found.process is None]
        found = {record.name: (True, record.labels) for record in records()}
        found.update({spec.name: (False, spec.labels) for spec in waiting if spec.name not in found})
        return [
            ContainerStatus(id=name, name=name, running=running, labels=has)
            for name, (running, has) in sorted(found.items())
            if all(key in has and value in ("", has[key]) for key, value in labels.items())
        ]

    def remove(self, container_id: str) -> None:
        """See Backend.remove."""
        # Whoever takes it out of the table ends it; it is back when that fails.
        container = self._containers.pop(container_id, None)
        if container is None:
            for record in records():
                if record.name == container_id:
                    end_all(record, self._timeout)
            return
        try:
            if container.process is not None:
                container.process.remove()
        except BaseException:
            self._containers[container_id] = container
            raise
        container.close()

    def _collect(self) -> None:
        # What ended by itself and was never removed: an engine would have done it.
        for name, container in list(self._containers.items()):
            if container.has_ended:
                self.remove(name)

    def close(self) -> None:
        """See Backend.close: there is no connection and no service."""

    def _container(self, container_id: str) -> _Container:
        container = self._containers.get(container_id)
        if container is None:
            raise SessionNotFoundError(f"There is no sandbox {container_id}.")
        return container

    def _check(self, security: Security) -> None:
        for name, value in (("runtime", security.runtime), ("seccomp", security.seccomp)):
            if value is not None:
                raise UnsupportedError(
                    f"The backend {self.name} has no security.{name}. Leave it out, or use another backend."
                )

    def _start(self, container: _Container, view: View) -> Start:
        spec, user, group = container.spec, container.user, container.group
        assert group is not None
        agent = [f"{AGENT_FOLDER}/agent", *spec.agent_args, "--confine"]
        maps = None
        view.add(*_NAMESPACES)
        if self._privileged:
            # Bubblewrap sets everything up as root of the host, who can mount what root can read; the agent then
            # becomes somebody who is nobody outside.
            for capability in SETUP_CAPABILITIES:
                view.add("--cap-add", capability)
            maps = (mapping_for("uid", user.uid, spec.name).lines, mapping_for("gid", user.gid, spec.name).lines)
            agent += ["--user", f"{user.uid}:{user.gid}"]
        else:
            view.add("--uid", str(user.uid), "--gid", str(user.gid))
        view.add("--clearenv")
        for name, value in {**_environment(container), **spec.env}.items():
            view.add("--setenv", name, value)
        if container.root is None:
            view.of_host(user)
        else:
            view.of_root(container.root.folder)
        view.of_kernel(sizes_for(spec.limits, spec.workspace))
        view.of_agent(_agent_path(spec.agent))
        for folder in container.folders:
            view.mount(folder, folder)
        for source, place in group.mounts():
            view.mount(source, place)
        view.add("--chdir", WORKSPACE_FOLDER)
        return Start(
            bubblewrap=[self._bubblewrap.path, *view.sealed()],
            command=agent,
            descriptors=view.descriptors,
            orders=list(group.orders()),
            limits=self._fallback.rlimits(spec.limits),
            maps=maps,
            record=Record(spec.name, spec.labels),
        )


def _lock_name(name: str) -> socket.socket:
    # An abstract socket: the kernel holds the name for as long as this process lives, and no longer (unix(7)).
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0sandboxkit/{os.geteuid()}/{name}")
    except OSError as error:
        lock.close()
        raise ConfigError(
            f"id: there is a sandbox of the name {name} already ({error.strerror}); accepted: another id, or none",
            details={"field": "id"},
        ) from None
    return lock


def _user(asked: str | None, root: Root | None) -> User:
    if asked is None:
        return User()
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", asked)
    if match:
        return User(int(match[1]), int(match[2] or match[1]))
    user = user_named(asked, root.folder if root is not None else None)
    if user is None:
        raise ConfigError(
            f"security.user is {asked!r}; accepted: uid, uid:gid, or a name in the sandbox's /etc/passwd",
            details={"field": "security.user"},
        )
    return user


def _environment(container: _Container) -> dict[str, str]:
    if container.root is not None:
        return {"PATH": default_path(), "HOME": WORKSPACE_FOLDER}
    inherited = {name: os.environ[name] for name in ("LANG", "TERM") if os.environ.get(name)}
    return {"PATH": host_path(container.folders), "LANG": "C.UTF-8", **inherited, "HOME": WORKSPACE_FOLDER}


def _agent_path(agent: AgentBundle) -> Path:
    try:
        return agent.paths[platform.machine()]
    except KeyError:
        raise EngineError(
            f"There is no agent for {platform.machine()}: sandboxkit runs on {' and '.join(sorted(agent.paths))}."
        ) from None


def _effective(container: _Container) -> Effective:
    values = container.group.read() if container.group is not None else Values()
    network = None
    if container.process is not None:
        inside = container.process.namespaces.get("net-namespace")
        if inside is not None:
            network = "none" if inside != os.stat("/proc/self/ns/net").st_ino else "host"
    return Effective(network=network, memory_bytes=values.memory_bytes, pids=values.pids, cpus=values.cpus)
