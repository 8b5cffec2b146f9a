"""Every error sandboxkit raises, and the codes programs can match on.

::

    Exception
    └── SandboxError
        ├── ConfigError              (also ValueError) bad input; nothing was run
        ├── UnsupportedError         this backend does not have that feature
        ├── EngineUnavailableError   no engine answers
        ├── EngineError              the engine answered with an error
        │   └── ImageNotFoundError
        ├── LimitsNotEnforceableError
        ├── SessionNotFoundError
        ├── SessionLostError         the container, the engine or the connection is gone
        ├── SessionDestroyedError    used after destroy()
        ├── SessionBusyError         limits.max_concurrent_execs commands run already
        ├── CommandFailedError       only from ExecResult.check()
        ├── PathError                missing, not a folder, or outside the workspace
        ├── FileTooLargeError
        ├── FileError                a file operation failed: no space, timeout, abort, changed meanwhile
        ├── PolicyError
        ├── PortError
        └── ProcessError
            └── ProcessTimeoutError  (also TimeoutError)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "CommandFailedError",
    "ConfigError",
    "EngineError",
    "EngineUnavailableError",
    "ErrorCode",
    "FileError",
    "FileTooLargeError",
    "ImageNotFoundError",
    "LimitsNotEnforceableError",
    "PathError",
    "PolicyError",
    "PortError",
    "ProcessError",
    "ProcessTimeoutError",
    "SandboxError",
    "SessionBusyError",
    "SessionDestroyedError",
    "SessionLostError",
    "SessionNotFoundError",
    "UnsupportedError",
]


class ErrorCode(str, enum.Enum):
    """The stable name of an error; equal to its string, so it survives JSON."""

    CONFIG = "config"
    UNSUPPORTED = "unsupported"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    ENGINE = "engine"
    IMAGE_NOT_FOUND = "image_not_found"
    LIMITS_NOT_ENFORCEABLE = "limits_not_enforceable"
    SESSION_NOT_FOUND = "session_not_found"
    SESSION_LOST = "session_lost"
    SESSION_DESTROYED = "session_destroyed"
    SESSION_BUSY = "session_busy"
    COMMAND_FAILED = "command_failed"
    PATH = "path"
    FILE_TOO_LARGE = "file_too_large"
    FILE = "file"
    POLICY = "policy"
    PORT = "port"
    PROCESS = "process"
    PROCESS_TIMEOUT = "process_timeout"


class SandboxError(Exception):
    """The root of every error raised by sandboxkit.

    ``str(error)`` is a sentence that says what happened and what to do next. ``code`` is the class's stable
    name, ``retryable`` says whether the same call may succeed later without a change, and ``details`` holds
    facts for programs (strings, numbers, lists of them; never secrets or payloads).
    """

    code: ClassVar[ErrorCode]
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.details: dict[str, object] = dict(details or {})

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process pools; the default rebuild would drop the keyword-only fields.
        return (_rebuild, (type(self), self.args, self.retryable, self.details))


def _rebuild(
    cls: type[SandboxError], args: tuple[object, ...], retryable: bool, details: dict[str, object]
) -> SandboxError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.retryable = retryable
    error.details = dict(details)
    return error


class ConfigError(SandboxError, ValueError):
    """An argument is wrong: the message names it and says what is accepted. Nothing was run or created."""

    code = ErrorCode.CONFIG


class UnsupportedError(SandboxError):
    """The backend does not declare the feature this call needs."""

    code = ErrorCode.UNSUPPORTED


class EngineUnavailableError(SandboxError):
    """No engine answers; the message lists every address tried and how to start one."""

    code = ErrorCode.ENGINE_UNAVAILABLE
    retryable = True


class EngineError(SandboxError):
    """The engine refused or failed a request; ``details`` has ``status`` and ``operation`` where known."""

    code = ErrorCode.ENGINE


class ImageNotFoundError(EngineError):
    """The image is not on the engine and was not, or could not be, pulled."""

    code = ErrorCode.IMAGE_NOT_FOUND


class LimitsNotEnforceableError(SandboxError):
    """The engine would ignore a limit in silence; see ``Limits(allow_unenforced=True)``."""

    code = ErrorCode.LIMITS_NOT_ENFORCEABLE


class SessionNotFoundError(SandboxError):
    """No session of that id is on the engine."""

    code = ErrorCode.SESSION_NOT_FOUND


class SessionLostError(SandboxError):
    """The container, the engine or the connection to it ended; the session can't be used any more."""

    code = ErrorCode.SESSION_LOST


class SessionDestroyedError(SandboxError):
    """The session was destroyed (or belongs to the parent of a forked process)."""

    code = ErrorCode.SESSION_DESTROYED


class SessionBusyError(SandboxError):
    """Somebody else has it: every turn for a command (`Limits.max_concurrent_execs`), a volume, a session, a pool's."""

    code = ErrorCode.SESSION_BUSY
    retryable = True


class CommandFailedError(SandboxError):
    """Raised by ``ExecResult.check()`` alone; ``details`` has the exit code, signal and flags."""

    code = ErrorCode.COMMAND_FAILED


class PathError(SandboxError):
    """A path is missing, of the wrong kind, or leads outside the workspace."""

    code = ErrorCode.PATH


class FileTooLargeError(SandboxError):
    """A file is larger than ``Limits.max_file_bytes`` or the call's own bound."""

    code = ErrorCode.FILE_TOO_LARGE


class FileError(SandboxError):
    """A file operation failed for another reason than its path or a size.

    ``details["reason"]`` is one of ``timeout``, ``aborted``, ``killed``, ``changed`` (by someone else meanwhile),
    ``count`` (an edit found its text another number of times), ``text`` (not UTF-8), ``host`` (this machine's own
    file system), ``sandbox`` (the sandbox's: no space, I/O error; see ``errno``), ``malformed``.
    """

    code = ErrorCode.FILE


class PolicyError(SandboxError):
    """A policy forbids the request."""

    code = ErrorCode.POLICY


class PortError(SandboxError):
    """A port can't be waited for, published or forwarded."""

    code = ErrorCode.PORT


class ProcessError(SandboxError):
    """A managed process can't be started, found or written to.

    ``details["reason"]`` of a managed one is ``not_found``, ``not_executable`` (with ``exit_code``), ``limit``,
    ``unknown``, ``closed`` (its input), ``busy``, ``aborted``, ``timeout`` or ``malformed``.
    """

    code = ErrorCode.PROCESS


class ProcessTimeoutError(ProcessError, TimeoutError):
    """A managed process had not done in time what was waited for; it runs on."""

    code = ErrorCode.PROCESS_TIMEOUT
