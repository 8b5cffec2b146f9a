"""`session.files`: a workspace's files, read and written by the agent. Nothing is needed in the image."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import Literal

from . import _validate as check
from ._file_calls import MAX_ENTRIES, FileCalls, SandboxPath, checked_codec, checked_mode, decoded
from ._progress import ProgressOption, shown
from ._records import BrokenRecordError, Reader
from ._transfer import download, upload
from ._upload import checked_exclude
from .abort import Abort
from .errors import FileError, PathError
from .file_results import FileEntry, FileListing, SearchMatch, SearchResult, TextPage, Transfer

__all__ = ["SessionFiles"]

HostPath = str | os.PathLike[str]

_LINE_BYTES = 4096
_EDITS = 16  # attempts at a file that others change meanwhile


class SessionFiles(FileCalls):
    """The files of one session's workspace. Every method may be called from any thread.

    Paths are relative to the workspace, or absolute inside it; `..` is fine while it stays inside. What leads outside,
    also through a link that changes at this very moment, is a PathError. A link with an absolute target counts as
    leading outside. Files belong to the session's user.

    Every call takes `timeout` (seconds; None: `limits.timeout`) and `abort`, as `Session.exec` does; at either, and on
    Ctrl-C, the operation is ended in the sandbox before the call returns. No file is larger than
    `limits.max_file_bytes`: FileTooLargeError, before a byte moves or while it moves. ConfigError names a bad argument;
    then nothing was done.
    """

    def read(
        self,
        path: SandboxPath,
        *,
        offset: int = 0,
        length: int | None = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> bytes:
        """The file's bytes: all, or `length` from `offset` on (fewer at its end). PathError for anything but a file."""
        check.integer("offset", offset, minimum=0, maximum=2**63 - 1)
        check.integer("length", length, minimum=0, optional=True)
        return self._read(path, offset, length, timeout, abort)[1]

    def read_text(
        self,
        path: SandboxPath,
        *,
        encoding: str = "utf-8",
        errors: str = "replace",
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> str:
        """The file as text, newlines as they are. With `errors="strict"` undecodable bytes are a FileError."""
        checked_codec(encoding, errors)
        data = self._read(path, 0, None, timeout, abort)[1]
        return decoded(data, str(path), encoding, errors)

    def read_text_page(
        self,
        path: SandboxPath,
        *,
        start_line: int = 1,
        line_count: int = 1000,
        max_bytes: int = 65_536,
        offset: int | None = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> TextPage:
        """Lines from `start_line` (1 is the first) on: `line_count` of them or `max_bytes`, whichever is less.

        With `offset` reading begins at that byte, which is taken to be in line `start_line`: so a page's `next_line`
        and `next_offset` read on at once, however large the file, and within a line of any length. The file may be
        larger than `limits.max_file_bytes`: only the page moves. UTF-8; undecodable bytes become U+FFFD.
        """
        where = self._path("path", path)
        check.integer("start_line", start_line, minimum=1, maximum=2**62)
        check.integer("line_count", line_count, minimum=1, maximum=2**62)
        check.integer("max_bytes", max_bytes, minimum=4, maximum=min(max(self._file_max, 4), 1 << 30))
        check.integer("offset", offset, minimum=0, maximum=2**62, optional=True)
        skip = start_line - 1 if offset is None else 0
        call = self._call(
            "page", where, offset or 0, skip, line_count, max_bytes, what="read", timeout=timeout, abort=abort
        )
        (size, begin, skipped, ends, _, eof), data = self._applets.records(call, lambda reader: reader.page(max_bytes))
        first = start_line if offset is not None else skipped + 1
        return TextPage(
            text=data.decode("utf-8", "replace"),
            start_line=first,
            start_offset=begin,
            next_line=first + ends,
            next_offset=begin + len(data),
            total_size=size,
            eof=bool(eof),
        )

    def write(
        self,
        path: SandboxPath,
        data: bytes | bytearray | memoryview,
        *,
        append: bool = False,
        exclusive: bool = False,
        mode: int | None = None,
        parents: bool = True,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """Make the file hold `data`, in one step: a reader sees the old file or the new one, and so does a failure.

        `mode`: its permission bits (None: as the file had, else 0o644). `exclusive`: PathError when it is there.
        `parents`: make missing directories before it. `append` adds to the same file instead, all of `data` or
        nothing. A link is followed to its file inside the workspace.
        """
        self._write(
            path,
            check.octets("data", data, "bytes; use write_text for text"),
            flags=self._write_flags(append, exclusive, parents),
            mode=mode,
            timeout=timeout,
            abort=abort,
        )

    def write_text(
        self,
        path: SandboxPath,
        text: str,
        *,
        encoding: str = "utf-8",
        append: bool = False,
        exclusive: bool = False,
        mode: int | None = None,
        parents: bool = True,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """`write` with text, newlines as they are."""
        checked_codec(encoding, "strict")
        if not isinstance(text, str):
            check.fail("text", text, "a string; use write for bytes")
        try:
            data = text.encode(encoding)
        except UnicodeEncodeError:
            check.fail("text", text, f"text that {encoding} can hold")
        self._write(
            path,
            memoryview(data),
            flags=self._write_flags(append, exclusive, parents),
            mode=mode,
            timeout=timeout,
            abort=abort,
        )

    def list(
        self,
        path: SandboxPath = ".",
        *,
        recursive: bool = False,
        limit: int = 10_000,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> FileListing:
        """What is in the directory, in order, at most `limit`. No link is followed below `path`."""
        check.boolean("recursive", recursive)
        check.integer("limit", limit, minimum=1, maximum=MAX_ENTRIES)
        call = self._call(
            "list", self._path("path", path), int(recursive), limit, what="listed", timeout=timeout, abort=abort
        )

        def parse(reader: Reader) -> FileListing:
            entries: builtins.list[FileEntry] = []
            while reader.kind() == ord("E"):
                if len(entries) == limit:
                    raise BrokenRecordError("more entries than were asked for")
                entries.append(reader.entry())
            cut, skipped = reader.end()
            return FileListing(entries=tuple(entries), truncated=bool(cut), skipped=skipped)

        return self._applets.records(call, parse)

    def stat(
        self,
        path: SandboxPath,
        *,
        follow_links: bool = True,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> FileEntry:
        """What is there; its `path` is as passed. A link is followed inside the workspace, or with False described."""
        check.boolean("follow_links", follow_links)
        return self._stat(path, follow_links, timeout, abort)

    def exists(self, path: SandboxPath, *, timeout: float | None = None, abort: Abort | None = None) -> bool:
        """Whether something is there; False for a link to nothing. PathError for one that leads outside."""
        try:
            self._stat(path, True, timeout, abort)
        except PathError as error:
            if error.details.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    def resolve(self, path: SandboxPath, *, timeout: float | None = None, abort: Abort | None = None) -> str:
        """Where the path leads: relative to the workspace (`.` is itself), without links and `..`.

        What does not exist yet is taken as it is written. It was so at that moment: something in the sandbox may change
        a folder into a link right behind it.
        """
        call = self._call("resolve", self._path("path", path), what="resolved", timeout=timeout, abort=abort)
        return self._applets.records(call, lambda reader: reader.path())

    def mkdir(
        self,
        path: SandboxPath,
        *,
        mode: int = 0o755,
        parents: bool = True,
        exist_ok: bool = True,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """Make a directory, and missing ones before it. PathError for anything else of that name."""
        check.boolean("parents", parents)
        check.boolean("exist_ok", exist_ok)
        checked_mode(mode)
        flags = parents * 1 | exist_ok * 2
        self._applets.run(
            self._call("mkdir", self._path("path", path), flags, mode, what="made", timeout=timeout, abort=abort)
        )

    def remove(
        self,
        path: SandboxPath,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """Remove a file, a link itself, or an empty directory; `recursive`, all that is in it, following no link."""
        check.boolean("recursive", recursive)
        check.boolean("missing_ok", missing_ok)
        flags = recursive * 1 | missing_ok * 2
        self._applets.run(
            self._call("remove", self._path("path", path), flags, what="removed", timeout=timeout, abort=abort)
        )

    def move(
        self,
        source: SandboxPath,
        target: SandboxPath,
        *,
        overwrite: bool = False,
        parents: bool = True,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """Rename, in one step. `target` is the new path itself; PathError when it is there, unless `overwrite`."""
        check.boolean("overwrite", overwrite)
        check.boolean("parents", parents)
        here, there = self._path("source", source), self._path("target", target)
        self._applets.run(
            self._call("move", here, there, overwrite * 1 | parents * 2, what="moved", timeout=timeout, abort=abort)
        )

    def search(
        self,
        glob: str | None = None,
        *,
        regex: str | None = None,
        path: SandboxPath = ".",
        ignore_case: bool = False,
        exclude: Sequence[str] = (),
        max_matches: int = 1000,
        max_bytes: int = 256 * 1024 * 1024,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> SearchResult:
        """Paths below `path` that match `glob`, or the lines of such files that match `regex`.

        Globs: `*` and `?` within a name, `**` over any number of directories, `[a-z]`; a glob without a slash is
        for the name alone, at any depth. `regex` is a POSIX extended regular expression (with `\\w`, `\\s`, `\\d`,
        `\\b`), matched line by line and by bytes, in the sandbox: a bad one costs the sandbox's time, not yours. Files
        with a NUL in their first 8 KiB are left out. The search ends at `max_matches`, after `max_bytes` of content, or
        at the timeout, with what it has and `truncated` saying so.
        """
        patterns = [check.text("glob", glob, empty=True) if glob is not None else ""]
        patterns.append(check.text("regex", regex) if regex is not None else "")
        if glob is None and regex is None:
            check.fail("glob", glob, "a glob, or a regex=, or both")
        check.boolean("ignore_case", ignore_case)
        check.integer("max_matches", max_matches, minimum=1, maximum=MAX_ENTRIES)
        check.integer("max_bytes", max_bytes, minimum=1, maximum=2**62)
        bounds = (int(ignore_case), max_matches, max_bytes, _LINE_BYTES)
        found: list[SearchMatch] = []

        def parse(reader: Reader) -> SearchResult:
            while (kind := reader.kind()) != ord("Z"):
                if len(found) == max_matches:
                    raise BrokenRecordError("more matches than were asked for")
                found.append(SearchMatch(path=reader.entry().path) if kind == ord("E") else reader.match(_LINE_BYTES))
            cut, skipped = reader.end()
            return SearchResult(matches=tuple(found), truncated=_cut(cut), skipped=skipped)

        call = self._call(
            "search",
            self._path("path", path),
            *patterns,
            *bounds,
            *checked_exclude(exclude),
            what="searched",
            timeout=timeout,
            abort=abort,
        )
        return self._applets.records(call, parse, late=lambda: SearchResult(matches=tuple(found), truncated="time"))

    def edit(
        self,
        path: SandboxPath,
        old: str,
        new: str,
        *,
        count: int = 1,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> None:
        """Replace `old`, which must be there exactly `count` times, by `new`, in one step.

        FileError (`details["reason"] == "count"`) when it is there another number of times: then the file is as it was.
        A change by someone else between reading and writing is seen, and the edit begins anew.
        """
        where = self._path("path", path)
        if not isinstance(old, str) or not old:
            check.fail("old", old, "the text to replace, not empty")
        if not isinstance(new, str):
            check.fail("new", new, "a string")
        check.integer("count", count, minimum=1)
        wanted, put = (text.encode("utf-8", "surrogateescape") for text in (old, new))
        for attempt in range(_EDITS):
            identity, data = self._read(path, 0, None, timeout, abort)
            found = data.count(wanted)
            if found != count:
                raise FileError(
                    f"{where!r} was not edited: the text is there {found} times, not {count}. "
                    "Read the file again; name more of the text around it, or pass count=.",
                    details={"reason": "count", "found": found, "expected": count, "path": where},
                )
            try:
                self._write(
                    path,
                    memoryview(data.replace(wanted, put)),
                    flags=8,
                    mode=None,
                    timeout=timeout,
                    abort=abort,
                    identity=identity,
                )
            except FileError as error:
                if error.details.get("reason") != "changed" or attempt + 1 == _EDITS:
                    raise
            else:
                return

    def upload(
        self,
        host_path: HostPath,
        path: SandboxPath,
        *,
        exclude: Sequence[str] = (),
        max_bytes: int | None = None,
        max_entries: int = 100_000,
        progress: ProgressOption = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> Transfer:
        """Copy a file of this machine to `path`, or a directory's content to below it.

        Links in a directory are copied as links, never followed; FIFOs, sockets and devices are `skipped`. `exclude`:
        globs, as in `search`, by the path below the directory. `max_bytes`: of all files together (None: no bound
        but each file's own). Each file appears whole; when the call fails, those that were done are there.

        `progress`: a function that is given FileProgress objects on this thread, or True for a progress bar.
        """
        bounds = self._bounds(exclude, max_bytes, max_entries)
        with shown(progress, f"upload {os.fspath(host_path)}") as told:
            call = self._call("write", self._path("path", path), what="written", timeout=timeout, abort=abort)
            return upload(self._applets, call, check.text("host_path", os.fspath(host_path)), bounds, told)

    def download(
        self,
        path: SandboxPath,
        host_path: HostPath,
        *,
        exclude: Sequence[str] = (),
        max_bytes: int | None = None,
        max_entries: int = 100_000,
        progress: ProgressOption = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> Transfer:
        """Copy a file to `host_path`, or a directory's content to below it, which is made when it is missing.

        Whatever the sandbox holds, nothing is written outside `host_path`, and no more than the bounds allow (None for
        `max_bytes`: 1 GiB). Links that stay inside come as links; others, and what is no file, are `skipped`. Of modes
        only the permission bits come. Files that are there are replaced, each in one step. The rest is as in `upload`.
        """
        bounds = self._bounds(exclude, max_bytes, max_entries)
        where = self._path("path", path)
        here = check.text("host_path", os.fspath(host_path))
        call = self._call("pack", where, what="read", timeout=timeout, abort=abort)
        directory = self._stat(path, True, timeout, abort).is_directory
        with shown(progress, f"download {where}") as told:
            return download(self._applets, call, directory, here, bounds, told)


def _cut(bits: int) -> Literal["matches", "bytes"] | None:
    return None if not bits else "matches" if bits & 1 else "bytes"
