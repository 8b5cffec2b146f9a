"""The tools for files: read_file, write_file, edit_file, list_files, search_files."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

from sandboxkit.abort import Abort
from sandboxkit.errors import PolicyError
from sandboxkit.file_results import FileEntry, SearchMatch
from sandboxkit.session import Session

from . import _schema as schema
from ._arguments import ArgumentsError
from ._paths import PathRules
from ._policies import ReadFilePolicy, WriteFilePolicy
from ._result import ToolResult, clean, line, success

__all__ = ["EditFile", "ListFiles", "ReadFile", "SearchFiles", "WriteFile"]

PATH = schema.string("Relative to the workspace.")
FOLDER = schema.optional(schema.string("Folder to look in, relative to the workspace; null: the workspace itself."))
_SEARCH_SECONDS = 30.0


def _readable(session: Session, policy: ReadFilePolicy) -> PathRules:
    return PathRules(session, policy.allowed, policy.denied, "read")


def _writable(session: Session, policy: WriteFilePolicy) -> PathRules:
    return PathRules(session, policy.allowed, policy.denied, "written")


class ReadFile:
    """A page of a text file."""

    name = "read_file"
    description = (
        "Read a text file of the sandbox, a page at a time. Lines count from 1. When the file goes on, the result "
        "ends with the start_line and the offset to pass to read on; pass both. A very long line comes in several "
        "pages, too. For binary files use a program that understands them."
    )

    def __init__(self, session: Session, policy: ReadFilePolicy) -> None:
        self._session, self._policy = session, policy
        self._rules = _readable(session, policy)
        self.schema = schema.record(
            path=PATH,
            start_line=schema.optional(schema.integer("First line; null: 1.")),
            line_count=schema.optional(schema.integer(f"Lines to read; null, and at most: {policy.max_lines}.")),
            offset=schema.optional(
                schema.integer("Byte where start_line begins, as the page before gave it; null: it is looked for.")
            ),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        path = self._rules.passed(arguments["path"], abort)
        asked, most = arguments["line_count"], self._policy.max_lines
        if asked is not None and asked < 1:
            raise ArgumentsError(f"line_count: {asked} is not above 0")
        page = self._session.files.read_text_page(
            path,
            start_line=1 if arguments["start_line"] is None else arguments["start_line"],
            line_count=most if asked is None else min(asked, most),  # the result says where to go on
            max_bytes=min(self._policy.max_bytes, max(self._session.limits.max_file_bytes, 4)),
            offset=arguments["offset"],
            abort=abort,
        )
        text = clean(page.text)
        note = ""
        if not page.eof:
            note = (
                f"\n[The file goes on, it has {page.total_size} bytes. "
                f"Read on with start_line={page.next_line}, offset={page.next_offset}.]"
            )
        elif not text:
            note = "[The file is empty.]" if page.total_size == 0 else "[The file ends before this line.]"
        return success(
            text + note,
            {
                "text": text,
                "start_line": page.start_line,
                "next_line": None if page.eof else page.next_line,
                "next_offset": None if page.eof else page.next_offset,
                "total_bytes": page.total_size,
            },
        )


class WriteFile:
    """A whole file at once."""

    name = "write_file"
    description = (
        "Write a text file in the sandbox, in one step; folders before it are made. It replaces a file that is there, "
        "unless `append` is true. To change a part of a file use edit_file, if there is that tool."
    )

    def __init__(self, session: Session, policy: WriteFilePolicy) -> None:
        self._session, self._policy = session, policy
        self._rules = _writable(session, policy)
        self.schema = schema.record(
            path=PATH,
            content=schema.string(f"The text, at most {policy.max_bytes} bytes."),
            append=schema.optional(schema.boolean("Add to the end of the file; null: false.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        data = _encoded("content", arguments["content"], self._policy.max_bytes)
        path = self._rules.passed(arguments["path"], abort)
        self._session.files.write(path, data, append=bool(arguments["append"]), abort=abort)
        shown = clean(arguments["path"])
        done = "added to" if arguments["append"] else "written to"
        return success(f"{len(data)} bytes were {done} {shown}.", {"path": shown, "bytes": len(data)})


class EditFile:
    """A text in a file, replaced."""

    name = "edit_file"
    description = (
        "Replace text in a file of the sandbox, in one step. `old` must be in the file exactly `count` times (once, if "
        "null), to the letter, spaces and line ends included: read the file first, and name enough of the text around "
        "the place. When it is there another number of times, nothing is changed and the result says how many."
    )

    def __init__(self, session: Session, read: ReadFilePolicy, write: WriteFilePolicy) -> None:
        self._session, self._most = session, write.max_bytes
        self._rules = (_readable(session, read), _writable(session, write))
        self.schema = schema.record(
            path=PATH,
            old=schema.string("The text to replace."),
            new=schema.string("What takes its place."),
            count=schema.optional(schema.integer("How often `old` is there; null: once.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        old, new = (_encoded(name, arguments[name], self._most).decode() for name in ("old", "new"))
        path = arguments["path"]
        for rules in self._rules:
            path = rules.passed(path, abort)
        count = 1 if arguments["count"] is None else arguments["count"]
        self._session.files.edit(path, old, new, count=count, abort=abort)
        shown = clean(arguments["path"])
        times = "once" if count == 1 else f"{count} times"
        return success(f"{shown} was changed {times}.", {"path": shown, "replaced": count})


class ListFiles:
    """What is in a folder."""

    name = "list_files"
    description = (
        "List a folder of the sandbox: one entry a line, folders end with a slash, links show their target, files "
        "their size in bytes. `recursive` goes into folders."
    )

    def __init__(self, session: Session, policy: ReadFilePolicy) -> None:
        self._session, self._policy = session, policy
        self._rules = _readable(session, policy)
        self.schema = schema.record(
            path=FOLDER, recursive=schema.optional(schema.boolean("Also what is in its folders; null: false."))
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        path = self._rules.passed(arguments["path"] or ".", abort, folder=True)
        most = self._policy.max_entries
        listing = self._session.files.list(path, recursive=bool(arguments["recursive"]), limit=most, abort=abort)
        shown = [e for e in listing if self._rules.shows(f"{path}/{e.path}", folder=e.is_directory)]
        lines, cut = _within(map(_listed, shown), self._policy.max_bytes)
        entries = [{"path": clean(entry.path), "type": entry.type, "size": entry.size} for entry in shown[: len(lines)]]
        cut = cut or listing.truncated
        note = ["[There is more. List a folder of it, or search.]"] if cut else []
        return success("\n".join([*(lines or ["[Nothing is there.]"]), *note]), {"entries": entries, "truncated": cut})


class SearchFiles:
    """Files by name, or lines by a regular expression."""

    name = "search_files"
    description = (
        "Search the sandbox's files: paths that match `glob`, or with `regex` the lines of such files that match it. "
        "Globs: * and ? within a name, ** over folders; without a slash the name counts, at any depth. `regex` is a "
        "POSIX extended regular expression, with \\w, \\s, \\d and \\b, matched line by line. Give one or both."
    )

    def __init__(self, session: Session, policy: ReadFilePolicy) -> None:
        self._session, self._policy = session, policy
        self._rules = _readable(session, policy)
        self.schema = schema.record(
            glob=schema.optional(schema.string("Such as '*.py' or 'src/**/test_*.py'; null: every file.")),
            regex=schema.optional(schema.string("Null: only the paths are searched.")),
            path=FOLDER,
            ignore_case=schema.optional(schema.boolean("For the regex; null: false.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        if arguments["glob"] is None and arguments["regex"] is None:
            raise ArgumentsError("glob and regex are both missing; give one of them, or both")
        path = self._rules.passed(arguments["path"] or ".", abort, folder=True)
        limit = self._session.limits.max_timeout
        found = self._session.files.search(
            arguments["glob"],
            regex=arguments["regex"],
            path=path,
            ignore_case=bool(arguments["ignore_case"]),
            max_matches=self._policy.max_matches,
            timeout=_SEARCH_SECONDS if limit is None else min(_SEARCH_SECONDS, limit),
            abort=abort,
        )
        shown = [match for match in found if self._rules.shows(f"{path}/{match.path}")]
        lines, cut = _within(map(_match, shown), self._policy.max_bytes)
        matches = [
            {"path": clean(match.path), "line": match.line, "text": clean(match.text)} for match in shown[: len(lines)]
        ]
        why = "bytes" if cut else found.truncated
        note = [f"[The search ended early, by its bound of {why}. Narrow it down.]"] if why else []
        return success(
            "\n".join([*(lines or ["[Nothing was found.]"]), *note]), {"matches": matches, "truncated": why is not None}
        )


def _encoded(name: str, text: str, most: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ArgumentsError(f"{name} holds half of a surrogate pair; send whole characters") from None
    if len(data) > most:
        raise PolicyError(f"{name} has {len(data)} bytes; at most {most} are taken. Write it in parts, with append.")
    return data


def _within(lines: Iterable[str], most: int) -> tuple[builtins.list[str], bool]:
    # The lines that fit, and whether some do not.
    kept: builtins.list[str] = []
    for one in lines:
        most -= len(one.encode()) + 1
        if most < 0:
            return kept, True
        kept.append(one)
    return kept, False


def _listed(entry: FileEntry) -> str:
    name = line(entry.path)
    if entry.is_directory:
        return f"{name}/"
    if entry.type == "link":
        return f"{name} -> {line(entry.target or '')}"
    return f"{name} {entry.size}" if entry.is_file else f"{name} ({entry.type})"


def _match(match: SearchMatch) -> str:
    name = line(match.path)
    # The CR of a CRLF is of the line's end; another one is in the line.
    return f"{name}:{match.line}: {line(match.text.removesuffix(chr(13)))}" if match.line else name
