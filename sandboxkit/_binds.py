"""Folders of this host as workspaces: which may be one, and as whom the session's commands run to write there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from .errors import ConfigError

__all__ = ["bind_user", "checked_bind", "checked_engine"]

# Never, whoever lists them: what configures or is the host. A folder inside the first group is refused, too, unless
# listed.
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/run",
)
_OWN_PLACES = ("/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp")  # noqa: S108
_SOCKETS = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
)


def checked_bind(host_path: str | os.PathLike[str], allowed: Iterable[str | os.PathLike[str]]) -> str:
    """The folder without symbolic links, or ConfigError saying why it may not be a workspace.

    It must exist and belong to the caller, or lie in a folder that `allowed` lists. Never: the root, a home folder or
    one above it, the host's own folders, one that holds an engine's socket. Hidden folders right in a home (`.ssh`,
    `.config`) only when listed.
    """
    asked = os.fspath(host_path)
    if not os.path.isabs(asked):
        _refuse(asked, "an absolute path")
    path = os.path.realpath(asked)
    try:
        found = os.stat(path)
    except OSError as error:
        _refuse(asked, f"a folder that exists ({error.strerror})")
    if not stat.S_ISDIR(found.st_mode):
        _refuse(asked, "a folder")
    listed = any(_is_inside(path, os.path.realpath(os.fspath(folder))) for folder in allowed)
    home = os.path.realpath(Path.home())
    if _is_inside(home, path) or path in (*_SYSTEM, *_OWN_PLACES) or os.path.dirname(path) == "/home":
        _refuse(asked, "a folder of its own below a home folder, not the root, a home or a folder of the system")
    if any(_is_inside(os.path.realpath(socket), path) for socket in _SOCKETS):
        _refuse(asked, "a folder without an engine's socket in it: whoever has that has the host")
    if not listed:
        if any(_is_inside(path, folder) and not _is_inside(path, home) for folder in _SYSTEM):
            _refuse(asked, "no folder of the system, unless `allowed` lists it")
        if os.path.dirname(path) == home and os.path.basename(path).startswith("."):
            _refuse(asked, "no hidden folder of a home, unless `allowed` lists it")
        if found.st_uid != os.geteuid():
            _refuse(asked, "a folder that belongs to the calling user, or lies in one that `allowed` lists")
    return path


def checked_engine(path: str, url: str) -> None:
    """ConfigError when the engine runs elsewhere, or its socket is in the folder."""
    if not url.startswith("unix://"):
        _refuse(
            path, f"a folder of the engine's own host, and the engine at {url} may run elsewhere; use Workspace.volume"
        )
    socket = os.path.realpath(url.removeprefix("unix://"))
    if _is_inside(socket, path):
        _refuse(path, "a folder without an engine's socket in it: whoever has that has the host")


def bind_user(path: str, url: str, *, rootless: bool) -> str | None:
    """As whom commands must run to own what they write there: `uid:gid` inside; None when no one inside is it."""
    found = os.stat(path)
    if not rootless:
        return f"{found.st_uid}:{found.st_gid}"
    # Rootless, root inside is the user whose engine it is, and nobody inside is anybody else of the host.
    owner = os.stat(url.removeprefix("unix://")).st_uid
    return "0:0" if found.st_uid == owner else None


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refuse(path: str, accepted: str) -> NoReturn:
    raise ConfigError(f"host_path is {path!r}; accepted: {accepted}", details={"field": "workspace.host_path"})
