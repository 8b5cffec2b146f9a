"""Whether the programs of a root filesystem can run: each dynamic one names its loader, which has to be in it too."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

__all__ = ["missing_loader", "resolve_inside"]

_FOLDERS = ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin")
_FIRST = ("bin/sh", "usr/bin/env", "bin/busybox")
_MOST = 64
_LINKS = 40  # the kernel's own limit
_PT_INTERP = 3


def missing_loader(root: Path) -> tuple[str, str] | None:
    """A program and the loader that it lacks; None if any program of the first few can run, or there is none."""
    missing = None
    for name in islice(_programs(root), _MOST):
        path = resolve_inside(root, name)
        loader = None if path is None else _loader(path)
        if loader is None:
            continue
        if not loader or resolve_inside(root, loader) is not None:
            return None
        missing = missing or (f"/{name}", loader)
    return missing


def resolve_inside(root: Path, name: str) -> Path | None:
    """Where `name` leads for a process whose root is `root`; None where it leads nowhere. No link leads out."""
    parts, at, links = name.split("/")[::-1], root, 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at.parent if at != root else root
            continue
        path = at / part
        if path.is_symlink():
            links += 1
            if links > _LINKS:
                return None
            target = os.readlink(path)
            parts += target.split("/")[::-1]
            at = root if target.startswith("/") else at
        elif not os.path.lexists(path):
            return None
        else:
            at = path
    return at


def _programs(root: Path) -> Iterator[str]:
    yield from _FIRST
    for folder in _FOLDERS:
        path = resolve_inside(root, folder)
        if path is not None and path.is_dir():
            yield from (f"{folder}/{name}" for name in sorted(os.listdir(path)))


def _loader(path: Path) -> str | None:
    """Of an ELF program; empty for a static one, None for anything else. elf(5), 64 bit, little-endian."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
                return None
            (offset,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            table = file.read(size * count)
            for at in range(0, len(table) - 55, size or 1):
                if struct.unpack_from("<I", table, at)[0] == _PT_INTERP:
                    file.seek(struct.unpack_from("<Q", table, at + 8)[0])
                    length = struct.unpack_from("<Q", table, at + 32)[0]
                    return os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
    except (OSError, struct.error):
        return None
    return ""
