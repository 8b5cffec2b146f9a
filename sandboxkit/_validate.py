"""Checks of what callers pass in. Each raises ConfigError naming the field, what came, and what is accepted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from .errors import ConfigError

__all__ = [
    "args",
    "boolean",
    "command",
    "environment",
    "fail",
    "host_paths",
    "image",
    "integer",
    "labels",
    "number",
    "octets",
    "port",
    "request_size",
    "session_id",
    "text",
    "volume_name",
]

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}")
# The grammar of github.com/distribution/reference: an optional registry, lower-case path components, then an optional
# tag and digest. A component is never "..": the engines' APIs have the image in the path of a URL. `rootfs:PATH` and
# bare image ids (hex) pass too; the engine has the last word.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_MAX_ARGUMENT = 128 * 1024 - 1  # Linux's MAX_ARG_STRLEN less the NUL (execve(2))
_MAX_REQUEST = 2 * 1024 * 1024 - 4096  # execve(2): a quarter of an 8 MiB stack holds arguments and environment


def fail(field: str, value: object, accepted: str) -> NoReturn:
    """Raise the ConfigError every check here ends in."""
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - a huge int has none, and who knows what else was passed
        shown = f"a {type(value).__name__}"
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise ConfigError(f"{field} is {shown}; accepted: {accepted}", details={"field": field})


def number(field: str, value: object, *, minimum: float = 0, exclusive: bool = True, optional: bool = False) -> None:
    """A finite int or float above (or at) `minimum`; bool is neither."""
    accepted = f"a number {'above' if exclusive else 'of at least'} {minimum:g}" + (" or None" if optional else "")
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= sys.float_info.max:
        fail(field, value, accepted)
    if exclusive and value == minimum:
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


def port(field: str, value: object, *, minimum: int = 1, optional: bool = False) -> None:
    """A TCP port; with `minimum` 0 also "any"."""
    integer(field, value, minimum=minimum, maximum=65535, optional=optional)


def boolean(field: str, value: object) -> None:
    """True or False, nothing truthy."""
    if not isinstance(value, bool):
        fail(field, value, "True or False")


def text(field: str, value: object, *, accepted: str = "a non-empty string without NUL", empty: bool = False) -> str:
    """A string the kernel can take: no NUL, encodable as UTF-8 (lone surrogates of os.fsdecode are fine)."""
    if not isinstance(value, str) or (not value and not empty) or "\0" in value:
        fail(field, value, accepted)
    try:
        _encoded(value)
    except UnicodeEncodeError:
        fail(field, value, f"{accepted} (this one holds a surrogate that is no file system byte)")
    return value


def octets(field: str, value: object, accepted: str) -> memoryview:
    """What holds bytes, as a flat view of them."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        fail(field, value, accepted)
    view = memoryview(value)
    # `cast` takes neither a view with gaps nor an empty one of several dimensions.
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def session_id(value: object) -> str:
    """An id that every engine takes as part of a container's name."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        fail("id", value, "1 to 63 of a-z 0-9 _ . - starting with a letter or digit")
    return value


def volume_name(field: str, value: object) -> None:
    """A name that every engine takes for a volume, and that is none of ours."""
    if not isinstance(value, str) or not _VOLUME.fullmatch(value) or value.startswith("sandboxkit-agent-"):
        fail(
            field, value, "2 to 128 letters, digits, _ . - starting with a letter or digit, not 'sandboxkit-agent-...'"
        )


def image(value: object) -> str:
    """An image reference such as `python:3.12-slim`."""
    accepted = "an image reference such as 'python:3.12-slim' or 'registry:5000/team/image@sha256:...'"
    reference = text("image", value, accepted=accepted)
    if reference.startswith("rootfs:"):
        if not reference.startswith("rootfs:/"):
            fail("image", value, "rootfs: and the absolute path of an unpacked root filesystem, or of a tar of one")
    elif len(reference) > 4096 or not _IMAGE.fullmatch(reference):
        fail("image", value, accepted)
    return reference


def host_paths(field: str, value: object) -> tuple[str, ...]:
    """Absolute paths of this host, as text; whether they are there is not looked at."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        fail(field, value, "a list of absolute paths")
    found = []
    for index, item in enumerate(value):
        path = text(f"{field}[{index}]", os.fspath(item) if isinstance(item, os.PathLike) else item)
        if not os.path.isabs(path) or ".." in path.split("/"):
            fail(f"{field}[{index}]", path, "an absolute path without '..'")
        found.append(os.path.normpath(path))
    return tuple(found)


def environment(field: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Names without `=` or NUL, values without NUL, both strings."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(field, value, "a mapping of names to strings")
    for name, content in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            fail(f"{field} name", name, "a non-empty string without '=' or NUL")
        text(f"{field} name", name)
        text(f"{field}[{name!r}]", content, accepted="a string without NUL", empty=True)
        _fits(f"{field}[{name!r}]", f"{name}={content}", "variable)")
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
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        fail("args", value, "a list or tuple of strings, such as ['-c', 'print(1)']")
    found = tuple(value)
    for index, item in enumerate(found):
        text(f"args[{index}]", item, accepted="a string without NUL", empty=True)
        _fits(f"args[{index}]", item, "argument); pass it as input=")
    return found


def _encoded(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _fits(field: str, value: str, of_one: str) -> None:
    if len(_encoded(value)) > _MAX_ARGUMENT:
        fail(field, value, f"at most {_MAX_ARGUMENT} bytes (Linux's limit for one {of_one}")


def request_size(size: int) -> None:
    """Arguments and environment of one command together."""
    if size > _MAX_REQUEST:
        fail("args", f"{size} bytes with env", f"at most {_MAX_REQUEST} bytes of arguments and environment; use input=")
