"""One connection of the host coupled with one tunnel: bytes, ends and resets, both ways."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from typing import Final

from ._frames import MAX_PAYLOAD
from ._relay import Relay, close_socket
from ._shortcut import Offer
from ._tunnels import Closed, End, Tunnel

__all__ = ["Pump"]

_TURN: Final = 4  # reads before the next connection has its turn
_PIECE: Final = 262_144


class Pump:
    """Moves bytes between a non-blocking socket, which it owns, and a tunnel.

    The reader thread writes to the socket what the socket takes at once, so that a small answer needs no other thread;
    the relay's thread does the rest. `done` is called there once both have ended. A socket that is still connecting is
    `connected=False`; when it can't, the tunnel is reset.
    """

    def __init__(
        self, relay: Relay, sock: socket.socket, done: Callable[[Pump], None], *, connected: bool = True
    ) -> None:
        self._relay = relay
        self._sock = sock
        self._done = done
        self._connected = connected
        self._watch = relay.watch(sock, self._ready)
        self._tunnel: Tunnel | None = None
        self._lock = threading.Lock()  # of what follows: the reader thread and the relay's write to the socket
        self._queue = bytearray()  # a window at most: its credit is not given back before it has left
        self._broken = False
        self._ended = False  # the tunnel's side will send no more
        self._shut = False  # and the socket was told so
        self._finished = False  # the relay's thread: the socket is closed
        self._read_all = False
        self._starved = False  # no credit: it may have come since
        self._end: End | None = None
        self.bytes_to_sandbox = 0
        self.bytes_from_sandbox = 0
        with contextlib.suppress(OSError):  # a unix socket
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self, tunnel: Tunnel) -> None:
        """The relay's thread: this is the tunnel."""
        self._tunnel = tunnel
        self._update()

    def reset(self) -> None:
        """The relay's thread: end both at once. May be called twice."""
        self._close(abruptly=True)
        if self._tunnel is not None:
            self._tunnel.reset()

    # The relay's thread.

    def _update(self) -> None:
        if self._finished or self._tunnel is None:
            return
        if not self._connected:
            self._watch.want(write=True)
            return
        with self._lock:
            write = bool(self._queue)
        self._starved = True  # first: credit that comes from here on is told
        self._starved = self._tunnel.credit <= 0
        read = not self._read_all and not self._starved
        # A hang-up stays one: it has been seen, and is no reason to be woken again.
        self._watch.want(read=read, write=write, errors=not self._watch.failed)

    def _ready(self, readable: bool, writable: bool) -> None:
        if not self._connected and not self._connect():
            return
        if self._watch.failed and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
            return
        if writable:
            self._flush()
        if readable and not self._finished and not self._read_all:
            self._read()
        self._update()

    def _connect(self) -> bool:
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
            return False
        with self._lock:
            self._connected = True
        self._flush()
        return not self._finished

    def _read(self) -> None:
        tunnel, relay = self._tunnel, self._relay
        assert tunnel is not None
        for _ in range(_TURN):
            room = min(tunnel.credit, MAX_PAYLOAD * len(relay.pieces))
            if room <= 0:
                return
            whole, rest = divmod(room, MAX_PAYLOAD)
            into = relay.pieces[:whole]
            if rest:
                into.append(relay.pieces[whole][:rest])
            try:
                size = self._sock.recvmsg_into(into)[0]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.reset()
                return
            if not size:
                self._read_all = True
                tunnel.send_eof()
                return
            self.bytes_to_sandbox += size
            tunnel.send_framed(relay.buffer, size)
            if size < room:
                return

    def _flush(self) -> None:
        with self._lock:
            size = self._write_queue()
            empty, broken = not self._queue, self._broken
        if size and self._tunnel is not None:
            self._tunnel.consumed(size)
        if broken:
            self.reset()
        elif empty and self._end is not None:
            self._close(abruptly=not self._is_in_order(self._end))

    def _write_queue(self) -> int:
        size = 0
        while self._queue and not self._broken:
            with memoryview(self._queue) as view:
                sent = self._send(view[:_PIECE])
            if not sent:
                break
            del self._queue[:sent]
            size += sent
        if not self._queue:
            self._shut_if_ended()
        return size

    def _is_in_order(self, end: End) -> bool:
        # A server may answer in full and reset what it did not want to read: the answer is what counts.
        return isinstance(end, Closed) and (end.errno == 0 or self._shut)

    def _tunnel_closed(self, end: End) -> None:
        self._end = end
        if not isinstance(end, Closed) or not self._connected:
            self._close(abruptly=True)
            return
        self._flush()
        self._update()

    def _close(self, *, abruptly: bool) -> None:
        if not self._finished:
            self._finished = True
            self._watch.close()
            with self._lock:
                self._broken = True
                self._queue.clear()
                close_socket(self._sock, abruptly=abruptly)
        # Its place in the agent's table is free once the agent has said so.
        if self._tunnel is None or self._tunnel.ended:
            done, self._done = self._done, _nothing
            done(self)

    # Under the lock.

    def _send(self, view: memoryview) -> int:
        try:
            sent = self._sock.send(view)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._broken = True
            return 0
        self.bytes_from_sandbox += sent
        return sent

    def _shut_if_ended(self) -> None:
        if self._ended and not self._shut and not self._broken:
            self._shut = True
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._broken = error.errno != errno.ENOTCONN

    # The reader thread: see TunnelSink.

    def opened(self, offer: Offer | None) -> None:
        pass

    def received(self, chunk: memoryview) -> int:
        sent, size = 0, len(chunk)
        with self._lock:
            if self._broken:
                return size
            if not self._queue and self._connected:
                sent = self._send(chunk)
                if sent == size:
                    return size
            broken, told = self._broken, bool(self._queue)
            if not broken:
                self._queue += chunk[sent:]
        if broken:
            self._relay.post(self.reset)
        elif not told:
            self._relay.post(self._update)
        return sent

    def received_eof(self) -> None:
        with self._lock:
            self._ended = True
            if not self._queue and self._connected:
                self._shut_if_ended()
        self._relay.post(self._update)

    def credited(self) -> None:
        if self._starved:
            self._relay.post(self._update)

    def closed(self, end: End) -> None:
        self._relay.post(lambda: self._tunnel_closed(end))


def _nothing(pump: Pump) -> None:
    pass
