"""The records applets write and read (agent/PROTOCOL.md section 6): parsed as what they are, bytes of an adversary."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

import attrs

from .file_results import FileEntry, FileType, SearchMatch
from .port_results import ListeningPort
from .results import Program

__all__ = ["DONE", "END", "BrokenRecordError", "Identity", "IncompleteError", "Reader", "encode_entry"]

MAX_PATH: Final = 4095
MAX_BLOCK: Final = 262_144
MAX_SIZE: Final = 2**63 - 1

_ENTRY = struct.Struct("<BBHIQqQIIHH")
_IDENTITY = struct.Struct("<QQQQQII")
_PAGE = struct.Struct("<QQQQQB7x")
_MATCH = struct.Struct("<BBHIQQ")
_END = struct.Struct("<BBHI")
_LISTENER = struct.Struct("<BBHII16s")
_PACK = struct.Struct("<B7xQQ")
_PROGRAM = struct.Struct("<BBHHHQQ")
_U32 = struct.Struct("<I")

_TYPES: dict[int, FileType] = {
    ord("f"): "file",
    ord("d"): "directory",
    ord("l"): "link",
    ord("p"): "fifo",
    ord("s"): "socket",
    ord("c"): "device",
    ord("b"): "device",
    ord("?"): "unreadable",
}

END: Final = _ENTRY.pack(ord("Z"), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""What ends the input of `unpack`."""

DONE: Final = _END.pack(ord("Z"), 0, 0, 0)
"""What `write` and `unpack` say when they have done it."""


class BrokenRecordError(Exception):
    """The bytes are no such record."""


class IncompleteError(Exception):
    """The bytes ended before the record did: the applet failed, or was ended, and its result says why."""


