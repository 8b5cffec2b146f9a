"""What the calls of `session.files` have in common: checks, bounds, and the applets behind several of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs

from . import _validate as check
from ._applets import AppletHost, Applets, Call, new_token, sandbox_path
from ._records import Identity, Reader
from ._transfer import Bounds
from ._upload import checked_exclude
from .abort import Abort, checked_abort
from .errors import FileError, FileTooLargeError
from .file_results import FileEntry

__all__ = ["MAX_ENTRIES", "FileCalls", "SandboxPath", "checked_codec", "checked_mode", "decoded"]

SandboxPath = str | os.PathLike[str]
MAX_ENTRIES = 1_000_000


class FileCalls:
    """The base of SessionFiles; the session as `host` does the work."""

    def __init__(self, host: AppletHost) -> None:
        self._host = host
        self._applets = Applets(host)

    @property
    def _file_max(self) -> int:
        return self._host.limits.max_file_bytes

    def _path(self, field: str, path: object) -> str:
        return sandbox_path(field, path, self._host.workspace)

    def _call(
        self, name: str, path: str, *args: str | int, what: str, timeout: float | None, abort: Abort | None
    ) -> Call:
        checked_abort("abort", abort)
        return Call(name, path, *args, what=what, path=path, timeout=timeout, abort=abort)

    def _read(
        self, path: SandboxPath, offset: int, length: int | None, timeout: float | None, abort: Abort | None
    ) -> tuple[Identity, bytes]:
        most = self._file_max
        where = self._path("path", path)
        if length is not None and length > most:
            raise FileTooLargeError(
                f"{length} bytes of {where!r} were asked for, more than limits.max_file_bytes, {most}."
            )
        some = "-" if length is None else str(length)
        call = self._call("read", where, offset, some, most, what="read", timeout=timeout, abort=abort)
        return self._applets.contents(call, most if length is None else length)

    def _stat(self, path: SandboxPath, follow: bool, timeout: float | None, abort: Abort | None) -> FileEntry:
        where = self._path("path", path)
        call = self._call("stat", where, int(follow), what="looked at", timeout=timeout, abort=abort)

        def parse(reader: Reader) -> FileEntry:
            entry = reader.entry(nameless=True)
            reader.end()
            return entry

        return attrs.evolve(self._applets.records(call, parse), path=where)

    def _write_flags(self, append: bool, exclusive: bool, parents: bool) -> int:
        check.boolean("append", append)
        check.boolean("exclusive", exclusive)
        check.boolean("parents", parents)
        if append and exclusive:
            check.fail("exclusive", exclusive, "False with append=True")
        return append * 1 | exclusive * 2 | parents * 4

    def _write(
        self,
        path: SandboxPath,
        data: memoryview,
        *,
        flags: int,
        mode: int | None,
        timeout: float | None,
        abort: Abort | None,
        identity: Identity | None = None,
    ) -> None:
        where = self._path("path", path)
        if mode is not None:
            checked_mode(mode)
        if len(data) > self._file_max:
            raise FileTooLargeError(
                f"{where!r} would have {len(data)} bytes, more than limits.max_file_bytes, {self._file_max}.",
                details={"path": where},
            )
        token = new_token()
        rest: tuple[str, ...] = () if identity is None else identity.arguments()
        bits = "-" if mode is None else str(mode)
        call = self._call(
            "write",
            where,
            flags,
            bits,
            len(data),
            self._file_max,
            token,
            *rest,
            what="written",
            timeout=timeout,
            abort=abort,
        )
        call.input = data
        self._applets.run_tidily(call, token)

    def _bounds(self, exclude: Sequence[str], max_bytes: int | None, max_entries: int) -> Bounds:
        check.integer("max_bytes", max_bytes, minimum=0, maximum=2**62, optional=True)
        check.integer("max_entries", max_entries, minimum=1, maximum=MAX_ENTRIES)
        return Bounds(
            exclude=checked_exclude(exclude), file_max=self._file_max, total_max=max_bytes, entries_max=max_entries
        )


def checked_mode(value: object) -> None:
    check.integer("mode", value, minimum=0, maximum=0o777)


def checked_codec(encoding: object, errors: object) -> None:
    for field, value, sample in (("encoding", encoding, "utf-8"), ("errors", errors, "strict")):
        check.text(field, value, accepted=f"the name of one, such as {sample!r}")
    try:
        "".encode(str(encoding))
    except LookupError:
        check.fail("encoding", encoding, "the name of a text encoding, such as 'utf-8'")


def decoded(data: bytes, path: str, encoding: str, errors: str) -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path!r} is not {encoding}: byte {error.start}. Use read, or errors='replace'.",
            details={"reason": "text", "path": path},
        ) from error
    except LookupError:
        check.fail("errors", errors, "'strict', 'replace', 'ignore' or 'surrogateescape'")
