"""A session's settings as one label, so that another process, a week later, knows them from the engine alone."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from .backend import ContainerSpec
from .config import Limits, Network, NetworkMode, Security, Workspace, WorkspaceKind
from .errors import SandboxError

__all__ = ["SETTINGS", "Settings", "settings_label"]

SETTINGS = "sandboxkit.settings"
"""JSON; a field that a version does not know is left out by it, one that is missing has its default."""

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Settings:
    """What is asked of a session's container."""

    limits: Limits = attrs.field(factory=Limits)
    network: Network = attrs.field(factory=Network.none)
    security: Security = attrs.field(factory=Security)
    workspace: Workspace = attrs.field(factory=Workspace.ephemeral)

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Settings:
        """What `settings_label` wrote; the defaults where there is nothing, or nothing that can be read."""
        try:
            found = json.loads(labels.get(SETTINGS) or "{}")
            return cls(
                limits=_made(Limits, found.get("limits", {})),
                network=_made(Network, found.get("network", {}), mode=NetworkMode),
                security=_made(Security, found.get("security", {})),
                workspace=_made(Workspace, found.get("workspace", {}), kind=WorkspaceKind),
            )
        except (ValueError, TypeError, AttributeError, SandboxError):
            return cls()


def settings_label(spec: ContainerSpec) -> str:
    """The spec's settings. Left out: a seccomp profile, which may be long, and the engine holds it; what is secret."""
    found = {
        name: attrs.asdict(getattr(spec, name), filter=_is_label, value_serializer=_plain)
        for name in ("limits", "network", "security", "workspace")
    }
    found["security"].pop("seccomp", None)
    return json.dumps(found, separators=(",", ":"))


def _is_label(field: attrs.Attribute[Any], value: object) -> bool:
    return bool(field.metadata.get("label", True))


def _plain(owner: object, field: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _made(kind: type[T], found: Mapping[str, Any], /, **enums: type[enum.Enum]) -> T:
    known = {field.name for field in attrs.fields(kind) if _is_label(field, None)}  # type: ignore[arg-type]
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if name in known
    }
    for name, members in enums.items():
        if name in values:
            values[name] = members(values[name])
    return kind(**values)