class Reader:
    """Takes records off chunks of bytes. Holds one record and one chunk at most."""

    def __init__(self, chunks: Iterator[bytes | bytearray]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        if len(self._rest) >= count:
            taken, self._rest = self._rest[:count], self._rest[count:]
            return bytes(taken)
        parts, missing = [self._rest], count - len(self._rest)
        self._rest = memoryview(b"")
        while missing:
            chunk = memoryview(next(self._chunks, b""))
            if not chunk.nbytes:
                raise IncompleteError
            parts.append(chunk[:missing])
            self._rest = chunk[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def rest(self) -> Iterator[memoryview]:
        """All that follows, as it comes."""
        if self._rest.nbytes:
            yield self._rest
        self._rest = memoryview(b"")
        for chunk in self._chunks:
            yield memoryview(chunk)

    def finish(self) -> None:
        """Nothing follows."""
        for chunk in self.rest():
            if chunk.nbytes:
                raise BrokenRecordError("bytes behind the last record")

    def kind(self) -> int:
        """The first byte of the next record, which stays."""
        if not self._rest.nbytes:
            self._rest = memoryview(next(self._chunks, b""))
        if not self._rest.nbytes:
            raise IncompleteError
        return self._rest[0]

    def entry(self, *, nameless: bool = False) -> FileEntry:
        """'E'. With `nameless` the path is empty, else it is relative, plain and inside."""
        kind, type_, _, mode, size, mtime, inode, uid, gid, length, link = _ENTRY.unpack(self.exactly(_ENTRY.size))
        if kind != ord("E") or type_ not in _TYPES or mode > 0o7777 or size > MAX_SIZE:
            raise BrokenRecordError("an entry with fields out of range")
        if length > MAX_PATH or link > MAX_PATH:
            raise BrokenRecordError("an entry with a path that is none")
        path, target = self.exactly(length), self.exactly(link)
        if nameless != (not path) or (path and not is_plain(path)) or b"\0" in target:
            raise BrokenRecordError("an entry with a path that is none")
        return FileEntry(
            path=os.fsdecode(path),
            type=_TYPES[type_],
            size=size,
            mode=mode,
            mtime_ns=mtime,
            inode=inode,
            uid=uid,
            gid=gid,
            target=os.fsdecode(target) if type_ == ord("l") else None,
        )

    def match(self, most_text: int) -> SearchMatch:
        """'M', with at most `most_text` bytes of text."""
        kind, cut, length, size, line, offset = _MATCH.unpack(self.exactly(_MATCH.size))
        if kind != ord("M") or cut > 1 or size > most_text or length > MAX_PATH or max(line, offset) > MAX_SIZE:
            raise BrokenRecordError("a match with fields out of range")
        path, text = self.exactly(length), self.exactly(size)
        if not is_plain(path):
            raise BrokenRecordError("a match with a path that is none")
        return SearchMatch(
            path=os.fsdecode(path),
            line=line,
            offset=offset,
            text=text.decode("utf-8", "replace"),
            text_truncated=bool(cut),
        )

    def listener(self) -> ListeningPort:
        """'L'."""
        kind, family, port, uid, pid, address = _LISTENER.unpack(self.exactly(_LISTENER.size))
        if kind != ord("L") or family not in (4, 6) or not port or pid > 0x7FFFFFFF:
            raise BrokenRecordError("a listener with fields out of range")
        text = socket.inet_ntop(socket.AF_INET if family == 4 else socket.AF_INET6, address[: 4 if family == 4 else 16])
        return ListeningPort(port, text, uid, pid or None)

    def program(self) -> tuple[int, Program]:
        """'P': which of the names it is for, and where it is."""
        kind, flags, index, length, real, device, inode = _PROGRAM.unpack(self.exactly(_PROGRAM.size))
        if kind != ord("P") or flags > 1 or not 0 < length <= MAX_PATH or not 0 < real <= MAX_PATH:
            raise BrokenRecordError("a program with fields out of range")
        path, real_path = self.exactly(length), self.exactly(real)
        if b"\0" in path + real_path or not real_path.startswith(b"/") or b"/" not in path:
            raise BrokenRecordError("a program with a path that is none")
        return index, Program(
            path=os.fsdecode(path),
            real_path=os.fsdecode(real_path),
            device=device,
            inode=inode,
            in_workspace=bool(flags),
        )

    def path(self) -> str:
        """A path without a record around it, relative, plain and inside; nothing is `.`. Nothing follows."""
        found = b""
        for chunk in self.rest():
            found += bytes(chunk)
            if len(found) > 2 * MAX_PATH:
                raise BrokenRecordError("a path that is too long")
        path = os.path.normpath(found or b".")  # what is not there yet comes as it was written
        if path != b"." and not is_plain(path):
            raise BrokenRecordError("a path that is none")
        return os.fsdecode(path)

    def end(self) -> tuple[int, int]:
        """'Z': what was cut, as bits, and how much was skipped; nothing follows."""
        found = parse_end(self.exactly(_END.size))
        self.finish()
        return found

    def page(self, most: int) -> tuple[tuple[int, ...], bytes]:
        """A page's numbers and its bytes, `most` at most."""
        numbers = _PAGE.unpack(self.exactly(_PAGE.size))
        if max(numbers) > MAX_SIZE or numbers[4] > most or numbers[5] > 1:
            raise BrokenRecordError("a page with fields out of range")
        data = self.exactly(numbers[4])
        self.finish()
        return numbers, data

    def totals(self) -> tuple[int, int]:
        """'H': bytes and entries that a pack is going to hold; a hint, no promise."""
        kind, size, count = _PACK.unpack(self.exactly(_PACK.size))
        if kind != ord("H") or max(size, count) > MAX_SIZE:
            raise BrokenRecordError("no totals of a pack")
        return size, count

    def blocks(self) -> Iterator[bytes]:
        """A file's content in a pack."""
        while True:
            (size,) = _U32.unpack(self.exactly(_U32.size))
            if size > MAX_BLOCK:
                raise BrokenRecordError(f"a block of {size} bytes")
            if not size:
                return
            yield self.exactly(size)


def is_plain(path: bytes) -> bool:
    """Relative, and each component a name."""
    return b"\0" not in path and all(part not in (b"", b".", b"..") and len(part) <= 255 for part in path.split(b"/"))


def parse_end(record: bytes) -> tuple[int, int]:
    """See `Reader.end`."""
    kind, cut, _, skipped = _END.unpack(record)
    if kind != ord("Z"):
        raise BrokenRecordError("neither an entry nor the end")
    return cut, skipped


@attrs.frozen
class Identity:
    """Which file it was, and that its content is the same."""

    SIZE = _IDENTITY.size

    device: int
    inode: int
    size: int
    mtime: int
    ctime: int
    mode: int

    @classmethod
    def parse(cls, record: bytes) -> Identity:
        """BrokenRecordError for numbers that no file has."""
        device, inode, size, mtime, ctime, mode, _ = _IDENTITY.unpack(record)
        if size > MAX_SIZE or mode > 0o7777:
            raise BrokenRecordError("an identity with fields out of range")
        return cls(device, inode, size, mtime, ctime, mode)

    def arguments(self) -> tuple[str, ...]:
        """For `write`: only if it is still this."""
        return tuple(map(str, (self.device, self.inode, self.size, self.mtime, self.ctime)))


def encode_entry(type_: FileType, path: str, *, mode: int = 0, size: int = 0, target: str = "") -> bytes:
    """An entry for `unpack`; behind a file's come `size` bytes."""
    letter = {"file": "f", "directory": "d", "link": "l"}[type_]
    name, link = os.fsencode(path), os.fsencode(target)
    return _ENTRY.pack(ord("E"), ord(letter), 0, mode, size, 0, 0, 0, 0, len(name), len(link)) + name + link
