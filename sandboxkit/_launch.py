"""From a checked ContainerSpec to a connection whose settings have been proved, or to nothing at all."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Mapping

import attrs

from ._channel import Connection
from ._detached import connect_agent
from ._frames import Hello
from ._labels import SESSION
from ._volumes import claim
from .backend import (
    AgentMissing,
    Backend,
    ByteStream,
    ContainerSpec,
    ContainerStatus,
    Effective,
    EngineInfo,
    Feature,
)
from .config import Limits, Network, NetworkMode
from .errors import EngineError, LimitsNotEnforceableError, SandboxError, SessionLostError, SessionNotFoundError
from .port_results import PublishedPort

__all__ = ["Launched", "check_limits", "launch", "prove", "published_ports", "wait_hello"]

HELLO_TIMEOUT = 60.0
"""Seconds from the container's start to the agent's first frame, on a badly loaded host."""

_ATTEMPTS = 6
_PAUSE = 0.05


@attrs.frozen
class Launched:
    """A running container and the connection to its agent. Whoever holds it removes the container."""

    container_id: str
    connection: Connection
    published: Mapping[int, PublishedPort] = attrs.field(factory=dict)

    def discard(self, backend: Backend) -> None:
        """End both, on the way out of an error: what fails here is not told."""
        self.connection.close(SessionLostError("The session could not be created."))
        with contextlib.suppress(SandboxError):
            backend.remove(self.container_id)


def check_limits(limits: Limits, info: EngineInfo) -> None:
    """LimitsNotEnforceableError for the first limit the engine would ignore in silence, unless that is allowed."""
    if limits.allow_unenforced:
        return
    asked = {"memory": limits.memory_mb, "pids": limits.pids, "cpus": limits.cpus, "disk": limits.disk_mb}
    names = {"memory": "memory_mb", "pids": "pids", "cpus": "cpus", "disk": "disk_mb"}
    missing = [names[key] for key, value in asked.items() if value is not None and key not in info.enforceable]
    if missing:
        kind = "rootless " if info.rootless else ""
        them = "them" if len(missing) > 1 else "it"
        raise LimitsNotEnforceableError(
            f"{kind}{info.backend} {info.version} at {info.url} (cgroup v{info.cgroup_version}) would ignore "
            f"{', '.join('limits.' + name for name in missing)} in silence. Pass Limits(allow_unenforced=True) to go "
            f"on without, set {them} to None, or use an engine that enforces {them}.",
            details={"limits": missing},
        )


def launch(backend: Backend, spec: ContainerSpec) -> Launched:
    """Create, attach, start, and prove. On any exception, Ctrl-C included, the container is gone.

    The agent's volume may be filled by another process at this moment, or have been pruned: then the start fails with
    AgentMissing and is tried again on a volume filled anew.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:  # Several processes heal at once: each waits a different while, so that they do not fill in step.
            threading.Event().wait(random.uniform(0, _PAUSE * 2**attempt))  # noqa: S311 - no secret
        backend.install_agent(spec.agent, spec.image)
        try:
            return _attempt(backend, spec)
        except AgentMissing as missing:
            reason = str(missing)
    raise EngineError(
        f"The agent could not be put into its volume {spec.agent.volume} in {_ATTEMPTS} attempts ({reason}). "
        "Remove that volume, and check that the engine can write volumes.",
        retryable=True,
    )


def _attempt(backend: Backend, spec: ContainerSpec) -> Launched:
    made: list[str] = []
    connection: Connection | None = None
    stream: ByteStream | None = None
    try:
        made.extend(map(backend.create, (spec,)))  # so that Ctrl-C can't come before the id is known here
        container_id = made[0]
        claim(backend, spec.workspace, spec.labels.get(SESSION, ""))
        if spec.detached:
            backend.start(container_id)
            connection, hello = connect_agent(backend, container_id)
            status = backend.inspect(container_id)
        else:
            stream = backend.attach(container_id)
            backend.start(container_id)
            connection = Connection(stream)
            connection.start()
            status, hello = _status(backend, container_id, connection), wait_hello(connection)
        if hello.facts.get("build") != spec.agent.build:
            raise AgentMissing(f"the volume holds agent {hello.facts.get('build')}, not {spec.agent.build}")
        prove(backend, spec, status, hello)
        connection.shorten(status.pid)
        return Launched(container_id, connection, published_ports(spec.network, status))
    except BaseException:
        gone = SessionLostError("The session could not be created.")
        if connection is not None:
            connection.close(gone)
        elif stream is not None:
            stream.close()
        for container_id in made:
            with contextlib.suppress(SandboxError):  # the first error is the one to tell
                backend.remove(container_id)
        raise


def _status(backend: Backend, container_id: str, connection: Connection) -> ContainerStatus:
    try:
        return backend.inspect(container_id)
    except SessionNotFoundError:
        wait_hello(connection)  # says why the container ended, if the agent could
        raise


