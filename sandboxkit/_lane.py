"""One channel of a connection: a command's lane, or that of a request about managed processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ._frames import (
    INPUT_WINDOW,
    MAX_PAYLOAD,
    Exit,
    FrameType,
    ProtocolError,
    Refusal,
    Stream,
    encode,
    encode_input,
    encode_resize,
    encode_u32,
    milliseconds,
)
from ._latch import Latch
from ._process_frames import ProcessRecord
from .errors import SandboxError

if TYPE_CHECKING:
    from ._channel import Connection

__all__ = ["Channel", "Sink"]

Outcome = Exit | Refusal | tuple[ProcessRecord, ...] | SandboxError
"""What a channel ended with."""

_AT_ONCE = 4 * MAX_PAYLOAD  # of input: the fewer calls, the fewer wake-ups of the agent


class Sink(Protocol):
    """Where a channel's output goes; called by the reader thread, so it must not block."""

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        """Take the bytes (copy them). True gives their credit back at once; else the owner calls `Channel.grant`."""
        ...


class Channel:
    """One command's lane: made by its caller, opened by `Connection.open`, fed by the reader thread.

    `outcome` is None while the command runs, then the Exit or Refusal the agent sent, or the error that ended the
    session; of a request about managed processes (`is_command` is false) their records. `sent` counts the bytes of its
    first frame that have left: none means that nothing was, or will be, run.
    """

    __slots__ = (
        "_connection",
        "_returned",
        "changed",
        "extra",
        "granted",
        "id",
        "input_changed",
        "input_credit",
        "outcome",
        "pid",
        "sent",
        "sink",
        "window",
    )
    is_command = True

    def __init__(self, connection: Connection, sink: Sink, window: int) -> None:
        self._connection = connection
        self.id = 0
        self.sent: list[int] = []
        self.sink = sink
        self.window = window
        self.granted = window  # bytes the agent may still send (reader thread)
        self.extra = 0  # granted by a finalizer, which must not take the credit lock
        self._returned = 0  # consumed and not granted again yet
        self.input_credit = INPUT_WINDOW
        self.pid: int | None = None
        self.outcome: Outcome | None = None
        self.changed = Latch()
        self.input_changed = Latch()

    def send_input(self, data: memoryview) -> int:
        """Send as much as there is credit for and return how much; 0 when there is none."""
        # The reader adds to the credit while we take from it, hence the lock in both places.
        with self._connection.credit_lock:
            size = max(min(len(data), self.input_credit, _AT_ONCE), 0)
            self.input_credit -= size
        if size:
            self._connection.send(encode_input(self.id, data[:size]))
        return size

    def close_input(self) -> None:
        """The command will read end of file."""
        self._connection.send(encode(FrameType.EOF, self.id, b"", Stream.STDIN))

    def kill(self, grace: float) -> None:
        """Ask for the end of the command's tree; `outcome` comes when it is dead."""
        self._connection.send(encode_u32(FrameType.KILL, self.id, milliseconds(grace)))

    def wait(self, timeout: float | None) -> None:
        """Until something changed, `timeout` seconds at most; the end wakes all who wait."""
        self.changed.wait(timeout)
        if self.outcome is not None:
            self.changed.set()

    @property
    def runs(self) -> bool:
        """Whether the command was sent, has not ended, and is this process's to end."""
        return bool(self.sent) and self.outcome is None and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one whose command it is."""
        return self._connection.forked

    def kill_later(self, grace: float = 0.0) -> None:
        """`kill` that never waits for another sender: for finalizers, which may run amid a send on the same thread."""
        if self.runs:
            self._connection.send_later(encode_u32(FrameType.KILL, self.id, milliseconds(grace)))

    def resize(self, rows: int, columns: int) -> None:
        """Tell the command's terminal its size."""
        self._connection.send(encode_resize(self.id, rows, columns))

    def grant(self, size: int) -> None:
        """`size` bytes of output were consumed: give the credit back, a quarter of the window at a time."""
        returned = self._due(size)
        if returned:
            self._connection.send(encode_u32(FrameType.WINDOW, self.id, returned))

    def grant_later(self, size: int) -> None:
        """Grant `size` bytes beyond what was consumed, without waiting: see `kill_later`."""
        self.extra += size
        self._connection.send_later(encode_u32(FrameType.WINDOW, self.id, size))

    def _due(self, size: int) -> int:
        # What is to be granted, now that `size` bytes more were consumed; 0 while it is not worth a frame.
        with self._connection.credit_lock:
            self._returned += size
            if self._returned < self.window // 4 or self.outcome is not None:
                return 0
            returned, self._returned = self._returned, 0
            self.granted += returned
            return returned

    # The reader thread's side.

    def receive(self, stream: Stream, chunk: memoryview) -> None:
        """Output came."""
        if self.sink.feed(stream, chunk):
            returned = self._due(len(chunk))
            if returned:
                # Never behind a sender that the agent keeps waiting until we read: that would be a deadlock.
                self._connection.send_later(encode_u32(FrameType.WINDOW, self.id, returned))

    def moved(self, cursor: int) -> None:
        """The next output is from there."""
        raise ProtocolError("a CURSOR on a channel without a log")

    def answered(self, payload: bytes) -> tuple[ProcessRecord, ...]:
        """A PROCESS came, the last frame."""
        raise ProtocolError("a PROCESS on a command's channel")

    def finish(self, outcome: Outcome) -> None:
        """The last frame, or the end of the session."""
        if self.outcome is None:
            self.outcome = outcome
        self.changed.set()
        self.input_changed.set()
