"""What sessions an engine has, whoever made them, and removing those that nobody will end any more.

A session of a live process is that process's to end. One whose process was killed ends by itself: its stream breaks,
its agent exits, its engine removes it. What can stay behind is what was killed half made, and what was told to outlive
its process; the labels on it (`sandboxkit._labels`) say whose it is.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import attrs

from . import _validate as check
from ._bundle import bundle
from ._labels import (
    DETACHED,
    KEEP,
    PREFIX,
    ROLE,
    SESSION,
    TEMPORARY,
    Owner,
    created_at,
    expires_at,
    is_true,
)
from ._registry import connect
from .backend import Backend, ContainerStatus, Feature
from .backend_parts import VolumeStatus, volumes_of
from .config import Network, Workspace, WorkspaceKind
from .errors import SandboxError, SessionNotFoundError
from .hooks import Hooks

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Owner", "Pruned", "SessionInfo", "attach", "list_sessions", "prune", "remove_session"]

_HALF_MADE = 60.0
"""Seconds after which what was never started counts as given up, where its owner can't be asked."""
_healed: set[tuple[int, str, str]] = set()
_LATE = 5.0
"""Seconds that an agent may take to end a session whose time is over."""


@attrs.frozen(kw_only=True)
class SessionInfo:
    """A session as its engine and its labels describe it.

    `created` and `expires` are seconds since the epoch by the clock of the host that made it, None where unknown or
    unlimited. `detached`: it outlives its owner. `kept`: it can be stopped and resumed. `labels` are the user's own.
    """

    id: str
    backend: str
    url: str
    container_id: str
    running: bool
    created: float | None
    expires: float | None
    detached: bool
    kept: bool
    owner: Owner | None
    labels: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Pruned:
    """One thing that `prune` removed, or would. `name` is a session's id, or the name of a helper or volume."""

    kind: Literal["session", "installer", "volume", "agent_volume"]
    name: str
    reason: str


def list_sessions(*, backend: str | Backend = "auto", url: str | None = None) -> list[SessionInfo]:
    """Every session on the engine, of this process and of others, running or stopped, the oldest first."""
    engine = connected(backend, url)
    info = engine.info()
    found = [
        SessionInfo(
            id=status.labels[SESSION],
            backend=engine.name,
            url=info.url,
            container_id=status.id,
            running=status.running,
            created=created_at(status.labels),
            expires=expires_at(status.labels),
            detached=is_true(status.labels, DETACHED),
            kept=is_true(status.labels, KEEP),
            owner=Owner.of(status.labels),
            labels={name: value for name, value in status.labels.items() if not name.startswith(PREFIX)},
        )
        for status in engine.list({SESSION: ""})
        if status.labels[SESSION]  # empty on what a person makes from a snapshot of ours
    ]
    return sorted(found, key=lambda session: (session.created or 0.0, session.id))


def prune(
    *,
    older_than: float | None = None,
    dry_run: bool = False,
    agents: bool = False,
    backend: str | Backend = "auto",
    url: str | None = None,
) -> list[Pruned]:
    """Remove what is dead or expired, and nothing that a live process owns; returns what was, or would be, removed.

    Dead: its owner was a process of this very host (name, boot and PID namespace) that is gone, and it was not told to
    outlive it. Of an owner elsewhere nothing is known: what was made more than a minute ago and does not run is dead,
    what runs is not. Expired: its time to live is over. Helper containers and sessions' own volumes go by the same
    rules.

    - `older_than`: only what was made more than so many seconds ago.
    - `dry_run`: remove nothing.
    - `agents`: also the agents' volumes of other versions of sandboxkit that no container uses. A process of such a
      version makes its volume anew.

    When something can't be removed the rest is, then the first error is raised.
    """
    check.number("older_than", older_than, minimum=0, exclusive=False, optional=True)
    check.boolean("dry_run", dry_run)
    check.boolean("agents", agents)
    engine = connected(backend, url)
    sweep = _Sweep(engine, time.time(), older_than, dry_run)
    sweep.run(agents=agents)
    return sweep.finish()


def attach(
    id: str,
    *,
    backend: str | Backend = "auto",
    url: str | None = None,
    takeover: bool = False,
    hooks: Hooks | None = None,
    network: Network | None = None,
) -> Session:
    """Continue a detached session, made by this process or another, wherever that was.

    Its files, settings and background processes are as they were; commands that its last connection ran ended with
    that. SessionBusyError when another process is attached; `takeover=True` ends that connection. SessionNotFoundError
    when there is none of that id, or it is stopped; ConfigError when it is not detached.

    - `network`: a `Network.allow` in the place of the one it was made with, while this process is attached. That one's
      list is known without; its credentials, audit, resolver and ssl_context are not: they are in no label.
    """
    from ._lasting import attach_session

    check.session_id(id)
    check.boolean("takeover", takeover)
    return attach_session(connected(backend, url), id, takeover=takeover, hooks=hooks or Hooks(), given_network=network)


def remove_session(id: str, *, backend: str | Backend = "auto", url: str | None = None) -> None:
    """Remove a session, whoever owns it, with its own volumes. SessionNotFoundError when there is none."""
    check.session_id(id)
    engine = connected(backend, url)
    container = container_of(engine, id)
    engine.remove(container.id)
    remove_temporary_volumes(engine, id)


