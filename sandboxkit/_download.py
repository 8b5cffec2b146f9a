"""From a sandbox onto the host: a tree, written below one folder and nowhere else, whatever the sandbox sends."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from typing_extensions import Self

from ._applets import host_error
from ._records import BrokenRecordError, Reader
from .errors import FileError, FileTooLargeError
from .file_results import FileEntry, FileProgress, ProgressFunction, Transfer

__all__ = ["HostFile", "HostTree", "receive_tree"]

_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_REASONS = {
    "fifo": "a FIFO",
    "socket": "a socket",
    "device": "a device",
    "unreadable": "the session's user can't read it",
}


class HostFile:
    """A file that appears at its place, whole, when the block ends without an exception; else nothing does."""

    def __init__(self, folder: int, name: str, mode: int | None) -> None:
        """`mode`: of permission bits; None: whoever writes sets it on the `descriptor`."""
        self._folder = folder
        self._name = name
        self._mode = mode
        self._draft = f".sandboxkit-{secrets.token_hex(12)}"

    def __enter__(self) -> Self:
        self.descriptor = os.open(self._draft, _FILE_FLAGS, 0o600, dir_fd=self._folder)
        return self

    def write(self, data: bytes | memoryview) -> None:
        """All of it."""
        view = memoryview(data)
        while view.nbytes:
            view = view[os.write(self.descriptor, view) :]

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                # No setuid, setgid or sticky bit ever; the owner can always read it.
                if self._mode is not None:
                    os.fchmod(self.descriptor, self._mode & 0o777 | 0o400)
                # Replaces a link there, never what the link points at.
                os.replace(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._draft = ""
        finally:
            os.close(self.descriptor)
            if self._draft:
                with contextlib.suppress(OSError):
                    os.unlink(self._draft, dir_fd=self._folder)


class HostTree:
    """A folder on the host and what is made below it. Every path is walked from the folder, following no link."""

    def __init__(self, root: str) -> None:
        os.makedirs(root, exist_ok=True)
        self._root = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        self._last: tuple[tuple[str, ...], int] | None = None

    def close(self) -> None:
        """Give the descriptors back."""
        self._forget()
        os.close(self._root)

    def directory(self, path: str, mode: int) -> None:
        """Make it, or use the one that is there."""
        parent, name = self._place(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        try:
            os.fchmod(fd, mode & 0o777 | 0o700)
        finally:
            os.close(fd)

    def file(self, path: str, mode: int) -> HostFile:
        """To be written within a `with`."""
        parent, name = self._place(path)
        return HostFile(parent, name, mode)

    def link(self, path: str, target: str) -> None:
        """A link as it is; `stays_inside` has been asked before."""
        parent, name = self._place(path)
        draft = f".sandboxkit-{secrets.token_hex(12)}"
        os.symlink(target, draft, dir_fd=parent)
        try:
            os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(draft, dir_fd=parent)
            raise

    def _place(self, path: str) -> tuple[int, str]:
        *parents, name = path.split("/")
        wanted = tuple(parents)
        if self._last is None or self._last[0] != wanted:
            self._forget()
            self._last = (wanted, self._open(wanted))
        return self._last[1], name

    def _open(self, parts: Iterable[str]) -> int:
        fd = os.dup(self._root)
        for part in parts:
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def _forget(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
        self._last = None


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads below the root, whatever other such links there are.

    It does when it goes up only at its beginning, and no further than the real folders it is in: then it never goes up
    from where another link has led.
    """
    if not target or target.startswith("/"):
        return False
    parts = PurePosixPath(target).parts
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return ".." not in parts[ups:] and ups <= path.count("/")


def receive_tree(
    reader: Reader,
    tree: HostTree,
    *,
    file_max: int,
    total_max: int,
    entries_max: int,
    progress: ProgressFunction | None,
) -> Transfer:
    """Write a pack below the tree's root. The bounds are checked here once more: the sandbox's word is nothing."""
    total, _ = reader.totals()
    counts = {"file": 0, "directory": 0, "link": 0}
    done = 0
    skipped: list[tuple[str, str]] = []
    while reader.kind() == ord("E"):
        entry = reader.entry()
        if sum(counts.values()) + len(skipped) >= entries_max:
            raise FileTooLargeError(f"The folder has more than {entries_max} entries. Raise max_entries.")
        reason = _receive_node(tree, entry)
        if reason is not None:
            skipped.append((entry.path, reason))
            continue
        if entry.type == "file":
            with _told(entry.path), tree.file(entry.path, entry.mode) as file:
                for block in _bounded_blocks(reader, entry, file_max, total_max - done):
                    file.write(block)
                    done += len(block)
                    if progress is not None:
                        progress(
                            FileProgress(path=entry.path, bytes_done=done, bytes_total=total, files_done=counts["file"])
                        )
        counts[entry.type] += 1
    _, unreadable = reader.end()
    if unreadable:
        skipped.append(("", f"{unreadable} folders can't be read, or are too deep for a path"))
    return Transfer(
        files=counts["file"],
        directories=counts["directory"],
        links=counts["link"],
        bytes=done,
        skipped=tuple(skipped),
    )


def _receive_node(tree: HostTree, entry: FileEntry) -> str | None:
    # Folders and links. Why the entry is left out, if it is.
    with _told(entry.path):
        if entry.type == "directory":
            tree.directory(entry.path, entry.mode)
        elif entry.type == "link":
            assert entry.target is not None
            if not stays_inside(entry.path, entry.target):
                return "a link that leads outside"
            tree.link(entry.path, entry.target)
        elif entry.type != "file":
            return _REASONS[entry.type]
    return None


def _bounded_blocks(reader: Reader, entry: FileEntry, file_max: int, total_left: int) -> Iterator[bytes]:
    size = 0
    for block in reader.blocks():
        size += len(block)
        if size > file_max or size > total_left:
            raise FileTooLargeError(
                f"{entry.path!r} makes it more than the bounds allow. Raise limits.max_file_bytes or max_bytes.",
                details={"path": entry.path},
            )
        yield block


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except (FileError, BrokenRecordError):
        raise
    except OSError as error:
        raise host_error(f"{path!r} can't be written", error) from error
