"""Sessions that outlive the process that made them: attaching to one that runs, resuming one that was stopped."""

from __future__ import annotations

import contextlib
import time

import attrs

from ._bundle import bundle
from ._channel import Connection
from ._detached import TOKEN_VARIABLE, connect_agent, fresh_token
from ._frames import Hello, milliseconds
from ._hooked import open_session
from ._labels import DETACHED, EXPIRES, KEEP, SESSION, Owner, expires_at, is_true
from ._launch import prove, published_ports, wait_hello
from ._settings import SETTINGS, Settings, settings_label
from ._volumes import claim_again
from ._way_out import check_extra, chosen_network
from .backend import Backend, ByteStream, ContainerSpec, ContainerStatus, Feature
from .backend_parts import Running, running_of
from .config import Lifecycle, Network
from .errors import (
    ConfigError,
    SandboxError,
    SessionBusyError,
    SessionLostError,
    SessionNotFoundError,
)
from .hooks import Hooks
from .session import Session
from .sessions import container_of, on_removed

__all__ = ["attach_session", "lasting", "resume_session"]


def lasting(spec: ContainerSpec, lifecycle: Lifecycle) -> ContainerSpec:
    """The spec with what its agent, and whoever finds its container later, must know of its life."""
    arguments, labels, env = [*spec.agent_args], {**spec.labels, SETTINGS: settings_label(spec)}, {**spec.env}
    # Always set, so that an image with such labels can't set them.
    labels |= {DETACHED: "1" if spec.detached else "0", KEEP: "1" if spec.keep else "0", EXPIRES: ""}
    if lifecycle.ttl is not None:
        arguments += ["--ttl", str(milliseconds(lifecycle.ttl))]
        labels[EXPIRES] = f"{time.time() + lifecycle.ttl:.3f}"
    if lifecycle.idle_timeout is not None:
        arguments += ["--idle", str(milliseconds(lifecycle.idle_timeout))]
    if spec.detached:
        arguments += ["--detached"]
        env[TOKEN_VARIABLE] = fresh_token()
    return attrs.evolve(spec, agent_args=tuple(arguments), labels=labels, env=env)


def attach_session(
    backend: Backend, session_id: str, *, takeover: bool, hooks: Hooks, given_network: Network | None
) -> Session:
    """See `sandboxkit.attach`."""
    started = time.monotonic()
    status = container_of(backend, session_id)
    if not is_true(status.labels, DETACHED):
        raise ConfigError(
            f"Session {session_id} belongs to the process that made it; accepted: one that was made with detached=True",
            details={"field": "id"},
        )
    if not status.running:
        if is_true(status.labels, KEEP):
            raise SessionNotFoundError(f"Session {session_id} is stopped. Use Sandbox.resume({session_id!r}).")
        raise SessionNotFoundError(f"Session {session_id} has ended, or has not started yet.")
    network = _network_of(status, given_network)
    try:
        connection, _ = connect_agent(backend, status.id, takeover=takeover)
        status = _looked_at(backend, status, connection)
    except SandboxError as error:
        error.details.setdefault("session", session_id)
        raise
    return _opened(backend, status, connection, hooks, started, network)


def resume_session(backend: Backend, session_id: str, hooks: Hooks, given_network: Network | None) -> Session:
    """See `Sandbox.resume`. On any exception the container is stopped again, and all its files are there."""
    started = time.monotonic()
    running = running_of(backend, Feature.RESUME, "resume")
    status = container_of(backend, session_id)
    if not is_true(status.labels, KEEP):
        raise ConfigError(
            f"Session {session_id} was made to go when it ends; accepted: one that was made with keep=True",
            details={"field": "id"},
        )
    _raise_if_running(status, session_id)
    with running.hold(status.id):
        # Looked at again: another process may have resumed it, and let go, since the first look.
        status = container_of(backend, session_id)
        _raise_if_running(status, session_id)
        return _resumed(backend, running, status, hooks, started, given_network)


