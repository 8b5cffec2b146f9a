"""What is kept of a command's output: all of it up to a cap, else its head and its tail."""

from __future__ import annotations

from io import BytesIO

__all__ = ["HeadTail", "continuation_head", "incomplete_tail"]


class HeadTail:
    """Keeps at most `cap` bytes of a stream and counts them all: keeps the whole of it, or its first and last half.

    Memory stays below 1.5 times the cap. Fed by one thread; read when the stream has ended.
    """

    __slots__ = ("_cap", "_head_cap", "_kept", "_tail", "_tail_cap", "total")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._tail_cap = cap // 2
        self._head_cap = cap - self._tail_cap
        # CPython's BytesIO hands its buffer out as bytes without a copy: for large outputs that is most of the cost.
        self._kept = BytesIO()
        self._tail: bytearray | None = None
        self.total = 0

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes of the stream; the view need not outlive the call."""
        self.total += len(chunk)
        if self.total <= self._cap:
            self._kept.write(chunk)
            return
        if self._tail is None:
            room = self._cap - self._kept.tell()
            self._kept.write(chunk[:room])
            chunk = chunk[room:]
            with self._kept.getbuffer() as kept:
                self._tail = bytearray(kept[self._head_cap :])
            self._kept.truncate(self._head_cap)
        self._tail += chunk
        # Trimmed once a doubling, so that each byte is moved at most once more, whatever the size of the chunks.
        if len(self._tail) > 2 * self._tail_cap:
            del self._tail[: len(self._tail) - self._tail_cap]

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out; a stream of exactly the cap is whole."""
        return self.total > self._cap

    def render(self) -> bytes:
        """The whole stream, or head, a line that counts what is missing, and tail, cut between UTF-8 characters."""
        head = self._kept.getvalue()
        if self._tail is None:
            return head
        head = head[: len(head) - incomplete_tail(head)]
        tail = bytes(self._tail[len(self._tail) - self._tail_cap :])
        tail = tail[continuation_head(tail) :]
        missing = self.total - len(head) - len(tail)
        return b"%b\n[... %d bytes left out ...]\n%b" % (head, missing, tail)


def incomplete_tail(data: bytes | bytearray) -> int:
    """How many bytes at the end (0 to 3) begin a UTF-8 character that is not whole yet."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:  # a lead byte: whole if as many bytes follow as it announces
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return back if back < need else 0
    return 0


def continuation_head(data: bytes) -> int:
    """How many bytes at the start (0 to 3) continue a character whose lead byte was cut off."""
    for index, byte in enumerate(data[:3]):
        if not 0x80 <= byte < 0xC0:
            return index
    return min(3, len(data))
