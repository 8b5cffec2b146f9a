"""Requests about managed processes (agent/PROTOCOL.md section 8): sending, waiting, giving up, and refusals."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Protocol

import attrs

from ._channel import Channel, Connection, Sink
from ._frames import FrameType, ProtocolError, Refusal, RefusalCode, Stream, milliseconds
from ._process_frames import Launch, ProcessRecord, ViewFlag, encode_list, encode_stop, encode_view
from ._run import refused
from .abort import POLL, Abort, AbortSignal
from .config import Limits
from .errors import ProcessError, ProcessTimeoutError, SandboxError

__all__ = ["Call", "Calls", "KnownLaunch", "LogSink", "ProcessHost", "finalized", "let_go", "shown_id", "stop_all"]

_GIVEN_UP: Final = 5.0  # seconds to hear of a start that Ctrl-C cut
_PIECES: Final = 1024  # that may wait for a consumer, however small


class ProcessHost(Protocol):
    """The session, as managed processes need it."""

    @property
    def id(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def launches(self) -> dict[int, KnownLaunch]:
        """What is known of the session's processes: the agent need not be asked again."""
        ...

    def process_request(
        self, command: str, args: Sequence[str], cwd: str, env: Mapping[str, str] | None, stdin: bool
    ) -> bytes:
        """Check them as `exec` does; the payload of an EXEC."""
        ...


@attrs.frozen(eq=False)
class KnownLaunch:
    """A launch, and the lock that keeps the bytes of two writers apart."""

    launch: Launch
    writing: threading.Lock = attrs.field(factory=threading.Lock, repr=False)


def shown_id(number: int) -> str:
    """The agent's number as callers see it."""
    return f"p{number}"


class _Nothing:
    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        raise ProtocolError("output in the answer to a request that has none")

    def moved(self, cursor: int) -> None:
        raise ProtocolError("a CURSOR in the answer to a request that has none")


@attrs.define
class Piece:
    """Bytes of one stream, or (`stream` None) how many were lost there."""

    stream: Stream | None
    data: bytearray = attrs.field(factory=bytearray)
    lost: int = 0


class LogSink:
    """A sink for a view: pieces for a consumer, who gives the credit back. Holds a window at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._position: int | None = None
        self.start = 0  # the cursor of the first byte, once there was one
        self.discard = False
        self.changed: Callable[[], None] = lambda: None

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        """See Sink."""
        with self._lock:
            if self._position is None:
                raise ProtocolError("output of a log before its cursor")
            self._position += len(chunk)
            if not self.discard:
                self._piece(stream).data.extend(chunk)
        self.changed()
        return False

    def moved(self, cursor: int) -> None:
        """The agent said where the next byte is from."""
        with self._lock:
            if self._position is None:
                self.start = cursor
            elif cursor <= self._position:
                raise ProtocolError("a cursor that does not rise")
            else:
                self._piece(None).lost += cursor - self._position
            self._position = cursor

    def _piece(self, stream: Stream | None) -> Piece:
        # As in Queue: small ones are joined; in a long list also over one or two of the other kinds.
        for piece in reversed(self._pieces[-3 if len(self._pieces) >= _PIECES else -1 :]):
            if piece.stream is stream:
                return piece
        self._pieces.append(Piece(stream))
        return self._pieces[-1]

    def take(self) -> list[Piece]:
        """What has come since the last time."""
        with self._lock:
            taken, self._pieces = self._pieces, []
        return taken


class Call(Channel):
    """One request's lane. `give_up` tells the agent that nobody waits for the answer any more."""

    __slots__ = ("process",)
    is_command = False

    def __init__(
        self, connection: Connection, sink: Sink | None = None, *, window: int = 0, process: int | None = None
    ) -> None:
        """`process`: whose record the answer must be; None: any one's, 0: any number of any."""
        super().__init__(connection, _Nothing() if sink is None else sink, window)
        self.process = process

    def moved(self, cursor: int) -> None:
        assert isinstance(self.sink, (LogSink, _Nothing))
        self.sink.moved(cursor)

    def answered(self, payload: bytes) -> tuple[ProcessRecord, ...]:
        records = ProcessRecord.parse_all(payload)
        if self.process != 0 and (len(records) != 1 or self.process not in (None, records[0].id)):
            raise ProtocolError("a PROCESS that answers another question")
        return records

    def give_up(self) -> None:
        """Tell the agent; never waits."""
        self.kill_later()

    def details(self, reason: str) -> dict[str, object]:
        """An error's."""
        return {"reason": reason, "process": shown_id(self.process)} if self.process else {"reason": reason}

    def raise_if_forked(self) -> None:
        """See Connection."""
        self._connection.raise_if_forked()

    def settle(self, timeout: float | None, abort: Abort | None) -> str:
        """Wait: `answered`, `timeout` or `aborted`."""
        end = None if timeout is None else time.monotonic() + timeout
        forget = abort.add_callback(self.changed.set) if isinstance(abort, AbortSignal) else None
        try:
            while self.outcome is None:
                self.raise_if_forked()
                if abort is not None and abort.is_set():
                    return "aborted"
                if end is not None and time.monotonic() >= end:
                    return "timeout"
                self.wait(_pause(end, abort))
            return "answered"
        finally:
            if forget is not None:
                forget()


