"""Whether a policy's globs let a path pass: held against where it leads, not how it is written."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from sandboxkit._glob import matches_any
from sandboxkit.abort import Abort
from sandboxkit.errors import PolicyError
from sandboxkit.session import Session

__all__ = ["PathRules"]


class PathRules:
    """`verb` is for messages: read, written."""

    def __init__(self, session: Session, allowed: tuple[str, ...] | None, denied: tuple[str, ...], verb: str) -> None:
        self._session = session
        self._allowed, self._denied = allowed, denied
        self._verb = verb

    def passed(self, path: str, abort: Abort | None, *, folder: bool = False) -> str:
        """The path that was judged, to be used in the place of what was passed. PolicyError when it may not be.

        `folder`: what is in it is judged one by one.
        """
        if self._allowed is None and not self._denied:
            return path
        real = self._session.files.resolve(path, abort=abort)
        written = self._inside(path)
        if self._is_denied(real) or (written is not None and self._is_denied(written)):
            raise PolicyError(f"{path!r} may not be {self._verb} here. Use another path.")
        if not folder and not self._is_allowed(real):
            allowed = ", ".join(self._allowed or ())
            raise PolicyError(f"{path!r} may not be {self._verb} here; allowed: {allowed or 'none'}.")
        return real

    def shows(self, path: str, *, folder: bool = False) -> bool:
        """Whether what was found at this path, which has no links, may be told of."""
        path = posixpath.normpath(path)
        return not self._is_denied(path) and (folder or self._is_allowed(path))

    def _inside(self, path: str) -> str | None:
        # As it is written, relative to the workspace; None where only the agent can say.
        base = self._session.workspace.rstrip("/") + "/"
        inside = path.removeprefix(base)
        return None if inside.startswith("/") or ".." in inside.split("/") else posixpath.normpath(inside)

    def _is_denied(self, path: str) -> bool:
        return any(matches_any(self._denied, part) for part in _upwards(path))

    def _is_allowed(self, path: str) -> bool:
        return self._allowed is None or any(matches_any(self._allowed, part) for part in _upwards(path))


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)