def heal(backend: Backend) -> None:
    """What killed processes of this host left half made goes; never raises. Once for each engine and process."""
    key = (os.getpid(), backend.name, backend.info().url)
    if key in _healed:
        return
    _healed.add(key)
    with contextlib.suppress(SandboxError):
        sweep = _Sweep(backend, time.time(), None, False)
        sweep.run(agents=False)


def container_of(backend: Backend, session_id: str) -> ContainerStatus:
    """A session's container; SessionNotFoundError when there is none."""
    found = backend.list({SESSION: session_id})
    if not found:
        raise SessionNotFoundError(
            f"{backend.name} at {backend.info().url} has no session {session_id!r}: it ended, was destroyed or "
            "expired, or is on another engine. See sandboxkit.list_sessions().",
            details={"session": session_id},
        )
    return found[0]


def remove_temporary_volumes(backend: Backend, session_id: str) -> None:
    """The named volumes that were made for this session alone."""
    if Feature.VOLUMES in backend.features:
        volumes = volumes_of(backend, "volumes")
        for volume in volumes.list({SESSION: session_id, TEMPORARY: "1"}):
            volumes.remove(volume.name)


def on_removed(backend: Backend, workspace: Workspace, session_id: str) -> Callable[[], None] | None:
    """What is to be done after a session's container was removed."""
    if workspace.kind is not WorkspaceKind.VOLUME or workspace.keep:
        return None
    return lambda: remove_temporary_volumes(backend, session_id)


class _Sweep:
    """One pass of `prune`."""

    def __init__(self, backend: Backend, now: float, older_than: float | None, dry_run: bool) -> None:
        self._backend = backend
        self._now = now
        self._older_than = older_than
        self._dry_run = dry_run
        self._pruned: list[Pruned] = []
        self._errors: list[SandboxError] = []

    def run(self, *, agents: bool) -> None:
        sessions = [status for status in self._backend.list({SESSION: ""}) if status.labels[SESSION]]
        gone = set()
        for status in sessions:
            reason = self._why_dead(status)
            if reason is not None:
                gone.add(status.labels[SESSION])
                self._remove("session", status.labels[SESSION], reason, status)
        for status in self._backend.list({ROLE: "agent-installer"}):
            reason = self._why_abandoned(status.labels)
            if reason is not None:
                self._remove("installer", status.name, reason, status)
        if Feature.VOLUMES in self._backend.features:
            self._volumes({status.labels[SESSION] for status in sessions} - gone, agents=agents)

    def finish(self) -> list[Pruned]:
        if self._errors:
            raise self._errors[0]
        return self._pruned

    def _why_dead(self, status: ContainerStatus) -> str | None:
        labels = status.labels
        if not self._is_old_enough(labels):
            return None
        expires = expires_at(labels)
        # The agent ends what runs: a clock that differs from the maker's must not.
        if expires is not None and self._now > expires + (_HALF_MADE if status.running else _LATE):
            return "its time to live is over"
        if is_true(labels, KEEP) or (is_true(labels, DETACHED) and status.running):
            return None
        if status.running:
            owner = Owner.of(labels)
            return "its owner is gone" if owner is not None and owner.is_alive is False else None
        return self._why_abandoned(labels)

    def _why_abandoned(self, labels: Mapping[str, str]) -> str | None:
        if not self._is_old_enough(labels):
            return None
        owner = Owner.of(labels)
        alive = None if owner is None else owner.is_alive
        if alive is False:
            return "its owner is gone"
        created = created_at(labels)
        if alive is None and created is not None and self._now > created + _HALF_MADE:
            return "it was made more than a minute ago and does not run"
        return None

    def _is_old_enough(self, labels: Mapping[str, str]) -> bool:
        created = created_at(labels)
        return self._older_than is None or (created is not None and self._now > created + self._older_than)

    def _volumes(self, sessions: set[str], *, agents: bool) -> None:
        volumes = volumes_of(self._backend, "volumes")
        for volume in volumes.list({TEMPORARY: "1"}):
            reason = self._why_abandoned(volume.labels)
            if reason is not None and volume.labels.get(SESSION) not in sessions:
                self._remove_volume("volume", volume, reason)
        for volume in volumes.list({ROLE: "agent"}) if agents else ():
            if volume.name != bundle().volume and self._is_old_enough(volume.labels):
                self._remove_volume("agent_volume", volume, "it holds the agent of another version")

    def _remove(self, kind: Literal["session", "installer"], name: str, reason: str, status: ContainerStatus) -> None:
        with self._noted():
            if not self._dry_run:
                self._backend.remove(status.id)
            self._pruned.append(Pruned(kind=kind, name=name, reason=reason))

    def _remove_volume(self, kind: Literal["volume", "agent_volume"], volume: VolumeStatus, reason: str) -> None:
        with self._noted():
            if self._dry_run or volumes_of(self._backend, "volumes").remove(volume.name):
                self._pruned.append(Pruned(kind=kind, name=volume.name, reason=reason))

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except SandboxError as error:
            self._errors.append(error)


def connected(backend: str | Backend, url: str | None) -> Backend:
    """The backend itself, or the one of that name at that address."""
    if isinstance(backend, Backend):
        return backend
    check.text("backend", backend, accepted="the name of a backend, such as 'docker', or 'auto'")
    if url is not None:
        check.text("url", url, accepted="an engine's address, such as 'unix:///run/podman/podman.sock', or None")
    return connect(backend, url)
