"""Images made of sessions: the root filesystem and the workspace at one moment, for new sessions to begin with."""

from __future__ import annotations

from ._labels import SNAPSHOT
from ._snapshot import Snapshot, checked_tag
from .backend import Backend
from .backend_parts import snapshots_of
from .errors import ConfigError
from .sessions import connected

__all__ = ["Snapshot", "list_snapshots", "remove_snapshot"]


def list_snapshots(*, backend: str | Backend = "auto", url: str | None = None) -> list[Snapshot]:
    """Every snapshot on the engine, the oldest first."""
    found = snapshots_of(connected(backend, url), "snapshots").list({SNAPSHOT: ""})
    return sorted(
        (Snapshot.of(image) for image in found if image.labels.get(SNAPSHOT)),
        key=lambda snapshot: (snapshot.created or 0.0, snapshot.tag),
    )


def remove_snapshot(tag: str, *, backend: str | Backend = "auto", url: str | None = None) -> None:
    """Remove a snapshot; ConfigError for a tag that is none. Sessions made from it live on if the engine lets them."""
    engine = connected(backend, url)
    wanted = checked_tag(tag)
    if wanted not in {snapshot.tag for snapshot in list_snapshots(backend=engine)}:
        raise ConfigError(
            f"{engine.name} has no snapshot {tag!r}; accepted: the tag of one of list_snapshots()",
            details={"field": "tag"},
        )
    snapshots_of(engine, "snapshots").remove(wanted)
