"""Globs as the agent matches them (agent/applet_glob.c), for trees on the host: over bytes, in bounded time."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["matches", "matches_any"]


def matches(pattern: str, path: str) -> bool:
    """`*` and `?` within a component, `**` over any number, `[a-z]`, `[!a-z]`; without a slash the last one alone."""
    wanted, name = os.fsencode(pattern), os.fsencode(path)
    if b"/" not in wanted:
        return wanted == b"**" or _component(wanted, name.rpartition(b"/")[2])
    return _path(wanted.removeprefix(b"/").split(b"/"), name.split(b"/"))


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Whether one of them does."""
    return any(matches(pattern, path) for pattern in patterns)


def _path(patterns: list[bytes], parts: list[bytes]) -> bool:
    # With the last `**` as the one place to come back to.
    pattern = part = 0
    again: int | None = None
    resume = 0
    while True:
        if pattern < len(patterns) and patterns[pattern] == b"**":
            if pattern + 1 == len(patterns):
                return part < len(parts)
            pattern += 1
            again, resume = pattern, part
        elif pattern < len(patterns) and part < len(parts) and _component(patterns[pattern], parts[part]):
            pattern, part = pattern + 1, part + 1
            if pattern == len(patterns) and part == len(parts):
                return True
        elif again is None or resume + 1 >= len(parts):
            return False
        else:
            resume += 1
            pattern, part = again, resume


def _component(pattern: bytes, name: bytes) -> bool:
    at = place = 0
    star: int | None = None
    resume = 0
    while place < len(name):
        step = _step(pattern, at, name, place)
        if step is not None:
            at, place = step
        elif at < len(pattern) and pattern[at] == ord("*"):
            at += 1
            star, resume = at, place
        elif star is not None:
            resume += 1
            at, place = star, resume
        else:
            return False
    return not pattern[at:].strip(b"*")


def _step(pattern: bytes, at: int, name: bytes, place: int) -> tuple[int, int] | None:
    # One character of each, when they match.
    if at >= len(pattern) or pattern[at] == ord("*"):
        return None
    if pattern[at] == ord("?"):
        place += 1
        while place < len(name) and 0x80 <= name[place] < 0xC0:
            place += 1
        return at + 1, place
    if pattern[at] == ord("["):
        after = _set(pattern, at + 1, name[place])
        return None if after is None else (after, place + 1)
    return (at + 1, place + 1) if pattern[at] == name[place] else None


def _set(pattern: bytes, at: int, byte: int) -> int | None:
    # The place behind the set that begins at `at` when the byte is in it. Without a "]" the bracket is itself.
    start = at
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    first, found = at, False
    while pattern[at : at + 1] != b"]" or at == first:
        if at >= len(pattern):
            return start if byte == ord("[") else None
        if pattern[at + 1 : at + 2] == b"-" and pattern[at + 2 : at + 3] not in (b"]", b""):
            found = found or pattern[at] <= byte <= pattern[at + 2]
            at += 2
        else:
            found = found or pattern[at] == byte
        at += 1
    return at + 1 if found != negated else None
