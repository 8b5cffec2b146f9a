"""A session that tells hooks. Without hooks a session is a plain one, so that they cost only those who have them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._file_calls import SandboxPath
from ._session import AgentSession
from .errors import ErrorCode, SandboxError
from .exec_stream import ExecStream
from .file_results import Transfer
from .files import HostPath, SessionFiles
from .hooks import ExecEnded, ExecStarted, FileWritten, Hooks, SessionCreated, SessionEnded, tell
from .results import Event, ExecResult, ExitEvent
from .session import SessionState

__all__ = ["open_session"]

_LONGEST_NAME = 255


def open_session(hooks: Hooks, image: str, started: float, **options: Any) -> AgentSession:
    """The session of a connection that was just made; `started` is when that began. The options are AgentSession's."""
    if not hooks.any:
        return AgentSession(**options)
    session = HookedSession(hooks=hooks, **options)
    duration = time.monotonic() - started
    event = SessionCreated(session_id=session.id, backend=session.engine.backend, image=image, duration=duration)
    tell(hooks.on_session_create, event)
    return session


class HookedSession(AgentSession):
    """See `sandboxkit.hooks`."""

    def __init__(self, *, hooks: Hooks, **options: Any) -> None:
        super().__init__(**options)
        self._hooks = hooks
        self._numbers = itertools.count(1)
        self._made = time.monotonic()

    def exec(self, command: str, args: Sequence[str] = (), **options: Any) -> ExecResult:
        ended = self._begin(command, streamed=False)
        try:
            result = super().exec(command, args, **options)
        except BaseException as error:
            ended(None, error)
            raise
        ended(result, None)
        return result

    def exec_stream(self, command: str, args: Sequence[str] = (), **options: Any) -> ExecStream:
        ended = self._begin(command, streamed=True)
        try:
            return _HookedStream(super().exec_stream(command, args, **options), ended)
        except BaseException as error:
            ended(None, error)
            raise

    @property
    def files(self) -> SessionFiles:
        return _HookedFiles(self, self._hooks)

    def destroy(self) -> None:
        self._connection.raise_if_forked()
        with self._destroying:
            if self._state is SessionState.DESTROYED:
                return
            start, error = time.monotonic(), None
            try:
                super().destroy()
            except BaseException as failure:
                error = failure
                raise
            finally:
                now = time.monotonic()
                event = SessionEnded(
                    session_id=self.id,
                    backend=self._backend.name,
                    duration=now - start,
                    lifetime=now - self._made,
                    error=_code(error),
                )
                tell(self._hooks.on_destroy, event)

    def _begin(self, command: object, *, streamed: bool) -> Callable[[ExecResult | None, BaseException | None], None]:
        name = command.rpartition("/")[2][:_LONGEST_NAME] if isinstance(command, str) else ""
        number = next(self._numbers)
        start = time.monotonic()
        tell(
            self._hooks.on_exec_start,
            ExecStarted(session_id=self.id, exec_id=number, command=name, streamed=streamed),
        )

        def ended(result: ExecResult | None, error: BaseException | None) -> None:
            event = ExecEnded(
                session_id=self.id,
                exec_id=number,
                command=name,
                streamed=streamed,
                duration=time.monotonic() - start,
                error=_code(error),
                **_facts(result),
            )
            tell(self._hooks.on_exec_end, event)

        return ended


class _HookedFiles(SessionFiles):
    """Tells of each file that is written, and of an upload as a whole."""

    def __init__(self, session: HookedSession, hooks: Hooks) -> None:
        super().__init__(session)
        self._hooks = hooks
        self._session_id = session.id

    def _write(self, path: SandboxPath, data: memoryview, **options: Any) -> None:
        with self._told() as size:
            super()._write(path, data, **options)
            size.append(len(data))

    def upload(self, host_path: HostPath, path: SandboxPath, **options: Any) -> Transfer:
        with self._told() as size:
            transfer = super().upload(host_path, path, **options)
            size.append(transfer.bytes)
        return transfer

    @contextlib.contextmanager
    def _told(self) -> Iterator[list[int]]:
        start, size, error = time.monotonic(), list[int](), None
        try:
            yield size
        except BaseException as failure:
            error = failure
            raise
        finally:
            event = FileWritten(
                session_id=self._session_id,
                size=sum(size),
                duration=time.monotonic() - start,
                error=_code(error),
            )
            tell(self._hooks.on_file_write, event)


class _HookedStream(ExecStream):
    """Takes over a stream that was just made, and tells once how it ended."""

    def __init__(self, stream: ExecStream, ended: Callable[[ExecResult | None, BaseException | None], None]) -> None:
        self.__dict__.update(stream.__dict__)
        self._ended: Callable[[ExecResult | None, BaseException | None], None] | None = ended

    def __next__(self) -> Event:
        try:
            event = super().__next__()
        except StopIteration:
            raise
        except BaseException as error:
            self._tell(None, error)
            raise
        if isinstance(event, ExitEvent):
            self._tell(event.result, None)
        return event

    def close(self) -> None:
        super().close()
        self._tell(None, None)

    def _tell(self, result: ExecResult | None, error: BaseException | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(result, error)


def _facts(result: ExecResult | None) -> dict[str, Any]:
    if result is None:
        return {}
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "aborted": result.aborted,
        "oom_killed": result.oom_killed,
        "stdout_bytes": result.stdout_total_bytes,
        "stderr_bytes": result.stderr_total_bytes,
        "truncated": result.stdout_truncated or result.stderr_truncated,
        "cpu_seconds": result.cpu_seconds,
        "max_rss_bytes": result.max_rss_bytes,
    }


def _code(error: BaseException | None) -> ErrorCode | None:
    return error.code if isinstance(error, SandboxError) else None
