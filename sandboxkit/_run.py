"""One command's way from a checked request through a channel to an ExecResult, for `exec` and `exec_stream` alike."""

from __future__ import annotations

import copy
import signal as signals
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import attrs

from . import _validate as check
from ._channel import Channel, Connection
from ._frames import ExecFlag, Exit, Refusal, RefusalCode, Stream, exec_payload, milliseconds
from ._input import Input
from ._output import HeadTail, incomplete_tail
from .abort import POLL, Abort, AbortSignal
from .errors import EngineError, PathError, ProcessError, SandboxError, SessionLostError
from .results import Event, ExecResult, StderrEvent, StdoutEvent

__all__ = ["Collector", "HeldBack", "Queue", "Request", "Run", "refused", "signal_name"]

_COLLECT_WINDOW = 1024 * 1024
_STREAM_WINDOW = 256 * 1024
_MARGIN = 10.0  # seconds the agent may be late with a timeout before the session counts as lost
_ABANDON = 5.0  # seconds to wait for the end of a tree after Ctrl-C
_QUEUED = 1024  # chunks that may wait for a consumer, however small


@attrs.frozen(kw_only=True)
class Request:
    """A command whose every field has been checked. Times in seconds."""

    command: str
    args: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    input: Input | None
    interactive: bool
    timeout: float | None
    timeout_grace: float
    abort_grace: float
    abort: Abort | None
    max_output_bytes: int
    tty: tuple[int, int] | None = None
    applet: bool = False

    def payload(self, window: int) -> bytes:
        """The EXEC's bytes."""
        flags = ExecFlag.NONE
        if self.input is not None or self.interactive:
            flags |= ExecFlag.STDIN
        if self.tty is not None:
            flags |= ExecFlag.TTY
        if self.applet:
            flags |= ExecFlag.APPLET
        rows, columns = self.tty or (24, 80)
        return exec_payload(
            (self.command, *self.args),
            cwd=self.cwd,
            env=self.env,
            flags=flags,
            window=window,
            timeout_ms=0 if self.timeout is None else milliseconds(self.timeout),
            grace_ms=milliseconds(self.timeout_grace),
            rows=rows,
            columns=columns,
        )

    def never_ran(self) -> ExecResult:
        """The result when the abort came first."""
        return ExecResult(command=self.command, args=self.args, exit_code=None, duration=0.0, aborted=True)


class Collector:
    """A sink that keeps head and tail of both streams."""

    def __init__(self, cap: int) -> None:
        self.stdout = HeadTail(cap)
        self.stderr = HeadTail(cap)

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        (self.stdout if stream is Stream.STDOUT else self.stderr).feed(chunk)
        return True


class Queue(Collector):
    """A sink that also queues the output for a consumer, who gives its credit back; so it holds a window at most."""

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self._lock = threading.Lock()
        self._chunks: list[tuple[Stream, bytearray]] = []
        self.discard = False
        self.changed: Callable[[], None] = lambda: None

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        super().feed(stream, chunk)
        return self.enqueue(stream, chunk)

    def enqueue(self, stream: Stream, chunk: memoryview) -> bool:
        """For the consumer alone: not kept."""
        if self.discard:
            return True
        with self._lock:
            # Small writes join the chunk that waits, so a flood of single bytes costs no object each. The streams take
            # turns in the list; when it is long, the last but one is joined: only the order between the two is lost.
            if self._chunks and self._chunks[-1][0] is stream:
                self._chunks[-1][1].extend(chunk)
            elif len(self._chunks) >= _QUEUED:
                self._chunks[-2][1].extend(chunk)
            else:
                self._chunks.append((stream, bytearray(chunk)))
        self.changed()
        return False

    def take(self) -> list[tuple[Stream, bytearray]]:
        with self._lock:
            taken, self._chunks = self._chunks, []
        return taken