def wait_hello(connection: Connection) -> Hello:
    """The agent's first frame, of a container that was just started; EngineError with what it said when it is gone."""
    try:
        return connection.wait_hello(HELLO_TIMEOUT)
    except SessionLostError as lost:
        raise EngineError(f"The container started, but its agent did not. {lost}", retryable=True) from lost


def prove(backend: Backend, spec: ContainerSpec, status: ContainerStatus, hello: Hello) -> None:
    """EngineError naming every setting that was asked for and is not in force, by the engine's word or from inside."""
    wrong = _from_engine(backend, spec, status) + _from_inside(backend, spec, hello)
    if Feature.PUBLISHED_PORTS in backend.features:
        wrong += _wrongly_published(spec.network, status.effective)
    if wrong:
        raise EngineError(
            f"{backend.name} did not put every setting in force, so the session was not created: {'; '.join(wrong)}.",
            details={"settings": wrong},
        )


def _from_engine(backend: Backend, spec: ContainerSpec, status: ContainerStatus) -> list[str]:
    wrong, effective = [], status.effective

    def expect(name: str, value: object, wanted: object) -> None:
        if value is not None and value != wanted:
            wrong.append(f"{name} is {value} by the engine's inspect, not {wanted}")

    if Feature.ISOLATION in backend.features:
        expect("capabilities_dropped", effective.capabilities_dropped, True)
        expect("no_new_privileges", effective.no_new_privileges, True)
        expect("privileged", effective.privileged, False)
        if spec.network.mode is NetworkMode.NONE:
            expect("network", effective.network, "none")
    if Feature.READONLY_ROOTFS in backend.features:
        expect("readonly_rootfs", effective.readonly_rootfs, spec.security.readonly_rootfs)
    if spec.security.runtime is not None:
        expect("runtime", effective.runtime, spec.security.runtime)
    enforceable = backend.info().enforceable
    limits = spec.limits
    if limits.memory_mb is not None and "memory" in enforceable:
        expect("memory_bytes", effective.memory_bytes, limits.memory_mb * 1024 * 1024)
    if limits.pids is not None and "pids" in enforceable:
        expect("pids", effective.pids, limits.pids)
    if limits.cpus is not None and "cpus" in enforceable and effective.cpus is not None:
        expect("cpus", round(effective.cpus, 2), round(limits.cpus, 2))
    return wrong


def _wrongly_published(network: Network, effective: Effective) -> list[str]:
    # What the engine can't say is no proof where something was asked for; and nothing may be open that was not.
    found = effective.published
    if found is None:
        return ["published ports are not told by the engine's inspect"] if network.ports else []
    wrong = []
    for port in sorted({*network.ports, *found}):
        where = [f"{host}:{number}" for host, number in found.get(port, ())]
        if port not in network.ports:
            wrong.append(f"port {port} is published at {', '.join(where)}, which nobody asked for")
        elif len(where) != 1 or not where[0].startswith("127.0.0.1:") or where[0].endswith(":0"):
            wrong.append(f"port {port} is published at {', '.join(where) or 'nothing'}, not at 127.0.0.1 alone")
    return wrong


def published_ports(network: Network, status: ContainerStatus) -> dict[int, PublishedPort]:
    """Where the ports are that were asked for, as `prove` has seen them."""
    found = status.effective.published or {}
    return {port: PublishedPort(*found[port][0]) for port in network.ports if found.get(port)}


def _from_inside(backend: Backend, spec: ContainerSpec, hello: Hello) -> list[str]:
    wrong = []

    def expect(name: str, wanted: int, base: int = 10) -> None:
        value = hello.number(name, base)
        if value != wanted:
            wrong.append(f"{name} is {hello.facts.get(name) or 'unreadable'} inside, not {wanted}")

    if Feature.ISOLATION in backend.features:
        for name in ("cap_eff", "cap_prm", "cap_bnd"):
            expect(name, 0, 16)
        expect("no_new_privs", 1)
        # A custom OCI runtime (gVisor) filters system calls itself and reports no seccomp of the host's.
        if spec.security.runtime is None:
            expect("seccomp", 2)
            expect("deny_list", 1)
        expect("pid", 1)
    if Feature.READONLY_ROOTFS in backend.features and spec.security.readonly_rootfs:
        expect("rootfs_ro", 1)
    expect("workspace_writable", 0 if spec.workspace.read_only else 1)
    for name, number in _numeric(spec.security.user).items():
        expect(name, number)
    enforceable = backend.info().enforceable
    # Not every engine shows the container its own cgroup files: what can be read must be right, and `max` is no limit.
    if spec.limits.memory_mb is not None and "memory" in enforceable and hello.facts.get("memory_max"):
        expect("memory_max", spec.limits.memory_mb * 1024 * 1024)
    if spec.limits.pids is not None and "pids" in enforceable and hello.facts.get("pids_max"):
        expect("pids_max", spec.limits.pids)
    return wrong


def _numeric(user: str | None) -> dict[str, int]:
    # A user's name is the image's to resolve; numbers can be compared.
    parts = zip(("uid", "gid"), (user or "").split(":"), strict=False)
    return {name: int(part) for name, part in parts if part.isdecimal()}
