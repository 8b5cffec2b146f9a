"""Byte streams over a socket, for backends: raw, and demultiplexed from the engines' 8-byte headed frames."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .backend import ByteStream

__all__ = ["STREAM_TIMEOUT", "MultiplexedStream", "SocketStream", "WatchableStream"]

STREAM_TIMEOUT = 10.0
"""Seconds after which a send or receive that moved no byte raises TimeoutError."""

_BUFFER = 256 * 1024
_DIAGNOSTICS = 8 * 1024


@runtime_checkable
class WatchableStream(ByteStream, Protocol):
    """A ByteStream that can be kept for its end alone, once the agent has a shorter way (agent/PROTOCOL.md §3.4)."""

    def watch(self) -> int:
        """From now on `receive` never waits (BlockingIOError instead). Returns the descriptor to poll for reading."""
        ...


class SocketStream:
    """A ByteStream that is a connected socket and nothing else. Owns the socket; `keep` is kept alive with it."""

    def __init__(self, sock: socket.socket, *, keep: object = None, timeout: float = STREAM_TIMEOUT) -> None:
        sock.settimeout(timeout)
        self._socket = sock
        self._keep = keep
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._stderr = bytearray()
        # The socket's own C method: see ByteStream.send.
        self._send: Callable[[memoryview], int] = sock.send

    @property
    def send(self) -> Callable[[memoryview], int]:
        """See ByteStream.send."""
        return self._send

    def receive(self) -> memoryview:
        """See ByteStream.receive."""
        return self._view[: self._socket.recv_into(self._buffer)]

    def watch(self) -> int:
        """See WatchableStream.watch."""
        self._socket.setblocking(False)
        return self._socket.fileno()

    def diagnostics(self) -> str:
        """See ByteStream.diagnostics."""
        return self._stderr.decode("utf-8", "replace").strip()

    def shutdown(self) -> None:
        """See ByteStream.shutdown."""
        # Only shutdown() wakes a recv() blocked in another thread; close() does not (socket(7) says nothing, Linux does
        # so).
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See ByteStream.close."""
        self.shutdown()
        self._socket.close()
        self._keep = None


class MultiplexedStream(SocketStream):
    """A ByteStream over an engine's attach connection without a terminal.

    Each frame there is: u8 stream (1 stdout, 2 stderr), three zero bytes, u32 big-endian length, payload (Docker Engine
    API, "Stream format" of ContainerAttach; Podman's is the same). Standard error is kept, its last 8 KiB, for
    `diagnostics`.
    """

    def __init__(
        self, sock: socket.socket, *, keep: object = None, timeout: float = STREAM_TIMEOUT, early: bytes = b""
    ) -> None:
        """`early`: bytes of the stream that were already read with the response's headers."""
        super().__init__(sock, keep=keep, timeout=timeout)
        if len(early) > _BUFFER:
            raise ValueError("more early bytes than a response's reader holds")
        self._buffer[: len(early)] = early
        self._start = 0
        self._end = len(early)
        self._stream = 0
        self._left = 0  # of the current frame's payload

    def receive(self) -> memoryview:
        """See ByteStream.receive. OSError also for a header that is none."""
        while True:
            if self._left and self._start < self._end:
                take = min(self._left, self._end - self._start)
                chunk = self._view[self._start : self._start + take]
                self._start += take
                self._left -= take
                if self._stream == 1:
                    return chunk
                self._stderr += chunk
                del self._stderr[:-_DIAGNOSTICS]
            elif not self._left and self._end - self._start >= 8:
                self._header()
            elif not self._fill():
                return self._view[:0]

    def _header(self) -> None:
        start = self._start
        self._stream = self._buffer[start]
        if self._stream not in (1, 2) or self._buffer[start + 1 : start + 4] != b"\0\0\0":
            raise OSError("the engine's stream is not in its own format")
        self._left = int.from_bytes(self._view[start + 4 : start + 8], "big")
        self._start = start + 8

    def _fill(self) -> bool:
        # What is left here is at most seven bytes of a split header: payload bytes are always handed on before.
        rest = self._end - self._start
        self._buffer[:rest] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, rest
        count = self._socket.recv_into(self._view[rest:])
        self._end = rest + count
        return count > 0