class Run:
    """One command. `result` or `events` is called by one thread at a time, the others by any.

    After any exception out of here, the interrupts of Ctrl-C included, the command's whole tree is dead or dying; so it
    is when the Run was dropped.
    """

    def __init__(
        self, connection: Connection, request: Request, *, stream: bool, sink: Collector | None = None
    ) -> None:
        """`stream`: for `events`. A `sink` of the caller's takes the output instead, a Queue through `chunks`."""
        self._connection = connection
        self._request = request
        kind = Queue if stream else Collector
        self._sink = kind(request.max_output_bytes) if sink is None else sink
        self.channel = Channel(connection, self._sink, _STREAM_WINDOW if stream else _COLLECT_WINDOW)
        if isinstance(self._sink, Queue):
            self._sink.changed = self.channel.changed.set
        self._input = request.input
        self._writing = threading.Lock()
        self._aborted = False
        self._started = 0.0
        self._deadline: float | None = None
        self._late = False
        self._given_up: float | None = None
        self._undo: list[Callable[[], None]] = []
        self._payload = request.payload(self.channel.window)
        check.request_size(len(self._payload))
        # Not `__del__`: that would run at every end, and Python drops what Ctrl-C raises in it.
        self._dropped = weakref.finalize(self, _let_go, self.channel, self._sink, self._undo)
        self._dropped.atexit = False

    def start(self, limit: int) -> bool:
        """Send it; False when `limit` commands run already. SandboxError when the session can't take it."""
        request, channel = self._request, self.channel
        self._started = time.monotonic()
        if request.timeout is not None:
            self._deadline = self._started + request.timeout + request.timeout_grace + _MARGIN
        early = None if self._input is None else self._input.early
        if not self._connection.open(channel, self._payload, early, limit=limit):
            return False
        self._payload = b""
        if self._input is not None:
            self._input.began(channel)
        if isinstance(request.abort, AbortSignal):
            # Told by the thread that sets the signal: no polling, and a stream dies although its consumer sleeps. It
            # must not block, hence kill_later; nor hold the Run, which would keep a stream alive that was dropped.
            grace = request.abort_grace

            def told() -> None:
                channel.kill_later(grace)
                channel.changed.set()

            self._undo.append(request.abort.add_callback(told))
        return True

    def result(self) -> ExecResult:
        """Wait for the end. Raises what the session ended with, PathError for a bad cwd, or KeyboardInterrupt."""
        try:
            while not self._turn():
                pass
            return self._finish()
        except BaseException:
            self.abandon()
            raise
        finally:
            self._let_go()

    def events(self) -> Iterator[Event]:
        """Output as it comes; ends when the command has, then `result` gives the result at once."""
        held = HeldBack()
        for stream, chunk in self.chunks():
            yield from held.events(stream, chunk)
        yield from held.rest()

    def chunks(self) -> Iterator[tuple[Stream, bytearray]]:
        """Output as it comes, until the command has ended."""
        assert isinstance(self._sink, Queue)
        ended = False
        while not ended:
            ended = self._turn()
            for stream, chunk in self._sink.take():
                self.channel.grant(len(chunk))
                if self._deadline is not None:  # however long the consumer took, the agent gets its margin from here
                    self._deadline = max(self._deadline, time.monotonic() + _MARGIN)
                yield stream, chunk

    def write(self, data: memoryview) -> None:
        """Send all of `data` as input, waiting for credit as a pipe would. ProcessError once the command has ended."""
        with self._writing:  # the bytes of two writers don't mix
            # Not `while len(data)`: CPython 3.12 leaves the jump of such a loop out of the `with`, and Ctrl-C may come
            # there.
            while True:
                if not len(data):
                    return
                self._connection.raise_if_forked()
                outcome = self.channel.outcome
                if isinstance(outcome, SandboxError):
                    raise copy.copy(outcome)
                if outcome is not None:
                    raise ProcessError("The command has ended; what was written can't be read any more.")
                size = self.channel.send_input(data)
                data = data[size:]
                if not size:
                    self.channel.input_changed.wait(None)

    def kill(self, grace: float) -> None:
        """Ask for the end of the tree. The agent has the grace and a margin for it, else the session counts as lost."""
        self.channel.kill(grace)
        end = time.monotonic() + grace + _MARGIN
        self._deadline = end if self._deadline is None else min(self._deadline, end)
        self.channel.changed.set()

    def abandon(self) -> None:
        """Kill the tree and wait until it is dead, a few seconds at most. Never raises but for a second Ctrl-C."""
        channel = self.channel
        if self._connection.forked:
            return
        self._let_go()
        if channel.sent and channel.outcome is None:
            self._given_up = self._given_up or time.monotonic() + _ABANDON
            while channel.outcome is None and time.monotonic() < self._given_up:
                channel.wait(0.1)

    def _let_go(self) -> None:
        _let_go(self.channel, self._sink, self._undo)
        if self.channel.outcome is not None:
            self._dropped.detach()

    def _turn(self) -> bool:
        # Wait until something may have changed, then do what is due. True when the command has ended.
        channel, abort = self.channel, self._request.abort
        self._connection.raise_if_forked()
        if channel.outcome is not None:
            return True
        if self._input is None or not self._input.pump():
            channel.wait(self._pause())
        if channel.outcome is not None:
            return True
        if not self._aborted and abort is not None and abort.is_set():
            self._aborted = True
            self.kill(self._request.abort_grace)
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._overdue()
        return False

    def _pause(self) -> float | None:
        pauses = []
        if self._deadline is not None:
            pauses.append(self._deadline - time.monotonic() + 0.001)
        abort = self._request.abort
        if abort is not None and not self._aborted:
            look = abort.next_look() if isinstance(abort, AbortSignal) else POLL
            if look is not None:
                pauses.append(look)
        return min(pauses, default=None)

    def _overdue(self) -> None:
        # A slow consumer of a stream holds back the EXIT behind its output: that is its right, as with a pipe.
        if isinstance(self._sink, Queue) and self.channel.granted <= 0:
            return
        if not self._late:
            # This process may itself have been stopped (Ctrl-Z, a debugger), and the EXIT be here, unread: look again.
            self._late = True
            self._deadline = time.monotonic() + _MARGIN / 2
            return
        self._connection.fail(
            SessionLostError(
                "The sandbox did not end a command at its timeout: it is frozen, or its host is. Create a new session."
            )
        )

    def _finish(self) -> ExecResult:
        outcome = self.channel.outcome
        if isinstance(outcome, Exit):
            return self._result(outcome)
        if isinstance(outcome, Refusal):
            raise refused(outcome, self._request.cwd)
        assert isinstance(outcome, SandboxError)
        raise copy.copy(outcome)

    def _result(self, exit_: Exit) -> ExecResult:
        request, out, err = self._request, self._sink.stdout, self._sink.stderr
        timed_out = exit_.reason == Exit.TIMEOUT
        aborted = exit_.reason == Exit.KILLED
        code = exit_.exit_code if exit_.signal is None else 128 + exit_.signal
        return ExecResult(
            command=request.command,
            args=request.args,
            stdout_bytes=out.render(),
            stderr_bytes=err.render(),
            exit_code=None if timed_out or aborted else code,
            signal=None if exit_.signal is None else signal_name(exit_.signal),
            duration=time.monotonic() - self._started,
            timed_out=timed_out,
            aborted=aborted,
            oom_killed=exit_.oom_killed,
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
            stdout_total_bytes=out.total,
            stderr_total_bytes=err.total,
            cpu_seconds=exit_.cpu_seconds,
            max_rss_bytes=exit_.max_rss_bytes,
            background_pids=exit_.background_pids,
        )


