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

    Iterated by one thread at a time. `cursor` is behind the last event that was given out, for another `follow` or
    `logs` to go on from; `lost_bytes` counts what was forgotten before it could be read. `exit` is set when the
    iteration has ended with the process, None when it was aborted or closed. UTF-8 characters are not split.
    """

    def __init__(self, calls: Calls, host: ProcessHost, number: int, since: int, abort: Abort | None) -> None:
        self.cursor = since
        self.lost_bytes = 0
        self.exit: ProcessExit | None = None
        self._calls = calls
        self._number = number
        self._abort = abort
        self._sink = LogSink()
        self._call = Call(host.connection, self._sink, window=_WINDOW, process=number)
        self._sink.changed = self._call.changed.set
        self._undo: list[Callable[[], None]] = []
        self._dropped = finalized(self, self._call, self._sink, self._undo)
        payload = encode_view(number, ViewFlag.NONE, window=_WINDOW, cursor=since)
        calls.begin(self._call, FrameType.VIEW, payload)
        if isinstance(abort, AbortSignal):
            self._undo.append(abort.add_callback(self._call.changed.set))
        self._events = self._follow(since)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StdoutEvent | StderrEvent:
        try:
            return next(self._events)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop following. The process is left alone. Idempotent."""
        let_go(self._call, self._sink, self._undo)
        if self._call.outcome is not None:
            self._dropped.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self, since: int) -> Iterator[StdoutEvent | StderrEvent]:
        held = HeldBack()
        position: int | None = None
        ended = False
        while not ended:
            how = self._turn()
            if how == "aborted":
                return
            ended = how == "answered"
            for piece in self._sink.take():
                if position is None:
                    position = self._sink.start
                    self.lost_bytes += max(position - since, 0)
                position += len(piece.data) + piece.lost
                if piece.stream is None:
                    self.lost_bytes += piece.lost
                    yield from held.rest()
                    self.cursor = position
                    continue
                self._call.grant(len(piece.data))
                for event in held.events(piece.stream, piece.data):
                    self.cursor = position - held.size(piece.stream)
                    yield event
        (record,) = self._calls.outcome(self._call, self._number)
        if position is None:
            position = self._sink.start
            self.lost_bytes += max(position - since, 0)
        self.cursor = position
        yield from held.rest()
        self.exit = exit_of(record)

    def _turn(self) -> str:
        # Until something may have come, then what of it.
        call, abort = self._call, self._abort
        call._connection.raise_if_forked()
        if call.outcome is not None:
            return "answered"
        if abort is not None and abort.is_set():
            return "aborted"
        call.wait(_look(abort))
        return "answered" if call.outcome is not None else "more"


def _look(abort: Abort | None) -> float | None:
    if isinstance(abort, AbortSignal):
        return abort.next_look()
    return None if abort is None else POLL
