"""Where a Docker daemon may be: the places that Docker's own tools look, in their order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sandboxkit.engines.discovery import Address, check_url

__all__ = ["HOW_TO_START", "addresses"]

HOW_TO_START = (
    "Start Docker: `sudo systemctl start docker`, or `sudo dockerd &` where there is no systemd, or Docker Desktop. "
    "Install it: `sudo apt-get install docker.io`, or https://docs.docker.com/engine/install/. "
    "Is it elsewhere? Set DOCKER_HOST or pass url=. "
    "Permission denied? `sudo usermod -aG docker $USER`, then log in again."
)

_SCHEMES = ("unix", "tcp", "http", "https")
_EXAMPLE = "unix:///var/run/docker.sock"


def addresses(url: str | None) -> Iterator[Address]:
    """The addresses to try. One that was chosen on purpose is the only one: no other may be used in its stead."""
    if url is not None:
        yield Address(check_url(url, _SCHEMES, _EXAMPLE))
        return
    host = os.environ.get("DOCKER_HOST")
    if host:
        yield Address(check_url(host, _SCHEMES, _EXAMPLE, "DOCKER_HOST"), "DOCKER_HOST")
        return
    context = _context()
    if context is not None:
        yield context
        return
    yield Address("unix:///var/run/docker.sock")
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR")
    if runtime_folder:
        yield Address(f"unix://{runtime_folder}/docker.sock")  # rootless Docker
    home = Path.home()
    yield Address(f"unix://{home}/.docker/run/docker.sock")  # Docker Desktop on macOS
    yield Address(f"unix://{home}/.docker/desktop/docker.sock")  # Docker Desktop on Linux


def _context() -> Address | None:
    """The docker CLI's current context; None for the built-in one, which means the usual places."""
    from ._sdk import context_host

    name, host = context_host()
    return Address(host, f"the docker context {name!r}") if host else None
