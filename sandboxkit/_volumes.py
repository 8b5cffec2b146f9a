"""Named volumes as workspaces: made before the container, held by one session at a time, gone with it if so asked."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import attrs

from ._binds import bind_user, checked_engine
from ._labels import ROLE, SESSION, TEMPORARY, VOLUME, VOLUME_SHARED, Owner, is_true, owner_labels
from .backend import Backend, ContainerStatus, EngineInfo
from .backend_parts import volumes_of
from .config import Security, Workspace, WorkspaceKind
from .errors import ConfigError, SandboxError, SessionBusyError

__all__ = ["claim", "claim_again", "holder_labels", "security_for", "volume_made"]

_UNDECIDED = 30.0
"""Seconds to wait for another session that was made at the same moment to start or to give up."""
_PAUSE = 0.02


@contextlib.contextmanager
def volume_made(backend: Backend, workspace: Workspace, session_id: str) -> Iterator[None]:
    """The volume is there for the block; when the block fails, one that was made here goes."""
    if workspace.kind is not WorkspaceKind.VOLUME:
        yield
        return
    made = make_volume(backend, workspace, session_id)
    try:
        yield
    except BaseException:
        if made:
            with contextlib.suppress(SandboxError):
                volumes_of(backend, "Workspace.volume").remove(workspace.name or "")
        raise


def make_volume(backend: Backend, workspace: Workspace, session_id: str) -> bool:
    """Afterwards the volume is there; True when it was made here. ConfigError when it is missing and `create=False`."""
    assert workspace.name is not None
    volumes = volumes_of(backend, "Workspace.volume")
    found = volumes.inspect(workspace.name)
    if found is not None:
        if found.labels.get(ROLE) == "agent":
            raise ConfigError(
                f"workspace.name is {workspace.name!r}; accepted: a volume that is not sandboxkit's own",
                details={"field": "workspace.name"},
            )
        return False
    if not workspace.create:
        raise ConfigError(
            f"{backend.name} has no volume {workspace.name!r}: make it, or let create=True make it",
            details={"field": "workspace.name"},
        )
    labels = {ROLE: "workspace", **owner_labels()}
    if not workspace.keep:
        labels |= {SESSION: session_id, TEMPORARY: "1"}
    volumes.ensure(workspace.name, labels)
    return True


def security_for(workspace: Workspace, security: Security, info: EngineInfo) -> Security:
    """The same, as a folder's owner where no user was asked for; ConfigError when this engine can't have the folder."""
    if workspace.kind is not WorkspaceKind.BIND:
        return security
    assert workspace.host_path is not None
    checked_engine(workspace.host_path, info.url)
    if security.user is not None:
        return security
    return attrs.evolve(security, user=bind_user(workspace.host_path, info.url, rootless=info.rootless))


def holder_labels(workspace: Workspace) -> dict[str, str]:
    """By which sessions on the same volume, of any process, find each other."""
    if workspace.kind is not WorkspaceKind.VOLUME:
        return {}
    return {VOLUME: workspace.name or "", VOLUME_SHARED: "1" if workspace.shared else "0"}


def claim(backend: Backend, workspace: Workspace, session_id: str) -> None:
    """Make sure that no other session writes to the volume: called when the container is made and not yet started.

    Each looks only after its own container is on the engine, so of two at the same moment at least one sees the other.
    One that runs has won. Of two that do not run yet the older gives way to nobody, and waits until the younger, which
    may have looked before it could see the older, has started or gone. So there is never a second one;
    SessionBusyError.
    """
    if workspace.kind is not WorkspaceKind.VOLUME:
        return
    end = time.monotonic() + _UNDECIDED
    while True:
        rivals = _rivals(backend, workspace, session_id)
        mine = next((status for status in rivals if status.labels.get(SESSION) == session_id), None)
        others = [status for status in rivals if status is not mine]
        if mine is None or not others:
            return
        for other in others:
            if not _is_waiting(other) or _order(other) < _order(mine) or time.monotonic() > end:
                raise SessionBusyError(
                    f"Session {other.labels.get(SESSION)} uses the volume {workspace.name!r}. Destroy that session, or "
                    "use another volume, or let all that use this one say shared=True.",
                    details={"volume": workspace.name or "", "session": other.labels.get(SESSION, "")},
                )
        threading.Event().wait(_PAUSE)


def claim_again(backend: Backend, status: ContainerStatus) -> None:
    """The same for a stopped session that is resumed: called before its start and after it.

    Of two that are resumed at the same moment each sees the other after its start at the latest, and both may give way:
    SessionBusyError, and trying again helps.
    """
    name = status.labels.get(VOLUME)
    if not name:
        return
    workspace = Workspace.volume(name, shared=is_true(status.labels, VOLUME_SHARED))
    session_id = status.labels.get(SESSION, "")
    for other in _rivals(backend, workspace, session_id):
        if other.labels.get(SESSION) != session_id:
            raise SessionBusyError(
                f"Session {other.labels.get(SESSION)} uses the volume {name!r}. Destroy or stop that session first.",
                details={"volume": name, "session": other.labels.get(SESSION, "")},
            )


def _rivals(backend: Backend, workspace: Workspace, session_id: str) -> list[ContainerStatus]:
    found = []
    for status in backend.list({VOLUME: workspace.name or ""}):
        own = status.labels.get(SESSION) == session_id
        exclusive = not (workspace.shared and is_true(status.labels, VOLUME_SHARED))
        if own or (exclusive and (status.running or _is_waiting(status))):
            found.append(status)
    return found


def _is_waiting(status: ContainerStatus) -> bool:
    # Made and about to start, unless whoever made it is gone.
    owner = Owner.of(status.labels)
    return status.never_started and not (owner is not None and owner.is_alive is False)


def _order(status: ContainerStatus) -> tuple[str, str]:
    # Any order will do that everybody sees alike.
    return status.labels.get("sandboxkit.created", ""), status.labels.get(SESSION, "")
