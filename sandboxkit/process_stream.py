"""A managed process's output as an iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from typing_extensions import Self

from ._frames import FrameType
from ._process_calls import Call, Calls, LogSink, ProcessHost, finalized, let_go
from ._process_frames import ViewFlag, encode_view
from ._run import HeldBack
from .abort import POLL, Abort, AbortSignal
from .process_results import ProcessExit, exit_of
from .results import StderrEvent, StdoutEvent

__all__ = ["ProcessStream"]

_WINDOW = 262_144


class ProcessStream(Iterator["StdoutEvent | StderrEvent"]):
    """Iterator and context manager over a process's output; made by `ManagedProcess.follow`.

    Iterated by one thread at a time. UTF-8 characters are not split. Closing it (also by leaving the `with` block, by
    an exception in iteration, or by garbage collection) leaves the process alone.
    """

    def __init__(self, calls: Calls, host: ProcessHost, number: int, since: int, abort: Abort | None) -> None:
        sink = LogSink()
        self._call = Call(host.connection, sink, window=_WINDOW, process=number)
        self._sink = sink
        sink.changed = self._call.changed.set
        self._undo: list[Callable[[], None]] = []
        self._dropped = finalized(self, self._call, sink, self._undo)
        # The generator knows the follower, not this object: no cycle, so that one that is dropped ends at once.
        self._follower = _Follower(calls, self._call, sink, since, abort)
        self._events = self._follower.events()
        calls.begin(self._call, FrameType.VIEW, encode_view(number, ViewFlag.NONE, window=_WINDOW, cursor=since))
        if isinstance(abort, AbortSignal):
            self._undo.append(abort.add_callback(self._call.changed.set))

    @property
    def cursor(self) -> int:
        """Behind the last event that was given out: another `follow` or `logs` goes on from there."""
        return self._follower.cursor

    @property
    def lost_bytes(self) -> int:
        """How much was forgotten before it could be read, up to the last event."""
        return self._follower.lost_bytes

    @property
    def exit(self) -> ProcessExit | None:
        """Set when the iteration has ended with the process; None when it was aborted or closed."""
        return self._follower.exit

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StdoutEvent | StderrEvent:
        try:
            return next(self._events)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._follower.closed = True
        let_go(self._call, self._sink, self._undo)
        if self._call.outcome is not None:
            self._dropped.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Follower:
    """The state of an iteration, and the iteration."""

    def __init__(self, calls: Calls, call: Call, sink: LogSink, since: int, abort: Abort | None) -> None:
        self.cursor = since
        self.lost_bytes = 0
        self.exit: ProcessExit | None = None
        self.closed = False
        self._calls = calls
        self._call = call
        self._sink = sink
        self._abort = abort
        self._position: int | None = None  # behind the last piece

    def events(self) -> Iterator[StdoutEvent | StderrEvent]:
        held = HeldBack()
        while (how := self._turn()) != "ended":
            for piece in self._sink.take():
                position = self._begin() + len(piece.data) + piece.lost
                self._position = position
                if piece.stream is None:  # a gap: what was held back is never made whole
                    yield from held.rest()
                    self.lost_bytes += piece.lost
                    self.cursor = position
                    continue
                self._call.grant(len(piece.data))
                for event in held.events(piece.stream, piece.data):
                    self.cursor = position - held.size(piece.stream)
                    yield event
            if how == "answered":
                (record,) = self._calls.outcome(self._call)
                self.cursor = self._begin()
                yield from held.rest()
                self.exit = exit_of(record)
                return

    def _begin(self) -> int:
        # Where it stands; at first, where the agent began, which may be behind what was asked for.
        if self._position is None:
            self._position = self._sink.start
            self.lost_bytes = max(self._position - self.cursor, 0)
        return self._position

    def _turn(self) -> str:
        # Until something may have come: `answered` when that was the last, `ended` when nobody wants more.
        call, abort = self._call, self._abort
        call.raise_if_forked()
        if call.outcome is None and abort is not None and abort.is_set():
            return "ended"
        if call.outcome is None and not self.closed:
            call.wait(_look(abort))
        if self.closed:
            return "ended"
        return "answered" if call.outcome is not None else "more"


def _look(abort: Abort | None) -> float | None:
    if isinstance(abort, AbortSignal):
        return abort.next_look()
    return None if abort is None else POLL