def _resumed(
    backend: Backend,
    running: Running,
    status: ContainerStatus,
    hooks: Hooks,
    started: float,
    given_network: Network | None,
) -> Session:
    expires = expires_at(status.labels)
    if expires is not None and time.time() >= expires:
        raise SessionNotFoundError(
            f"The time to live of session {status.labels[SESSION]} is over. sandboxkit.prune() removes it."
        )
    network = _network_of(status, given_network)
    connection: Connection | None = None
    stream: ByteStream | None = None
    begun = False
    try:
        claim_again(backend, status)
        detached = is_true(status.labels, DETACHED)
        running.prepare(status.id)
        begun = True
        stream = None if detached else backend.attach(status.id)
        backend.start(status.id)
        if stream is None:
            connection, hello = connect_agent(backend, status.id)
        else:
            connection = Connection(stream)
            connection.start()
            hello = wait_hello(connection)
        claim_again(backend, status)
        status = backend.inspect(status.id)  # as it runs now: its ports may be published elsewhere than before
        _prove_again(backend, status, hello)
        connection.shorten(status.pid)
        if expires is not None:
            connection.configure({"ttl": str(max(int((expires - time.time()) * 1000), 1))})
        return _opened(backend, status, connection, hooks, started, network)
    except BaseException:
        if connection is not None:
            connection.close(SessionLostError("The session could not be resumed."))
        elif stream is not None:
            stream.close()
        if begun:
            with contextlib.suppress(SandboxError):
                running.stop(status.id)
        raise


def _raise_if_running(status: ContainerStatus, session_id: str) -> None:
    if not status.running and not status.never_started:
        return
    owner = Owner.of(status.labels)
    if is_true(status.labels, DETACHED) and status.running:
        raise SessionBusyError(f"Session {session_id} is running. Use sandboxkit.attach({session_id!r}).")
    if owner is None or owner.is_alive is not False:
        raise SessionBusyError(
            f"Session {session_id} is running, and its owner is not known to be gone. Stop it there."
        )
    # Its owner is gone, so its stream has ended and its agent is on its way out.
    raise SessionBusyError(f"Session {session_id} is still ending. Try again in a moment.")


def _prove_again(backend: Backend, status: ContainerStatus, hello: Hello) -> None:
    settings = Settings.of(status.labels)
    spec = ContainerSpec(
        name=status.name,
        image="",
        agent=bundle(),
        limits=settings.limits,
        network=settings.network,
        security=settings.security,
        workspace=settings.workspace,
    )
    prove(backend, spec, status, hello)


def _looked_at(backend: Backend, status: ContainerStatus, connection: Connection) -> ContainerStatus:
    # The list that `status` is from says neither the process nor the ports.
    try:
        status = backend.inspect(status.id)
        connection.shorten(status.pid)
        return status
    except BaseException:
        connection.close(SessionLostError("The connection was not wanted."))
        raise


def _network_of(status: ContainerStatus, given: Network | None) -> Network:
    network = chosen_network(Settings.of(status.labels).network, given)
    check_extra(network)
    return network


def _opened(
    backend: Backend,
    status: ContainerStatus,
    connection: Connection,
    hooks: Hooks,
    started: float,
    network: Network,
) -> Session:
    settings, session_id = Settings.of(status.labels), status.labels[SESSION]
    workspace = settings.workspace
    try:
        return open_session(
            hooks,
            "",
            started,
            session_id=session_id,
            container_id=status.id,
            backend=backend,
            connection=connection,
            limits=settings.limits,
            env={},  # the container's own environment holds it
            detached=is_true(status.labels, DETACHED),
            keep=is_true(status.labels, KEEP),
            published=published_ports(settings.network, status),
            network=network,
            knows_proxy=settings.network.is_guarded,
            on_removed=on_removed(backend, workspace, session_id),
        )
    except BaseException:
        connection.shutdown()
        raise
