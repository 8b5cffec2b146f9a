"""The bubblewrap backend of sandboxkit: sandboxes without an engine, a daemon, an image or root."""

from __future__ import annotations

from ._backend import BubblewrapBackend

__all__ = ["BubblewrapBackend"]
