"""Being told what happens in sessions: ids, durations, sizes, flags; never arguments, environment, paths or content."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import attrs

from . import _validate as check
from .errors import ErrorCode

__all__ = ["ExecEnded", "ExecStarted", "FileWritten", "Hooks", "SessionCreated", "SessionEnded"]

E = TypeVar("E")


@attrs.frozen(kw_only=True)
class SessionCreated:
    """A session was made, or attached to. `duration`: seconds that it took, the pull of its image included."""

    session_id: str
    backend: str
    image: str
    duration: float


@attrs.frozen(kw_only=True)
class ExecStarted:
    """A command is about to start. `exec_id` pairs it with its ExecEnded; `command` is the program's name alone."""

    session_id: str
    exec_id: int
    command: str
    streamed: bool


@attrs.frozen(kw_only=True)
class ExecEnded:
    """A command ended, was killed, or could not start: then `error` says why and the rest is unset.

    `duration` is in seconds, on the caller's side. A stream that was closed early has neither exit code nor error.
    """

    session_id: str
    exec_id: int
    command: str
    streamed: bool
    duration: float
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    aborted: bool = False
    oom_killed: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    error: ErrorCode | None = None


@attrs.frozen(kw_only=True)
class FileWritten:
    """A file was written through `session.files`, or could not be: then `error` says why. `size` is in bytes."""

    session_id: str
    size: int
    duration: float
    error: ErrorCode | None = None


@attrs.frozen(kw_only=True)
class SessionEnded:
    """`destroy` did its work, or failed: then `error` says why. `lifetime`: seconds since the session was made."""

    session_id: str
    backend: str
    duration: float
    lifetime: float
    error: ErrorCode | None = None


@attrs.frozen(kw_only=True)
class Hooks:
    """Functions that are told, each of one kind of event; those that are None cost nothing.

    They run on the thread of the call that they are about, so they should be quick. What one raises is logged, once,
    by the logger `sandboxkit.hooks`, and disturbs nobody; a KeyboardInterrupt goes on.
    """

    on_session_create: Callable[[SessionCreated], object] | None = None
    on_exec_start: Callable[[ExecStarted], object] | None = None
    on_exec_end: Callable[[ExecEnded], object] | None = None
    on_file_write: Callable[[FileWritten], object] | None = None
    on_destroy: Callable[[SessionEnded], object] | None = None

    def __attrs_post_init__(self) -> None:
        for name in _NAMES:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                check.fail(f"hooks.{name}", hook, "a callable that takes one event, or None")

    @classmethod
    def combine(cls, *hooks: Hooks) -> Hooks:
        """Hooks that tell all of these, in order."""
        return cls(**{name: _all([getattr(each, name) for each in hooks]) for name in _NAMES})

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(getattr(self, name) is not None for name in _NAMES)


_NAMES = tuple(field.name for field in attrs.fields(Hooks))
_told: set[int] = set()
_guard = threading.Lock()


def tell(hook: Callable[[E], object] | None, event: E) -> None:
    """Call a hook; never raises an Exception."""
    if hook is None:
        return
    try:
        hook(event)
    except Exception:
        with _guard:
            known = id(hook) in _told
            _told.add(id(hook))
        if not known:
            import logging

            logging.getLogger("sandboxkit.hooks").exception(
                "A hook for %s failed; further failures of it are not logged", type(event).__name__
            )


def _all(hooks: list[Callable[[E], object] | None]) -> Callable[[E], object] | None:
    found = [hook for hook in hooks if hook is not None]
    if not found:
        return None

    def tell_all(event: E) -> None:
        for hook in found:
            tell(hook, event)

    return tell_all
