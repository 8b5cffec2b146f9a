"""A running command as an iterator of its output."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from typing_extensions import Self

from . import _validate as check
from ._channel import Channel
from ._run import Run
from .errors import ProcessError, SandboxError
from .results import Event, ExecResult, ExitEvent

__all__ = ["ExecStream"]


class ExecStream(Iterator[Event]):
    """Iterator and context manager over a command's events; made by `Session.exec_stream`.

    Iterated by one thread at a time, any thread; `write`, `close_stdin`, `resize` and `kill` may come from others
    meanwhile. After the ExitEvent, `result` is set. `close` (also by leaving the `with` block, by an exception in
    iteration, or by garbage collection) kills the command's tree if it still runs.
    """

    def __init__(self, run: Run | None, *, stdin: bool = False, tty: bool = False) -> None:
        self._run = run
        self._stdin = stdin
        self._tty = tty
        self._result: ExecResult | None = None
        self._events: Iterator[Event] = iter(()) if run is None else run.events()
        self._closed = False

    @classmethod
    def ended(cls, result: ExecResult, *, stdin: bool, tty: bool) -> ExecStream:
        """The stream of a command that was aborted before it ran: one ExitEvent."""
        stream = cls(None, stdin=stdin, tty=tty)
        stream._events = iter((ExitEvent(result),))
        return stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._closed:
            raise StopIteration
        try:
            event = next(self._events, None)
            if event is None:
                assert self._run is not None
                event = ExitEvent(self._run.result())
        except BaseException:
            self.close()
            raise
        if isinstance(event, ExitEvent):
            self._closed = True
            self._result = event.result
        return event

    @property
    def result(self) -> ExecResult | None:
        """The result once the ExitEvent has been given out, else None."""
        return self._result

    def wait(self) -> ExecResult:
        """Drop the events that are left; return the result. ProcessError when the stream was closed before its end."""
        for _ in self:
            pass
        if self._result is None:
            raise ProcessError("The stream was closed before its command ended, so there is no result.")
        return self._result

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` to the command's input, waiting as a pipe would. ProcessError when it has ended."""
        view = check.octets("data", data, "bytes; encode text first")
        if not self._stdin:
            raise ProcessError(
                "This command's input is not open: start it with stdin=True, write before close_stdin()."
            )
        if self._run is None:
            raise ProcessError("The command was aborted before it ran; nothing can be written to it.")
        try:
            self._run.write(view)
        except SandboxError:
            raise
        except BaseException:  # Ctrl-C: how much was written is unknown
            self.close()
            raise

    def close_stdin(self) -> None:
        """The command reads end of file. Idempotent; no error when it has ended."""
        channel = self._open_channel()
        if self._stdin and channel is not None:
            self._stdin = False
            channel.close_input()

    def resize(self, rows: int, columns: int) -> None:
        """Tell the command's terminal its new size; it gets SIGWINCH. Only with `tty=True`."""
        check.integer("rows", rows, minimum=1, maximum=65535)
        check.integer("columns", columns, minimum=1, maximum=65535)
        if not self._tty:
            raise ProcessError("This command has no terminal: start it with tty=True.")
        channel = self._open_channel()
        if channel is not None:
            channel.resize(rows, columns)

    def kill(self, grace: float = 0.0) -> None:
        """Ask for the end of the command's tree; iteration goes on to its ExitEvent, whose result is `aborted`."""
        check.number("grace", grace, minimum=0, exclusive=False)
        if self._run is not None and self._run.channel.outcome is None:
            self._run.kill(grace)

    def close(self) -> None:
        """Kill the tree if it still runs and wait until it is dead. Idempotent."""
        self._closed = True
        if self._run is not None:
            self._run.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_channel(self) -> Channel | None:
        # The channel while the command runs.
        return None if self._run is None or self._run.channel.outcome is not None else self._run.channel
