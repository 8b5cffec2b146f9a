"""From the host into a sandbox: what `unpack` reads, made while it reads. Below the root no link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

import attrs

from . import _validate as check
from ._applets import host_error
from ._glob import matches_any
from ._records import END, encode_entry
from .errors import FileError, FileTooLargeError
from .file_results import FileProgress, FileType, ProgressFunction, Transfer

__all__ = ["Item", "Plan", "checked_exclude", "file_chunks", "open_host_file", "plan_tree", "unpack_input"]

_BLOCK = 262_144
_BATCH = 65_536
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # a FIFO must not keep us waiting
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


@attrs.frozen(kw_only=True)
class Item:
    """One thing to be made: `path` in the sandbox; a file's bytes are `content`, or at `parts` below `root` here."""

    path: str
    type: FileType
    mode: int
    size: int = 0
    target: str = ""
    content: bytes | None = None
    root: str = ""
    parts: tuple[str, ...] = ()


@attrs.frozen
class Plan:
    """What an upload is going to do, by the sizes of this moment."""

    items: list[Item]
    skipped: list[tuple[str, str]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.size for item in self.items)

    def transfer(self) -> Transfer:
        """The report when it is done."""
        count = {type_: sum(item.type == type_ for item in self.items) for type_ in ("file", "directory", "link")}
        return Transfer(
            files=count["file"],
            directories=count["directory"],
            links=count["link"],
            bytes=self.size,
            skipped=tuple(self.skipped),
        )


def plan_tree(
    root: str, target: str, *, exclude: Sequence[str], file_max: int, total_max: int, entries_max: int
) -> Plan:
    """Everything below the folder `root`, by its sizes of this moment. FileError for what can't be read."""
    try:
        return _plan(root, target, exclude, file_max, total_max, entries_max)
    except OSError as error:
        raise host_error(f"{root!r} can't be read", error) from error


def _plan(root: str, target: str, exclude: Sequence[str], file_max: int, total_max: int, entries_max: int) -> Plan:
    plan = Plan([], [])
    base = "" if target in (".", "") else target.rstrip("/") + "/"
    total = 0
    if base:
        plan.items.append(Item(path=base.rstrip("/"), type="directory", mode=_folder_mode(root)))
    for parts, status in _walk(root, exclude):
        path = base + "/".join(parts)
        kind = stat.S_IFMT(status.st_mode)
        if len(plan.items) >= entries_max:
            raise FileTooLargeError(
                f"{root!r} has more than {entries_max} entries. Raise max_entries, or exclude some."
            )
        if kind == stat.S_IFREG:
            total += status.st_size
            _bounded("/".join(parts), status.st_size, file_max, total, total_max)
            mode = status.st_mode & 0o777
            plan.items.append(Item(path=path, type="file", mode=mode, size=status.st_size, root=root, parts=parts))
        elif kind == stat.S_IFDIR:
            plan.items.append(Item(path=path, type="directory", mode=status.st_mode & 0o777 | 0o700))
        elif kind == stat.S_IFLNK:
            with _parent(root, parts) as folder:
                plan.items.append(
                    Item(path=path, type="link", mode=0o777, target=os.readlink(parts[-1], dir_fd=folder))
                )
        else:
            plan.skipped.append(("/".join(parts), "no file, folder or link"))
    return plan


def unpack_input(items: Iterable[Item], total: int, progress: ProgressFunction | None) -> Iterator[bytes]:
    """The records, batched. FileError when a file here is no longer what it was."""
    batch = bytearray()
    done = files = 0
    for item in items:
        batch += encode_entry(item.type, item.path, mode=item.mode, size=item.size, target=item.target)
        if item.type == "file":
            for chunk in [item.content] if item.content is not None else _content(item):
                batch += chunk
                done += len(chunk)
                if len(batch) >= _BATCH:
                    yield bytes(batch)
                    batch.clear()
                    _tell(progress, item.path, done, total, files)
            files += 1
            _tell(progress, item.path, done, total, files)
    yield bytes(batch) + END


def open_host_file(path: str, most: int) -> tuple[int, int]:
    """A descriptor and the size of a regular file; the caller closes it."""
    try:
        fd = os.open(path, _FILE_FLAGS)
    except OSError as error:
        raise host_error(f"{path!r} can't be opened", error) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path!r} is no regular file (on this machine).", details={"reason": "host"})
        _bounded(path, status.st_size, most, status.st_size, most)
    except BaseException:
        os.close(fd)
        raise
    return fd, status.st_size


def file_chunks(fd: int, size: int, name: str, progress: ProgressFunction | None = None) -> Iterator[bytes]:
    """Exactly `size` bytes of the file, whatever it has become. FileError when it has become shorter."""
    done = 0
    while done < size:
        try:
            chunk = os.read(fd, min(_BLOCK, size - done))
        except OSError as error:
            raise host_error(f"{name!r} can't be read", error) from error
        if not chunk:
            raise FileError(f"{name!r} became shorter while it was read (on this machine).", details={"reason": "host"})
        done += len(chunk)
        yield chunk
        _tell(progress, name, done, size, int(done == size))


def checked_exclude(value: object) -> tuple[str, ...]:
    """A sequence of globs."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        check.fail("exclude", value, "a list of globs, such as ['.git', '**/*.pyc']")
    return tuple(check.text(f"exclude[{index}]", glob) for index, glob in enumerate(value))


def _tell(progress: ProgressFunction | None, path: str, done: int, total: int, files: int) -> None:
    if progress is not None:
        progress(FileProgress(path=path, bytes_done=done, bytes_total=total, files_done=files))


def _bounded(name: str, size: int, file_max: int, total: int, total_max: int) -> None:
    if size > file_max:
        raise FileTooLargeError(
            f"{name!r} has {size} bytes, more than {file_max}. Raise limits.max_file_bytes.", details={"path": name}
        )
    if total > total_max:
        raise FileTooLargeError(f"More than {total_max} bytes were to be moved. Raise max_bytes, or exclude some.")


def _content(item: Item) -> Iterator[bytes]:
    with _parent(item.root, item.parts) as folder:
        try:
            fd = os.open(item.parts[-1], _FILE_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            raise host_error(f"{'/'.join(item.parts)!r} can't be opened", error) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileError(f"{item.parts[-1]!r} is no regular file any more.", details={"reason": "host"})
            yield from file_chunks(fd, item.size, "/".join(item.parts))
        finally:
            os.close(fd)


@contextlib.contextmanager
def _parent(root: str, parts: tuple[str, ...]) -> Iterator[int]:
    # The folder of the last part, reached without following a link.
    try:
        fd = os.open(root, _FOLDER_FLAGS)
        for part in parts[:-1]:
            below = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError as error:
        raise host_error(f"{'/'.join(parts)!r} can't be reached", error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _folder_mode(root: str) -> int:
    return os.stat(root).st_mode & 0o777 | 0o700


def _walk(root: str, exclude: Sequence[str]) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    # Depth first, in order of names; each folder is opened anew from the root, so depth costs no descriptors.
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        if parts:
            with _parent(root, parts) as folder:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            yield parts, status
            if not stat.S_ISDIR(status.st_mode):
                continue
        with _parent(root, (*parts, "")) as folder:
            names = sorted(os.listdir(folder), key=os.fsencode, reverse=True)
        pending.extend(
            (*parts, name) for name in names if not exclude or not matches_any(exclude, "/".join((*parts, name)))
        )
