"""Where a Podman service may be: the places that Podman's own tools look, in their order. Never Docker's socket."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandboxkit.engines.discovery import Address, check_url
from sandboxkit.errors import ConfigError

__all__ = ["HOW_TO_START", "addresses", "is_chosen"]

HOW_TO_START = (
    "Start Podman: `systemctl --user start podman.socket`, or `podman system service --time=0 &` without systemd. "
    "Install it: `sudo apt-get install podman`, or https://podman.io/docs/installation. "
    "Is it elsewhere? Set CONTAINER_HOST or pass url=."
)

_SCHEMES = ("unix", "tcp", "http")
_EXAMPLE = "unix:///run/podman/podman.sock"


def addresses(url: str | None) -> Iterator[Address]:
    """The addresses to try. One that was chosen on purpose is the only one: no other may be used in its stead."""
    if url is not None:
        yield Address(check_url(url, _SCHEMES, _EXAMPLE))
        return
    host = os.environ.get("CONTAINER_HOST")
    if host:
        yield Address(check_url(host, _SCHEMES, _EXAMPLE, "CONTAINER_HOST"), "CONTAINER_HOST")
        return
    name = os.environ.get("CONTAINER_CONNECTION")
    if name:
        yield _connection(name)
        return
    default = _default_connection()
    if default is not None:
        yield default
    yield from _usual_places()


def is_chosen(url: str | None) -> bool:
    """Whether an address was chosen on purpose, so that no other service may be used, or started, in its stead."""
    return bool(url or os.environ.get("CONTAINER_HOST") or os.environ.get("CONTAINER_CONNECTION"))


def _usual_places() -> Iterator[Address]:
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR")
    paths = [
        f"{runtime_folder}/podman/podman.sock" if runtime_folder else None,
        f"/run/user/{os.getuid()}/podman/podman.sock",
        "/run/podman/podman.sock",
    ]
    for path in dict.fromkeys(path for path in paths if path):
        yield Address(f"unix://{path}")


def _connection(name: str) -> Address:
    """A connection by its name, as `podman --connection` takes it."""
    found = _connections().get(name)
    if found is None:
        raise ConfigError(
            f"CONTAINER_CONNECTION names {name!r}, which `podman system connection list` does not have",
            details={"field": "CONTAINER_CONNECTION"},
        )
    return Address(found, f"the podman connection {name!r}")


def _default_connection() -> Address | None:
    """What `podman system connection default` set: for `--remote` alone on Linux, so it is not the only one to try."""
    newer = _read_json(_folder() / "podman-connections.json").get("Connection")
    older = _read_toml(_folder() / "containers.conf").get("engine")
    for name in (_text(newer, "Default"), _text(older, "active_service")):
        url = _connections().get(name) if name else None
        if url:
            return Address(url, f"the podman connection {name!r}")
    return None


def _connections() -> dict[str, str]:
    """Names and addresses: `podman-connections.json` since Podman 5, before it containers.conf."""
    older = _read_toml(_folder() / "containers.conf").get("engine")
    newer = _read_json(_folder() / "podman-connections.json").get("Connection")
    found = {}
    for table, key, address in ((older, "service_destinations", "uri"), (newer, "Connections", "URI")):
        destinations = table.get(key) if isinstance(table, dict) else None
        for name, destination in (destinations or {}).items():
            url = _text(destination, address)
            if url:
                found[str(name)] = url
    return found


def _folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "containers"


def _text(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; nothing when it is missing or broken: the addresses after it are tried all the same."""
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return {}
    # tomli is tomllib under its old name; podman-py depends on it where Python has none.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(text))
    except ValueError:
        return {}
