"""Making an image of a session. `sandboxkit.snapshots` lists and removes them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import attrs

from . import _validate as check
from ._labels import CREATED, PREFIX, SNAPSHOT, created_at
from ._settings import Settings
from .backend import WORKSPACE_FOLDER, Backend
from .backend_parts import ImageStatus, snapshots_of
from .config import WorkspaceKind
from .errors import UnsupportedError

__all__ = ["Snapshot", "checked_tag", "take_snapshot"]

_TAG = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
)


@attrs.frozen(kw_only=True)
class Snapshot:
    """An image that `Session.snapshot` made: `Sandbox(snapshot.tag, ...)` begins with it.

    `session_id` is whose it was, `created` in seconds since the epoch, `size` in bytes as the engine counts it.
    """

    tag: str
    id: str
    session_id: str
    created: float | None
    size: int
    labels: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, image: ImageStatus) -> Snapshot:
        """From what the engine says of the image."""
        return cls(
            tag=image.tag,
            id=image.id,
            session_id=image.labels.get(SNAPSHOT, ""),
            created=created_at(image.labels),
            size=image.size,
            labels={name: value for name, value in image.labels.items() if not name.startswith(PREFIX)},
        )


def take_snapshot(backend: Backend, container_id: str, session_id: str, tag: str) -> Snapshot:
    """See `Session.snapshot`."""
    wanted = checked_tag(tag)
    snapshots = snapshots_of(backend, "snapshots")
    workspace = Settings.of(backend.inspect(container_id).labels).workspace
    if workspace.kind is WorkspaceKind.TMPFS:
        raise UnsupportedError("A workspace in memory can't be part of a snapshot. Use another kind of workspace.")
    labels = {SNAPSHOT: session_id, CREATED: f"{time.time():.3f}"}
    folder = None if workspace.kind is WorkspaceKind.BIND else WORKSPACE_FOLDER
    return Snapshot.of(snapshots.commit(container_id, wanted, labels, folder))


def checked_tag(tag: Any) -> str:
    """`name` or `name:version` as every engine takes it, with `:latest` where no version is named."""
    if not isinstance(tag, str) or len(tag) > 200 or not _TAG.fullmatch(tag):
        check.fail("tag", tag, "a name such as 'team/base' or 'base:v1', in lower case")
    return tag if ":" in tag else f"{tag}:latest"
