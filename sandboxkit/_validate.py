"""Checks of what callers pass in. Each raises ConfigError naming the field, what came, and what is accepted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from .errors import ConfigError

__all__ = ["args", "boolean", "command", "environment", "image", "integer", "labels", "number", "session_id", "text"]

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
# The grammar of github.com/distribution/reference, read loosely: an optional registry, lower-case path components, then
# an optional tag and digest. `rootfs:PATH` and bare image ids (hex) pass too; the engine has the last word.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_MAX_ARGUMENT = 128 * 1024 - 1  # Linux's MAX_ARG_STRLEN less the NUL (execve(2))
_MAX_REQUEST = 2 * 1024 * 1024 - 4096  # execve(2): a quarter of an 8 MiB stack holds arguments and environment


def fail(field: str, value: object, accepted: str) -> NoReturn:
    """Raise the ConfigError every check here ends in."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise ConfigError(f"{field} is {shown}; accepted: {accepted}", details={"field": field})


def number(field: str, value: object, *, minimum: float = 0, exclusive: bool = True, optional: bool = False) -> None:
    """A finite int or float above (or at) `minimum`; bool is neither."""
    accepted = f"a number {'above' if exclusive else 'of at least'} {minimum:g}" + (" or None" if optional else "")
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        fail(field, value, accepted)
    if value < minimum or (exclusive and value == minimum):
        fail(field, value, accepted)


def integer(field: str, value: object, *, minimum: int, maximum: int | None = None, optional: bool = False) -> None:
    """A whole number in a range; bool is none."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    accepted = f"a whole number {bounds}" + (" or None" if optional else "")
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        fail(field, value, accepted)
    if maximum is not None and value > maximum:
        fail(field, value, accepted)


def boolean(field: str, value: object) -> None:
    """True or False, nothing truthy."""
    if not isinstance(value, bool):
        fail(field, value, "True or False")


def text(field: str, value: object, *, accepted: str = "a non-empty string without NUL", empty: bool = False) -> str:
    """A string the kernel can take: no NUL, encodable (lone surrogates of os.fsdecode are fine)."""
    if not isinstance(value, str) or (not value and not empty) or "\0" in value:
        fail(field, value, accepted)
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        fail(field, value, f"{accepted} (this one holds a surrogate that is no file system byte)")
    return value


def session_id(value: object) -> str:
    """An id that every engine takes as part of a container's name."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        fail("id", value, "1 to 63 of a-z 0-9 _ . - starting with a letter or digit")
    return value


def image(value: object) -> str:
    """An image reference such as `python:3.12-slim`."""
    if not isinstance(value, str) or len(value) > 4096:
        fail("image", value, "an image reference such as 'python:3.12-slim'")
    if not value.startswith("rootfs:") and not _IMAGE.fullmatch(value):
        fail("image", value, "an image reference such as 'python:3.12-slim' or 'registry:5000/team/image@sha256:...'")
    return value


def environment(field: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Names without `=` or NUL, values without NUL, both strings."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(field, value, "a mapping of names to strings")
    for name, content in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            fail(f"{field} name", name, "a non-empty string without '=' or NUL")
        text(f"{field}[{name!r}]", content, accepted="a string without NUL", empty=True)
        text(f"{field} name", name)
    return dict(value)


def labels(value: Mapping[str, str] | None) -> dict[str, str]:
    """Labels for people; the `sandboxkit.` prefix is ours."""
    found = environment("labels", value)
    for name in found:
        if name.startswith("sandboxkit."):
            fail("labels name", name, "any name but those that start with 'sandboxkit.'")
    return found


def command(value: object) -> str:
    """One executable: a name looked up in the sandbox's PATH, or a path. Never a shell line."""
    return text("command", value, accepted="the name or path of one executable, not empty, without NUL")


def args(value: object) -> tuple[str, ...]:
    """A sequence of strings; one string alone is the commonest mistake and is refused."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        fail("args", value, "a list or tuple of strings, such as ['-c', 'print(1)']")
    found = tuple(value)
    for index, item in enumerate(found):
        text(f"args[{index}]", item, accepted="a string without NUL", empty=True)
        if len(os.fsencode(item)) > _MAX_ARGUMENT:
            fail(
                f"args[{index}]",
                item,
                f"at most {_MAX_ARGUMENT} bytes (Linux's limit for one argument); pass it as input=",
            )
    return found


def request_size(size: int) -> None:
    """Arguments and environment of one command together."""
    if size > _MAX_REQUEST:
        fail("args", f"{size} bytes with env", f"at most {_MAX_REQUEST} bytes of arguments and environment; use input=")
