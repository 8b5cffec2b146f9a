"""What file operations give back. Sizes are bytes, times seconds since 1970."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Literal

import attrs

__all__ = [
    "FileEntry",
    "FileListing",
    "FileProgress",
    "FileType",
    "ProgressFunction",
    "SearchMatch",
    "SearchResult",
    "TextPage",
    "Transfer",
]

FileType = Literal["file", "directory", "link", "fifo", "socket", "device", "unreadable"]


@attrs.frozen(kw_only=True)
class FileEntry:
    """Something in a workspace. `path` is relative to where was looked; `target` is a link's, as it is written there.

    Undecodable bytes of names are lone surrogates, as `os.fsdecode` makes them, and are taken back as such.
    """

    path: str
    type: FileType
    size: int
    mode: int
    mtime_ns: int
    inode: int
    uid: int
    gid: int
    target: str | None = None

    @property
    def name(self) -> str:
        """The last component of `path`."""
        return posixpath.basename(self.path)

    @property
    def mtime(self) -> float:
        """When its content changed last."""
        return self.mtime_ns / 1e9

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file; a link is none."""
        return self.type == "file"

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory; a link to one is none."""
        return self.type == "directory"


@attrs.frozen(kw_only=True)
class FileListing:
    """Entries in the order of their names' bytes, each directory before what is in it.

    `truncated`: there are more than the limit. `skipped`: directories that could not be entered, and names too deep for
    a path.
    """

    entries: tuple[FileEntry, ...]
    truncated: bool = False
    skipped: int = 0

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> FileEntry:
        return self.entries[index]

    @property
    def paths(self) -> list[str]:
        """Of each entry."""
        return [entry.path for entry in self.entries]


@attrs.frozen(kw_only=True)
class TextPage:
    """Some lines of a file.

    Pass `start_line=page.next_line, offset=page.next_offset` to read on, until `eof`. A page ends with a whole line
    where one fits; within an overlong line `next_line` is that line again and `next_offset` is where it goes on.
    """

    text: str
    start_line: int
    start_offset: int
    next_line: int
    next_offset: int
    total_size: int
    eof: bool


@attrs.frozen(kw_only=True)
class SearchMatch:
    """A line that matched, from 1, and the offset of its first byte; without a regex a path that did, with line 0."""

    path: str
    line: int = 0
    offset: int = 0
    text: str = ""
    text_truncated: bool = False


@attrs.frozen(kw_only=True)
class SearchResult:
    """Matches in the order of paths and lines. `truncated` says which bound ended the search, if one did."""

    matches: tuple[SearchMatch, ...]
    truncated: Literal["matches", "bytes", "time"] | None = None
    skipped: int = 0

    def __iter__(self) -> Iterator[SearchMatch]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __getitem__(self, index: int) -> SearchMatch:
        return self.matches[index]


@attrs.frozen(kw_only=True)
class FileProgress:
    """How far an upload or download is. `path` is the file on its way."""

    path: str
    bytes_done: int
    bytes_total: int
    files_done: int


ProgressFunction = Callable[[FileProgress], object]


@attrs.frozen(kw_only=True)
class Transfer:
    """What an upload or download did. `skipped`: paths that were left out, each with the reason."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
