"""A tar of a root filesystem becomes a folder, and nothing in it reaches outside of that folder.

Nothing is written through a link, no link is followed, no device, no set-user-ID bit and no owner is taken over.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from sandboxkit.errors import ConfigError

__all__ = ["unpack"]

_CHUNK = 1024 * 1024


def unpack(archive: Path, target: Path) -> None:
    """Into `target`, an empty folder. ConfigError for no tar, or one that reaches outside; then part of it is there."""
    try:
        with tarfile.open(archive) as tar:
            _Unpacking(target).run(tar)
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        _refuse(f"{archive} can't be read as a tar: {error}")


def _refuse(why: str) -> NoReturn:
    raise ConfigError(
        f"image is no root filesystem: {why}. Accepted: a folder, or a tar of one such as `docker export` makes.",
        details={"field": "image"},
    )


class _Unpacking:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._folders: dict[str, int] = {"": 0o755}  # made, with the mode they get at the end
        self._files: set[str] = set()

    def run(self, tar: tarfile.TarFile) -> None:
        for member in tar:
            name = _inside(member.name)
            if name:
                self._put(tar, member, name)
        # Only now: a folder may forbid writing even to its owner. From the bottom up, for the same reason.
        for name, mode in sorted(self._folders.items(), reverse=True):
            os.chmod(self._target / name, mode)

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        self._make_folder(os.path.dirname(name))
        path = self._target / name
        if member.isdir():
            self._make_folder(name)
            self._folders[name] = member.mode & 0o777 | 0o500
        elif member.issym():
            self._clear(name)
            os.symlink(member.linkname, path)  # whatever it says, it is the sandbox's to follow
        elif member.islnk():
            source = _inside(member.linkname)
            if source not in self._files:
                _refuse(f"{member.name!r} is a hard link to {member.linkname!r}, which is no file before it")
            if source != name:
                self._clear(name)
                os.link(self._target / source, path, follow_symlinks=False)
                self._files.add(name)
        elif member.isreg():
            content = tar.extractfile(member)
            assert content is not None
            self._clear(name)
            with content, open(path, "xb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
            os.chmod(path, member.mode & 0o777 | 0o400)
            self._files.add(name)
        # Devices and FIFOs are left out: every sandbox has a /dev of its own.

    def _make_folder(self, name: str) -> None:
        for parent in (*_parents(name), name):
            if parent in self._folders:
                continue
            if os.path.lexists(self._target / parent):
                _refuse(f"{parent!r} is a folder in it and something else too")
            os.mkdir(self._target / parent, 0o700)
            self._folders[parent] = 0o755

    def _clear(self, name: str) -> None:
        # The later entry of a name wins, as in tar itself.
        if name in self._folders:
            _refuse(f"{name!r} is a folder in it and something else too")
        self._files.discard(name)
        if os.path.lexists(self._target / name):
            os.unlink(self._target / name)


def _inside(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        _refuse(f"it has the name {name!r}")
    return "/".join(parts)


def _parents(name: str) -> Iterator[str]:
    parts = name.split("/")
    for count in range(1, len(parts)):
        yield "/".join(parts[:count])