def _let_go(channel: Channel, sink: Collector, undo: list[Callable[[], None]]) -> None:
    # Kill the tree if it lives and forget the abort signal. Also called by the garbage collector: on any thread, amid
    # anything, so it never waits; in a forked child, where any lock may be held for ever, it does nothing.
    if channel.forked:
        return
    if channel.runs:
        # The EXIT comes after the output that was in the pipes, which nobody reads any more: from here the reader gives
        # its credit back, and one window more for what is queued.
        if isinstance(sink, Queue) and not sink.discard:
            sink.discard = True
            channel.grant_later(channel.window)
        channel.kill_later()
    while undo:
        undo.pop()()


class HeldBack:
    """Chunks of two streams as events, with what begins a UTF-8 character held back until the rest of it is there."""

    def __init__(self) -> None:
        self._held = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}

    def events(self, stream: Stream, chunk: bytearray) -> Iterator[StdoutEvent | StderrEvent]:
        """None, or one."""
        data = self._held[stream] + chunk
        cut = len(data) - incomplete_tail(data)
        self._held[stream] = data[cut:]
        if cut:
            yield _event(stream, bytes(data[:cut]))

    def size(self, stream: Stream) -> int:
        """Bytes of that stream that are held back."""
        return len(self._held[stream])

    def rest(self) -> Iterator[StdoutEvent | StderrEvent]:
        """What is held back, at the end."""
        for stream, data in self._held.items():
            self._held[stream] = bytearray()
            if data:
                yield _event(stream, bytes(data))


def _event(stream: Stream, data: bytes) -> StdoutEvent | StderrEvent:
    return StdoutEvent(data) if stream is Stream.STDOUT else StderrEvent(data)


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def refused(refusal: Refusal, cwd: str) -> SandboxError:
    """The error for a command that the agent could not begin."""
    details, text = {"errno": refusal.errno}, refusal.message.rstrip(".")
    if refusal.code is RefusalCode.CWD:
        return PathError(
            f"cwd {cwd!r} can't be used: {text}. It must be an existing folder inside the workspace.",
            details=details,
        )
    if refusal.code is RefusalCode.BUSY:
        return EngineError(
            f"The sandbox can't start another command: {text}. Raise limits.pids, or end what runs.",
            retryable=True,
            details=details,
        )
    return EngineError(f"The agent refused the command: {text}.", details=details)
