"""`rootfs:PATH`: a folder as it is, or a tar that is unpacked once into a cache, checked before anything runs in it.

The cache is `$XDG_CACHE_HOME/sandboxkit/rootfs` (`~/.cache/...`), this user's alone. An unpacked tar stays there for
later sessions: unpacking takes seconds, a session milliseconds. It goes when its tar is gone or has changed and another
one is unpacked; half of one, left by a process that was killed, goes the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import attrs

from sandboxkit.errors import ConfigError, EngineError

from ._descriptor import Descriptor
from ._elf import missing_loader
from ._unpack import unpack

__all__ = ["ROOTFS", "Root", "cache_folder", "open_root"]

ROOTFS = "rootfs:"

_OF_IMAGES = ("manifest.json", "oci-layout")  # what `docker save` and the like write at the top


@attrs.define
class Root:
    """A root filesystem that stays as long as this is not closed."""

    folder: Path
    _lock: Descriptor | None = None

    def close(self) -> None:
        """Idempotent."""
        if self._lock is not None:
            self._lock.close()


def open_root(image: str) -> Root:
    """For an image `rootfs:PATH`. ConfigError when there is no root filesystem there, before anything runs."""
    path = Path(image.removeprefix(ROOTFS))
    if not path.is_absolute():
        _refuse(image, "an absolute path")
    try:
        found = path.stat()
    except OSError as error:
        _refuse(image, f"the path of a folder or a tar that is there ({error.strerror})")
    if stat.S_ISREG(found.st_mode):
        return _unpacked(path, found)
    if not stat.S_ISDIR(found.st_mode) or path == Path("/"):
        _refuse(image, "the path of a folder (not of / itself), or of a tar")
    _check(image, path)
    return Root(path)


def cache_folder() -> Path:
    """Where tars are unpacked."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "sandboxkit" / "rootfs"


def _refuse(image: str, accepted: str) -> NoReturn:
    raise ConfigError(f"image is {image!r}; accepted after {ROOTFS}: {accepted}", details={"field": "image"})


def _check(image: str, folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        _refuse(image, "a folder that this process may read")
    if any(folder.joinpath(name).is_file() for name in _OF_IMAGES):
        _refuse(
            image, "a root filesystem; this is an image with its layers: `docker export` makes what is needed of it"
        )
    loader = missing_loader(folder)
    if loader is not None:
        program, name = loader
        _refuse(
            image,
            f"a root filesystem whose programs can run; {program} of this one needs the loader {name}, which it lacks",
        )


def _unpacked(archive: Path, found: os.stat_result) -> Root:
    cache = cache_folder()
    identity = {"archive": str(archive.resolve()), "size": found.st_size, "modified": found.st_mtime_ns}
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(cache):
            entry = cache / name
            if not entry.is_dir():
                _discard_stale(cache)
                _add(cache, entry, archive, identity)
            return Root(entry / "root", _lock(entry, fcntl.LOCK_SH))  # against _discard_stale
    except OSError as error:
        raise EngineError(
            f"{archive} can't be unpacked into {cache}: {error}. Set XDG_CACHE_HOME to a folder of yours with space."
        ) from error


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with open(cache / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add(cache: Path, entry: Path, archive: Path, identity: dict[str, object]) -> None:
    fresh = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache))
    try:
        root = fresh / "root"
        root.mkdir()
        unpack(archive, root)
        _check(f"{ROOTFS}{archive}", root)
        (fresh / "archive.json").write_text(json.dumps(identity))
        fresh.rename(entry)
    except BaseException:
        _delete(fresh)
        raise


def _discard_stale(cache: Path) -> None:
    for entry in cache.iterdir():
        if entry.is_dir() and not _is_current(entry) and not _is_held(entry):
            _delete(entry)


def _is_current(entry: Path) -> bool:
    try:
        identity = json.loads((entry / "archive.json").read_text())
        found = os.stat(identity["archive"])
        return (found.st_size, found.st_mtime_ns) == (identity["size"], identity["modified"])
    except (OSError, ValueError, KeyError):
        return False


def _is_held(entry: Path) -> bool:
    try:
        _lock(entry, fcntl.LOCK_EX | fcntl.LOCK_NB).close()
    except BlockingIOError:
        return True
    return False


def _lock(entry: Path, how: int) -> Descriptor:
    descriptor = Descriptor(os.open, entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, how)
    return descriptor


def _delete(folder: Path) -> None:
    # Folders in it may forbid their owner to delete; it is not followed out of.
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
