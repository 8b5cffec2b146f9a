"""What a command reads on its standard input: bytes, or a source that is read as the command reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

from . import _validate as check
from ._channel import Channel
from ._frames import INPUT_WINDOW

__all__ = ["Input", "InputSource"]

InputSource = bytes | bytearray | memoryview | str | IO[bytes] | Iterator[bytes] | None


class Input:
    """The rest of a command's input. `pump` is called by the thread that waits for the command."""

    def __init__(self, chunks: Iterator[object], early: memoryview | None) -> None:
        self.early = early
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._ended = False
        self._channel: Channel | None = None

    @classmethod
    def of(cls, source: object) -> Input | None:
        """From what a caller passed as `input`; None when there is none. ConfigError for another type."""
        if source is None:
            return None
        if isinstance(source, str):
            try:
                source = source.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                check.fail("input", source, "text that UTF-8 can hold, or bytes")
        if isinstance(source, (bytes, bytearray, memoryview)):
            # It travels with the command itself: no further frame when it fits the first window.
            return cls(iter(()), check.octets("input", source, "bytes"))
        # A pipe's or socket's read1 gives what is there; plain read would wait for the whole block.
        read = getattr(source, "read1", None) or getattr(source, "read", None)
        if callable(read):
            if hasattr(source, "encoding"):
                check.fail("input", source, "a file opened in binary mode ('rb')")
            return cls(_blocks(read), None)
        if not isinstance(source, Iterator):
            check.fail("input", source, "bytes, str, a file opened in binary mode, or an iterator of bytes")
        return cls(source, None)

    def began(self, channel: Channel) -> None:
        """The command was sent, and with it as much of `early` as its window took."""
        self._channel = channel
        if self.early is not None:
            taken = min(len(self.early), INPUT_WINDOW)
            self._ended = taken == len(self.early)
            self._rest = self.early[taken:]

    def pump(self) -> bool:
        """Send what there is credit for. False when the caller may sleep: all is sent, or there is no credit."""
        channel = self._channel
        if self._ended or channel is None or channel.input_credit <= 0:
            return False
        if not len(self._rest):
            for chunk in self._chunks:
                self._rest = check.octets("input", chunk, "an iterator or file that gives bytes, not text")
                return True
            self._ended = True
            channel.close_input()
            return True
        self._rest = self._rest[channel.send_input(self._rest) :]
        return True


def _blocks(read: Callable[[int], object]) -> Iterator[object]:
    while chunk := read(INPUT_WINDOW):
        yield chunk
