"""Calling the agent's applets (agent/PROTOCOL.md section 6): what goes in, what comes out, how failures are told."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Final, NoReturn, Protocol, TypeVar

from . import _validate as check
from ._frames import Stream, printable
from ._records import DONE, BrokenRecordError, Identity, IncompleteError, Reader
from ._run import Collector, Queue, Run
from .abort import Abort
from .config import Limits
from .errors import ConfigError, FileError, FileTooLargeError, PathError, SandboxError
from .results import ExecResult

__all__ = ["AppletHost", "Applets", "Call", "checked_cwd", "host_error", "new_token", "sandbox_path"]

T = TypeVar("T")

_ERROR_BYTES: Final = 4096
_MAX_PATH: Final = 4095

_PATH_ERRORS: Final[dict[int, str]] = {
    errno.ENOENT: "it does not exist",
    errno.ENOTDIR: "it, or what leads to it, is not a directory",
    errno.EISDIR: "it is a directory",
    errno.EXDEV: "it leads outside the workspace",
    errno.ELOOP: "it is a loop of links, or changes all the time",
    errno.ENAMETOOLONG: "it is too long",
    errno.EEXIST: "it exists already",
    errno.ENOTEMPTY: "it is a directory that is not empty",
    errno.EACCES: "the session's user may not",
    errno.EPERM: "the session's user may not",
    errno.EROFS: "it is on a read-only file system",
    errno.ENXIO: "it is no regular file but a FIFO, socket or device",
    errno.EBUSY: "it is the workspace itself, or in use as a mount",
    errno.EINVAL: "it can't be used for that, or is to be moved into itself",
    errno.EOPNOTSUPP: "its file system can't do that; moves between file systems are copies: use cp",
}


class AppletHost(Protocol):
    """The session, as applets need it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def workspace(self) -> str: ...

    def start_applet(
        self,
        name: str,
        args: Sequence[str],
        *,
        sink: Collector,
        input: bytes | memoryview | Iterator[bytes] | None,
        timeout: float | None,
        abort: Abort | None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> Run | None:
        """Start it; None when the abort came first. `cwd` and `env` are for `which` alone."""
        ...


class Contents(Collector):
    """A sink for `read`: an identity, then the bytes, `most` at most."""

    def __init__(self, most: int) -> None:
        super().__init__(_ERROR_BYTES)
        self._most = most
        self._head = b""
        self._bytes = BytesIO()  # gives its buffer out without a copy
        self.over = False

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        if stream is Stream.STDERR:
            return super().feed(stream, chunk)
        missing = Identity.SIZE - len(self._head)
        if missing:
            self._head += chunk[:missing]
            chunk = chunk[missing:]
        if self._bytes.tell() + len(chunk) > self._most:
            self.over = True
        else:
            self._bytes.write(chunk)
        return True

    def value(self) -> tuple[Identity, bytes]:
        """What was read."""
        if len(self._head) < Identity.SIZE or self.over:
            raise BrokenRecordError("a file that is not what was announced")
        return Identity.parse(self._head), self._bytes.getvalue()


class Chunks(Queue):
    """A sink for records: standard output in chunks for a consumer, standard error kept."""

    def __init__(self) -> None:
        super().__init__(_ERROR_BYTES)

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        if stream is Stream.STDERR:
            self.stderr.feed(chunk)
            return True
        return self.enqueue(stream, chunk)


class Call:
    """One applet with its arguments; `what` and `path` are for messages, the bounds are the caller's."""

    def __init__(
        self,
        name: str,
        *args: str | int,
        what: str,
        path: str,
        input: bytes | memoryview | Iterator[bytes] | None = None,
        timeout: float | None = None,
        abort: Abort | None = None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.args = tuple(map(str, args))
        self.what = what
        self.path = path
        self.input = input
        self.timeout = timeout
        self.abort = abort
        self.cwd = cwd
        self.env = env


class Applets:
    """Runs calls in one session. After any exception the applet is dead; what it had not finished never happened."""

    def __init__(self, host: AppletHost) -> None:
        self._host = host

    def run(self, call: Call) -> None:
        """One whose output is empty or the end record."""
        run = self._start(call, Collector(_ERROR_BYTES))
        result = run.result()
        if result.stdout_bytes != DONE:  # else it is done, even if an abort or the timeout came right behind it
            _check(call, result)

    def contents(self, call: Call, most: int) -> tuple[Identity, bytes]:
        """`read` into memory."""
        sink = Contents(most)
        _check(call, self._start(call, sink).result())
        try:
            return sink.value()
        except BrokenRecordError as broken:
            _refuse(call, str(broken))

    def records(self, call: Call, parse: Callable[[Reader], T], *, late: Callable[[], T] | None = None) -> T:
        """One whose output is parsed, on this thread, as it comes. `late` gives the value when its time was over."""
        run = self._start(call, Chunks())
        try:
            value: T | None = None
            complete = False
            try:
                value = parse(Reader(chunk for _, chunk in run.chunks()))
                complete = True
            except IncompleteError:
                pass
            result = run.result()
        except BrokenRecordError as broken:
            run.abandon()
            _refuse(call, str(broken))
        except BaseException:
            run.abandon()
            raise
        if late is not None and result.timed_out:
            return late()
        _check(call, result)
        if not complete:
            _refuse(call, "an answer that is cut short")
        return value  # type: ignore[return-value]  # complete: it is what parse returned

    def run_tidily(self, call: Call, token: str) -> None:
        """One that makes files; if it is ended in its midst, nothing named `token` is left of it."""
        try:
            self.run(call)
        except BaseException as error:
            # What the applet itself refused, it has tidied up. A killed one may have been between two system calls.
            reason = error.details.get("reason") if isinstance(error, SandboxError) else None
            if reason in ("timeout", "aborted", "killed", "host") or not isinstance(error, SandboxError):
                with contextlib.suppress(SandboxError):
                    self.run(Call("tidy", _folder_of(call.path), token, what="tidied", path=call.path))
            raise

    def _start(self, call: Call, sink: Collector) -> Run:
        run = self._host.start_applet(
            call.name,
            call.args,
            sink=sink,
            input=call.input,
            timeout=call.timeout,
            abort=call.abort,
            cwd=call.cwd,
            env=call.env,
        )
        if run is None:
            raise _aborted(call)
        return run


def new_token() -> str:
    """A name for what is not finished, that nothing else has."""
    return f".sandboxkit-{secrets.token_hex(12)}"


def _folder_of(path: str) -> str:
    # Where a killed call may have left something: beside the file. Through a link it may be anywhere.
    return path.rstrip("/").rpartition("/")[0] or "."


def sandbox_path(field: str, value: object, workspace: str) -> str:
    """The path relative to the workspace. ConfigError for what is no path, PathError for one that starts outside.

    Links and `..` are the agent's to judge: only it knows where they lead.
    """
    accepted = "a path inside the workspace, not empty, without NUL"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    path = check.text(field, value, accepted=accepted)
    if len(os.fsencode(path)) > _MAX_PATH:
        check.fail(field, path, f"a path of at most {_MAX_PATH} bytes")
    if not path.startswith("/"):
        return path
    parts = [part for part in path.split("/") if part not in ("", ".")]
    base = workspace.strip("/").split("/")
    if parts[: len(base)] != base:
        raise PathError(
            f"{field} {path!r} is outside the workspace. Use a path relative to it, or one below {workspace}.",
            details={"path": path, "errno": "EXDEV"},
        )
    inside = "/".join(parts[len(base) :]) or "."
    return inside + "/" if path.endswith("/") and inside != "." else inside


def checked_cwd(cwd: str, workspace: str) -> str:
    """A command's working folder relative to the workspace; errors as of `sandbox_path`."""
    # Only the text is judged here; links are the agent's to judge, in the container.
    check.text("cwd", cwd, accepted="a path inside the workspace, not empty, without NUL")
    path = posixpath.normpath(cwd) if ".." not in cwd.split("/") else cwd
    if not path.startswith("/"):
        return path
    inside = posixpath.relpath(path, workspace)
    if inside == ".." or inside.startswith("../"):
        raise PathError(f"cwd {cwd!r} is outside the workspace. Use a path relative to it, or one below {workspace}.")
    return inside


def host_error(what: str, error: OSError) -> FileError:
    """For what failed on this machine, not in the sandbox."""
    name = errno.errorcode.get(error.errno or 0, "")
    return FileError(f"{what}: {error.strerror or error} (on this machine).", details={"reason": "host", "errno": name})


def _check(call: Call, result: ExecResult) -> None:
    if result.ok:
        return
    if result.timed_out:
        raise FileError(
            f"{call.path!r} was not {call.what} within {result.duration:.1f} s. Pass a longer timeout.",
            retryable=True,
            details={"reason": "timeout", "path": call.path},
        )
    if result.aborted:
        raise _aborted(call)
    if result.exit_code != 1 or len(result.stderr_bytes) < 4:
        why = "the sandbox ran out of memory" if result.oom_killed else "something in the sandbox killed the operation"
        raise FileError(
            f"{call.path!r} was not {call.what}: {why}.",
            retryable=True,
            details={"reason": "killed", "path": call.path},
        )
    number = int.from_bytes(result.stderr_bytes[:4], "little")
    text = printable(result.stderr_bytes[4:404].decode("utf-8", "replace"))
    raise _error(call, number, text)


def _error(call: Call, number: int, text: str) -> SandboxError:
    name = errno.errorcode.get(number, str(number))
    details = {"path": call.path, "errno": name}
    if number == errno.EFBIG:
        return FileTooLargeError(
            f"{call.path!r} was not {call.what}: {text}. Raise limits.max_file_bytes or the call's bound.",
            details=details,
        )
    if number == errno.EBADMSG:
        return ConfigError(f"regex: {text}; accepted: a POSIX extended regular expression", details={"field": "regex"})
    if number in _PATH_ERRORS:
        about = f" ({text})" if call.name in ("move", "unpack") else ""
        return PathError(f"{call.path!r} was not {call.what}{about}: {_PATH_ERRORS[number]}.", details=details)
    reason = "changed" if number == errno.ESTALE else "sandbox"
    known = os.strerror(number) if number in errno.errorcode else f"error {number}"
    return FileError(
        f"{call.path!r} was not {call.what}: {known}.",
        retryable=number == errno.ESTALE,
        details={**details, "reason": reason},
    )


def _aborted(call: Call) -> FileError:
    return FileError(
        f"{call.path!r} was not {call.what}: the call was aborted.", details={"reason": "aborted", "path": call.path}
    )


def _refuse(call: Call, what: str) -> NoReturn:
    raise FileError(
        f"{call.path!r} was not {call.what}: the sandbox answered with {what}.",
        details={"reason": "malformed", "path": call.path},
    )
