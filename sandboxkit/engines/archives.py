"""The tar archives that both engines take, and the header in which they answer a `stat`."""

from __future__ import annotations

import base64
import io
import json
import secrets
import tarfile
import time
from typing import IO

import attrs

__all__ = [
    "STAT_HEADER",
    "FileFacts",
    "agent_archive",
    "file_archive",
    "first_file",
    "first_owner",
    "folder_archive",
    "parse_stat",
]

STAT_HEADER = "X-Docker-Container-Path-Stat"
"""Base64 of JSON (Docker Engine API, ContainerArchiveInfo; Podman's libpod API answers the same)."""


@attrs.frozen
class FileFacts:
    """A file in a container. `modified` is in seconds since the epoch, 0 where the engine did not say."""

    size: int
    modified: float


def parse_stat(header: str) -> FileFacts:
    """The facts in a STAT_HEADER; ValueError when it holds none."""
    found = json.loads(base64.b64decode(header))
    if not isinstance(found, dict) or not isinstance(found.get("size"), int):
        raise ValueError(f"not a path stat: {header[:200]!r}")
    return FileFacts(found["size"], _timestamp(str(found.get("mtime", ""))))


def agent_archive(binary: bytes) -> bytes:
    """The archive that puts the agent into its volume.

    `agent` comes as a hard link to a file that is whole by then, under a name that no other process uses: whoever
    looks, at any moment and also after a crash in the middle, finds the whole agent or none.
    """
    part = f".agent-{secrets.token_hex(8)}"
    archive = _Archive()
    archive.folder(0o755)
    archive.file(part, binary, 0o555)
    archive.link("agent", part)
    return archive.finished()


def file_archive(name: str, content: bytes) -> bytes:
    """One read-only file, whole or absent as the agent is."""
    part = f".{name}-{secrets.token_hex(8)}"
    archive = _Archive()
    archive.file(part, content, 0o444)
    archive.link(name, part)
    return archive.finished()


def first_owner(archive: IO[bytes]) -> int | None:
    """The uid of an archive's first entry, of which no more is read than that takes."""
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        entry = tar.next()
    return entry.uid if entry else None


def first_file(archive: IO[bytes], limit: int) -> bytes | None:
    """The content, at most `limit` bytes, of an archive's first entry; None when that is no file."""
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        entry = tar.next()
        file = tar.extractfile(entry) if entry and entry.isreg() else None
        return file.read(limit) if file else None


def folder_archive(uid: int | None) -> bytes:
    """Nothing but the folder itself that it is put into: given to `uid`, else writable for everybody."""
    archive = _Archive()
    archive.folder(0o755 if uid is not None else 0o777, uid or 0)
    return archive.finished()


class _Archive:
    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)
        self._now = int(time.time())

    def finished(self) -> bytes:
        end = self._tar.offset
        self._tar.close()
        # Two empty blocks end an archive. tarfile pads on to 10 KiB; Podman's reader is gone by then and Podman answers
        # now and then with "write |1: broken pipe" (seen with 4.3).
        return self._buffer.getvalue()[: end + 2 * tarfile.BLOCKSIZE]

    def folder(self, mode: int, uid: int = 0) -> None:
        # "/" means the folder that the archive is unpacked into. Docker skips an entry "." (pkg/archive, Unpack).
        entry = self._entry("/", mode)
        entry.type = tarfile.DIRTYPE
        entry.uid = uid
        self._tar.addfile(entry)

    def file(self, name: str, content: bytes, mode: int) -> None:
        entry = self._entry(name, mode)
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        entry = self._entry(name, 0o555)
        entry.type = tarfile.LNKTYPE
        entry.linkname = target
        self._tar.addfile(entry)

    def _entry(self, name: str, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.mode = mode
        entry.mtime = self._now
        return entry


def _timestamp(text: str) -> float:
    """Whole seconds since the epoch of an RFC 3339 time; Go writes up to nine decimals, Python 3.10 reads six."""
    from datetime import datetime  # only needed where a start failed

    try:
        zone = text[19:].lstrip(".0123456789").replace("Z", "+00:00")
        return datetime.fromisoformat(text[:19] + zone).timestamp()
    except ValueError:
        return 0.0
