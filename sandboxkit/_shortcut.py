"""A way to the agent that does not lead through its engine (agent/PROTOCOL.md §3.4).

An engine copies every byte of an attached stream two or three times, from process to process. Where this process may
take a descriptor of the agent's (pidfd_getfd(2), Linux 5.6: for root, and for the user whose rootless engine it is),
one end of a socket pair that the agent offers replaces the engine's stream. That one stays open, for its end alone.
Wherever this does not work (another machine, fewer rights, an older kernel) all goes over the engine's stream.

Connections that the agent makes for tunnels are taken in the same way (§9.6).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable

import attrs

from ._frames import ProtocolError
from .streams import STREAM_TIMEOUT, WatchableStream

__all__ = ["OFFER_SIZE", "Offer", "Shortcut", "Taker"]

_PIDFD_GETFD = 438  # on every architecture (asm-generic/unistd.h)
_NO_DESCRIPTOR = 2**32 - 1
_BUFFER = 256 * 1024
_MUCH = 32 * 1024
_LAST_WORDS = 0.5
_OFFER = struct.Struct("<IQ")

OFFER_SIZE = _OFFER.size


@attrs.frozen
class Offer:
    """§3.4, §9.6: where in the agent's process a socket is, and its inode, which tells it from any other."""

    descriptor: int
    inode: int

    @classmethod
    def parse(cls, payload: bytes) -> Offer:
        """ProtocolError unless it has the right size."""
        if len(payload) != _OFFER.size:
            raise ProtocolError(f"an OFFER of {len(payload)} bytes")
        return cls(*_OFFER.unpack(payload))


class Taker:
    """Takes sockets out of the process `pid` of this machine, for as long as that process lives, until `close`."""

    def __init__(self, pid: int) -> None:
        """OSError when there is no such process, or no descriptor left here."""
        if not hasattr(os, "pidfd_open"):
            raise OSError(errno.ENOSYS, "this Python knows no pidfd_open")
        self._lock = threading.Lock()
        self._process = os.pidfd_open(pid)

    def take(self, offer: Offer, *families: socket.AddressFamily) -> socket.socket | None:
        """The offered stream socket, non-blocking; None when this process may not have it, or it is another.

        The engine may number processes otherwise than this machine does. So what was taken must be the very socket that
        was offered; anything else is closed again, untouched.
        """
        number = self._descriptor(offer.descriptor)
        if number is None:
            return None
        try:
            sock = socket.socket(fileno=number)  # asks the kernel for its family: an OSError for a file
        except OSError:
            with contextlib.suppress(OSError):
                os.close(number)
            return None
        if sock.family in families and sock.type == socket.SOCK_STREAM and os.fstat(number).st_ino == offer.inode:
            sock.setblocking(False)
            return sock
        sock.close()
        return None

    def _descriptor(self, descriptor: int) -> int | None:
        if descriptor == _NO_DESCRIPTOR:
            return None
        with self._lock:
            if self._process < 0:
                return None
            found: int = ctypes.CDLL(None).syscall(_PIDFD_GETFD, self._process, ctypes.c_uint(descriptor), 0)
        return found if found >= 0 else None

    def close(self) -> None:
        """Take no more. May be called twice."""
        with self._lock:
            process, self._process = self._process, -1
        if process >= 0:
            os.close(process)


class Shortcut:
    """A ByteStream: the agent's own socket, and the engine's stream beneath, whose end is the end of both.

    It owns the taker that it came by.
    """

    def __init__(self, sock: socket.socket, engine: WatchableStream, taker: Taker) -> None:
        # Two objects for one socket: sending waits, inside the C method (see ByteStream.send); receiving never does.
        # OSError, and then `sock` is closed, when there is no descriptor left.
        try:
            self._receiver = sock.dup()
        except OSError:
            sock.close()
            raise
        self._engine = engine
        self.taker = taker
        self._receiver.setblocking(False)
        sock.settimeout(STREAM_TIMEOUT)
        self._sender = sock
        self._send: Callable[[memoryview], int] = sock.send
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._engine_number = engine.watch()
        self._poll = select.poll()
        self._poll.register(self._receiver, select.POLLIN)
        self._poll.register(self._engine_number, select.POLLIN)
        self._flowing = False  # much came: look for more before waiting for it
        self._down = False

    @property
    def send(self) -> Callable[[memoryview], int]:
        """See ByteStream.send."""
        return self._send

    def receive(self) -> memoryview:
        """See ByteStream.receive. ProtocolError when the agent uses the engine's stream still."""
        while True:
            if not self._flowing:
                ready = self._poll.poll(STREAM_TIMEOUT * 1000)
                if not ready:
                    raise TimeoutError("nothing came")
                # What came first is read first: the last frames of an agent that has ended are good.
                if ready[0][0] == self._engine_number and len(ready) == 1 and self._engine_ended():
                    return self._view[:0]
            try:
                count = self._receiver.recv_into(self._buffer)
            except BlockingIOError:
                self._flowing = False
                continue
            self._flowing = count >= _MUCH
            if count == 0:
                self._hear_last_words()
            return self._view[:count]

    def _engine_ended(self) -> bool:
        try:
            chunk = self._engine.receive()
        except BlockingIOError:
            return False
        if chunk:
            raise ProtocolError("bytes on the engine's stream after the shortcut was taken")
        return True

    def _hear_last_words(self) -> None:
        # The agent ended. What it said to people comes through the engine, a little later.
        ending = select.poll()
        ending.register(self._engine_number, select.POLLIN)
        with contextlib.suppress(OSError, ProtocolError):
            while not self._down and ending.poll(_LAST_WORDS * 1000) and not self._engine_ended():
                pass

    def diagnostics(self) -> str:
        """See ByteStream.diagnostics."""
        return self._engine.diagnostics()

    def shutdown(self) -> None:
        """See ByteStream.shutdown."""
        self._down = True
        with contextlib.suppress(OSError):
            self._sender.shutdown(socket.SHUT_RDWR)
        self._engine.shutdown()

    def close(self) -> None:
        """See ByteStream.close."""
        self.shutdown()
        self.taker.close()
        self._receiver.close()
        self._sender.close()
        self._engine.close()
