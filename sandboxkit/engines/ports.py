"""Published ports in an engine's answers; Podman's inspect has them where Docker's has."""

from __future__ import annotations

from typing import Any

__all__ = ["published_ports"]


def published_ports(found: Any) -> dict[int, list[tuple[str, int]]]:
    """From an inspect of a container: by its TCP port, host addresses and ports. Other protocols count as port 0."""
    published: dict[int, list[tuple[str, int]]] = {}
    for name, bindings in ((found.get("NetworkSettings") or {}).get("Ports") or {}).items():
        port, _, protocol = name.partition("/")
        for binding in bindings or ():  # null for one that the image exposes and nobody publishes
            where = (str(binding.get("HostIp") or "0.0.0.0"), int(binding.get("HostPort") or 0))  # noqa: S104
            published.setdefault(int(port) if protocol == "tcp" else 0, []).append(where)
    return published
