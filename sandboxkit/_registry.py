"""Finding backends: the entry points of the group `sandboxkit.backends`, and the one engine that answers."""

from __future__ import annotations

import functools
import os
import threading
from importlib.metadata import EntryPoint, entry_points

from . import _validate as check
from .backend import Backend
from .errors import ConfigError, EngineUnavailableError

__all__ = ["available", "connect", "forget"]

GROUP = "sandboxkit.backends"
_PREFERRED = ("podman", "docker")
_NEVER_AUTO = frozenset({"bubblewrap"})  # it runs the host's own programs: only ever on request

_lock = threading.Lock()
_connected: dict[tuple[str, str | None], tuple[int, Backend]] = {}


@functools.lru_cache(maxsize=1)
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def available() -> tuple[str, ...]:
    """The names of the installed backends, those that `auto` tries first at the front."""
    names = _entries()
    return (*(name for name in _PREFERRED if name in names), *sorted(names.keys() - set(_PREFERRED)))


def connect(name: str = "auto", url: str | None = None) -> Backend:
    """The backend `name` at `url`, one a process; `auto` is SANDBOXKIT_BACKEND, else the first engine that answers.

    ConfigError for an unknown name; EngineUnavailableError, with all that was tried, when nothing answers.
    """
    field = "backend"
    if name == "auto":
        name = os.environ.get("SANDBOXKIT_BACKEND") or "auto"
        field = field if name == "auto" else "SANDBOXKIT_BACKEND"
        url = url or os.environ.get("SANDBOXKIT_URL") or None
    if name != "auto" and name not in _entries():
        check.fail(field, name, ", ".join(repr(known) for known in ("auto", *available())))
    if name == "auto" and url is not None:
        raise ConfigError(
            f"url is {url!r}, but no backend is named; accepted: backend='docker' or backend='podman' with it "
            "(SANDBOXKIT_BACKEND with SANDBOXKIT_URL)",
            details={"field": "url"},
        )
    with _lock:
        found = _connected.get((name, url))
        # A fork must not share its parent's sockets: the child connects anew.
        if found is not None and found[0] == os.getpid():
            return found[1]
        backend = _first_that_answers() if name == "auto" else _load(name).connect(url)
        _connected[(name, url)] = (os.getpid(), backend)
        return backend


def forget() -> None:
    """Close every backend this process has connected; the next call connects anew. For tests and long-lived workers."""
    while True:
        with _lock:
            if not _connected:
                return
            pid, backend = _connected.popitem()[1]
        if pid == os.getpid():
            backend.close()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it at the fork, and would hold it here for ever
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def _load(name: str) -> type[Backend]:
    entry = _entries()[name]
    try:
        loaded: type[Backend] = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist else entry.module
        raise EngineUnavailableError(
            f"The backend {name} can't be loaded from {package}: {error}. Install what it lacks: "
            f"pip install '{package}[{name}]'.",
            retryable=False,
        ) from error
    return loaded


def _first_that_answers() -> Backend:
    tried: list[str] = []
    advice: list[str] = []
    # First whatever runs already; only then may an engine start a service of its own.
    for may_start in (False, True):
        for name in available():
            if name in _NEVER_AUTO:
                continue
            try:
                return _load(name).connect(None, may_start=may_start)
            except EngineUnavailableError as error:
                if may_start:
                    found = error.details.get("tried")
                    tried += [f"{name}: {item}" for item in found] if isinstance(found, list) else [f"{name}: {error}"]
                    advice.append(str(error))
    if not advice:
        raise EngineUnavailableError(
            "No backend is installed. Install one: pip install 'sandboxkit[podman]' or 'sandboxkit[docker]'."
        )
    raise EngineUnavailableError("No engine answers.\n" + "\n".join(advice), details={"tried": tried})