def _pause(end: float | None, abort: Abort | None) -> float | None:
    pauses = [] if end is None else [end - time.monotonic() + 0.001]
    if abort is not None:
        look = abort.next_look() if isinstance(abort, AbortSignal) else POLL
        if look is not None:
            pauses.append(look)
    return min(pauses, default=None)


class Calls:
    """Makes requests in one session and turns refusals into errors."""

    patience: ClassVar[float] = 30.0  # seconds for what the agent answers at once

    def __init__(self, host: ProcessHost) -> None:
        self._host = host

    def begin(self, call: Call, kind: FrameType, payload: bytes) -> Call:
        """Send it."""
        try:
            self._host.connection.request(call, kind, payload)
        except BaseException:
            call.give_up()
            raise
        return call

    def ask(
        self,
        call: Call,
        kind: FrameType,
        payload: bytes,
        *,
        what: str,
        timeout: float | None,
        abort: Abort | None = None,
        cwd: str = ".",
    ) -> tuple[ProcessRecord, ...]:
        """Send it and wait. ProcessError when it was not done; `what` did not happen and `cwd` are for its message."""
        try:
            self.begin(call, kind, payload)
            how = call.settle(timeout, abort)
        except BaseException:
            call.give_up()
            raise
        if how == "answered":
            return self.outcome(call, cwd)
        call.give_up()
        details = call.details(how)
        if how == "aborted":
            raise ProcessError(f"{what}: the call was aborted.", details=details)
        raise ProcessTimeoutError(f"{what} in time.", retryable=True, details=details)

    def outcome(self, call: Call, cwd: str = ".") -> tuple[ProcessRecord, ...]:
        """The answer that has come, or its error raised."""
        outcome = call.outcome
        if isinstance(outcome, tuple):
            return outcome
        if isinstance(outcome, Refusal):
            raise self._error(outcome, call, cwd)
        assert isinstance(outcome, SandboxError)
        raise copy.copy(outcome)

    def record(self, process: int) -> ProcessRecord:
        """Where one stands."""
        call = Call(self._host.connection, process=process)
        what = "The process was not looked at"
        return self.ask(call, FrameType.LIST, encode_list(process), what=what, timeout=self.patience)[0]

    def records(self) -> tuple[ProcessRecord, ...]:
        """Where all stand, oldest first."""
        call = Call(self._host.connection, process=0)
        what = "The processes were not listed"
        return self.ask(call, FrameType.LIST, encode_list(0), what=what, timeout=self.patience)

    @contextlib.contextmanager
    def started(self, launch: Launch) -> Iterator[ProcessRecord]:
        """A new one. After any exception, also of the block, it does not run."""
        call = Call(self._host.connection)
        payload = launch.payload(self._host.limits.max_processes)
        what = "The process did not start"
        try:
            yield self.ask(call, FrameType.START, payload, what=what, timeout=self.patience, cwd=launch.cwd)[0]
        except BaseException:
            self._abandon_start(call)
            raise

    def _abandon_start(self, call: Call) -> None:
        # It may have been answered just now; then it has a number, by which it can be ended.
        call.give_up()
        end = time.monotonic() + _GIVEN_UP
        while call.sent and not call.forked and call.outcome is None and time.monotonic() < end:
            call.wait(0.1)
        if isinstance(call.outcome, tuple) and call.outcome[0].exit is None:
            with contextlib.suppress(SandboxError):
                number = call.outcome[0].id
                self.begin(Call(self._host.connection, process=number), FrameType.STOP, encode_stop(number, 0))

    def launch(self, process: int) -> KnownLaunch:
        """What it was started with."""
        known = self._host.launches.get(process)
        if known is not None:
            return known
        data, _, _ = self.read(process, ViewFlag.REQUEST, length=1 << 20)
        try:
            launch = Launch.parse(bytes(data))
        except ProtocolError as broken:
            details = {"reason": "malformed", "process": shown_id(process)}
            raise ProcessError(f"The sandbox answered with {broken}.", details=details) from None
        return self._host.launches.setdefault(process, KnownLaunch(launch))

    def read(
        self, process: int, flags: ViewFlag, *, cursor: int = 0, length: int
    ) -> tuple[bytearray, LogSink, ProcessRecord]:
        """What is there of its log: the bytes, the sink that knows where they begin, and where it stands."""
        sink = LogSink()
        call = Call(self._host.connection, sink, window=length, process=process)
        payload = encode_view(process, flags | ViewFlag.NOWAIT, window=length, cursor=cursor, length=length)
        what = "The process's log was not read"
        (record,) = self.ask(call, FrameType.VIEW, payload, what=what, timeout=self.patience)
        data = bytearray()
        for piece in sink.take():
            data += piece.data
        return data, sink, record

    def _error(self, refusal: Refusal, call: Call, cwd: str) -> SandboxError:
        session, text = self._host.id, refusal.message.rstrip(".")
        process, details = call.process or 0, call.details(refusal.code.name.lower())
        if refusal.code in (RefusalCode.NOT_FOUND, RefusalCode.NOT_EXECUTABLE):
            details["exit_code"] = 127 if refusal.code is RefusalCode.NOT_FOUND else 126
            return ProcessError(f"The process was not started: {text}.", details=details)
        if refusal.code is RefusalCode.LIMIT:
            limit = self._host.limits.max_processes
            return ProcessError(
                f"limits.max_processes, {limit}, managed processes run in session {session} already. "
                "Stop one, or make the session with a higher limit.",
                details=details,
            )
        if refusal.code is RefusalCode.UNKNOWN:
            return ProcessError(
                f"Session {session} has no process {shown_id(process)}: it never had, or has forgotten it. "
                "See session.processes.list().",
                details=details,
            )
        if refusal.code is RefusalCode.CLOSED:
            return ProcessError(
                f"Nothing can be written to process {shown_id(process)}: it has ended, or its input is closed.",
                details=details,
            )
        if refusal.code is RefusalCode.BUSY and process:
            return ProcessError(
                f"Process {shown_id(process)} can't take the request now: {text}.", retryable=True, details=details
            )
        return refused(refusal, cwd)


def stop_all(host: ProcessHost, grace: float) -> Sequence[Call]:
    """Begin the end of every process; the calls finish when all of theirs is gone."""
    calls = Calls(host)
    begun = []
    for record in calls.records():
        if record.exit is None:
            call = Call(host.connection, process=record.id)
            begun.append(calls.begin(call, FrameType.STOP, encode_stop(record.id, milliseconds(grace))))
    return begun


def let_go(call: Call, sink: LogSink, undo: list[Callable[[], None]]) -> None:
    """For a finalizer of what reads a view: never waits."""
    if call.forked:
        return
    sink.discard = True
    call.give_up()
    while undo:
        undo.pop()()


def finalized(
    owner: object, call: Call, sink: LogSink, undo: list[Callable[[], None]]
) -> weakref.finalize[..., object]:
    """Lets go of the view when its owner is dropped."""
    final = weakref.finalize(owner, let_go, call, sink, undo)
    final.atexit = False
    return final
