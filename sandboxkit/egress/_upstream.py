"""A connection to the outside in the relay's thread: to the first address that answers, and with TLS where asked."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final, Protocol

from sandboxkit._relay import Relay, Timer, Watch, close_socket

__all__ = ["FULL", "Upstream", "UpstreamHandler"]

FULL: Final = 262_144
"""Bytes that may wait for one side before the other is not read any more; as many are offered to it at a time."""
_PIECE: Final = 65_536
_TURN: Final = 8  # reads before the next connection has its turn
_ADDRESSES: Final = 4  # tried


class UpstreamHandler(Protocol):
    """Who uses it. Called in the relay's thread."""

    def connected(self, address: str) -> None:
        """It can be sent to, and will receive."""

    def not_connected(self, reason: str, *, timed_out: bool = False, refused: bool = False) -> None:
        """The last call when it never was."""

    def upstream_received(self, data: bytes) -> None:
        """The next bytes; not called while paused."""

    def upstream_eof(self) -> None:
        """The outside will send no more."""

    def upstream_drained(self) -> None:
        """All that was sent has left."""

    def upstream_broke(self, reason: str) -> None:
        """The last call when it was connected and ended out of order."""


class Upstream:
    """See the module."""

    def __init__(self, relay: Relay, handler: UpstreamHandler, tls: tuple[ssl.SSLContext, str] | None) -> None:
        self._relay = relay
        self._handler = handler
        self._sock: socket.socket | None = None
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._out = bytearray()
        self._is_connected = False
        self._paused = False
        self._eof_received = False
        self._eof_wanted = False
        self._eof_sent = False
        self._address = ""
        self._addresses: list[str] = []
        self._port = 0
        self._deadline = 0.0
        self._reason = "it has no address"
        self._refused = False
        self._tls: ssl.SSLObject | None = None
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls_wanted = tls
        self.is_closed = False

    @property
    def waiting(self) -> int:
        """Bytes that have not left yet."""
        return len(self._out)

    def connect(self, addresses: Sequence[str], port: int, timeout: float) -> None:
        """To the very addresses that were checked, one after the other, until one answers."""
        self._addresses, self._port = list(addresses[:_ADDRESSES]), port
        self._deadline = time.monotonic() + timeout
        self._next()

    def send(self, data: bytes) -> None:
        """Send it all, sooner or later: see `waiting` and `upstream_drained`."""
        if self._tls is not None:
            try:
                self._tls.write(data)
            except ssl.SSLError:
                self._broke("its TLS ended out of order")
                return
            self._out += self._tls_out.read()
        else:
            self._out += data
        self._flush()

    def send_eof(self) -> None:
        """The outside reads end of file behind what was sent."""
        self._eof_wanted = True
        self._flush()

    def pause(self) -> None:
        """Receive no more until `resume`."""
        self._paused = True
        self._update()

    def resume(self) -> None:
        """On with it."""
        if self._paused:
            self._paused = False
            self._update()
            if self._tls is not None and self._is_connected:
                self._read_tls()  # what was decrypted already tells no socket

    def close(self, *, abruptly: bool = False) -> None:
        """End it; no call follows. May be called twice."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop(abruptly=abruptly)
        self._addresses.clear()
        self._out.clear()

    def _drop(self, *, abruptly: bool) -> None:
        watch, sock, self._watch, self._sock = self._watch, self._sock, None, None
        if watch is not None:
            watch.close()
        if sock is not None:
            close_socket(sock, abruptly=abruptly)

    # Connecting.

    def _next(self) -> None:
        self._drop(abruptly=True)
        if self._timer is not None:
            self._timer.cancel()
        left = self._deadline - time.monotonic()
        if not self._addresses or left <= 0:
            self._handler.not_connected(self._reason, timed_out=self._reason == "no answer", refused=self._refused)
            return
        share = left / len(self._addresses)
        self._tls, self._eof_received = None, False
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._out.clear()
        self._address = self._addresses.pop(0)
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._try_another(error.errno or errno.EIO)
            return
        self._sock = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((self._address, self._port))
        if code not in (0, errno.EINPROGRESS):
            self._try_another(code)
            return
        self._timer = self._relay.call_later(share, self._timed_out)
        self._watch = self._relay.watch(sock, self._ready)
        self._watch.want(write=True)

    def _timed_out(self) -> None:
        self._reason = "no answer"
        self._next()

    def _try_another(self, code: int) -> None:
        self._refused = code == errno.ECONNREFUSED
        self._reason = errno.errorcode.get(code, str(code)) if not self._refused else "it refused the connection"
        self._next()

    def _established(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_connected = True
        self._handler.connected(self._address)
        self._update()

    def _handshake(self) -> None:
        if self._tls is None:
            assert self._tls_wanted is not None
            context, name = self._tls_wanted
            self._tls = context.wrap_bio(self._tls_in, self._tls_out, server_hostname=name)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._out += self._tls_out.read()
            self._flush()
            return
        except ssl.SSLError as error:
            self._addresses.clear()
            self._reason = f"its TLS can't be trusted or understood ({error.reason or 'SSLError'})"
            self._next()
            return
        self._out += self._tls_out.read()
        self._established()

    # Afterwards.

    def _update(self) -> None:
        if self._watch is None:
            return
        read = not self._eof_received and (not self._paused or not self._is_connected)
        write = bool(self._out)
        # Both directions at their end is a hang-up for ever: no reason to be woken.
        self._watch.want(read=read, write=write, errors=not (self._eof_received and self._eof_sent))

    def _ready(self, readable: bool, writable: bool) -> None:
        assert self._sock is not None
        if not self._is_connected and self._tls is None:
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._try_another(code)
            elif self._tls_wanted is not None:
                self._handshake()
                self._update()
            else:
                self._established()
            return
        if writable:
            self._flush()
        if readable and self._sock is not None:
            self._read()
        self._update()

    def _read(self) -> None:
        for _ in range(_TURN):
            if self._sock is None or self._eof_received or (self._paused and self._is_connected):
                return
            try:
                data = self._sock.recv(_PIECE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._broke(errno.errorcode.get(error.errno or 0, "an error"))
                return
            if self._tls_wanted is not None:
                self._tls_in.write(data) if data else self._tls_in.write_eof()
                self._eof_received = not data
                if self._is_connected:
                    self._read_tls()
                else:
                    self._handshake()
            elif data:
                self._handler.upstream_received(data)
            else:
                self._eof_received = True
                self._handler.upstream_eof()

    def _read_tls(self) -> None:
        assert self._tls is not None
        while self._sock is not None and not self._paused:
            try:
                data = self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError:
                self._broke("its TLS ended out of order")
                return
            if not data:
                self._eof_received = True
                self._handler.upstream_eof()
                return
            self._handler.upstream_received(data)
        self._out += self._tls_out.read()  # key updates, say
        self._flush()

    def _flush(self) -> None:
        if self._sock is None:
            return
        had = bool(self._out)
        while self._out:
            try:
                with memoryview(self._out) as view:
                    sent = self._sock.send(view[:FULL])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._broke(errno.errorcode.get(error.errno or 0, "an error"))
                return
            del self._out[:sent]
        if not self._out and self._eof_wanted and not self._eof_sent and self._is_connected:
            self._eof_sent = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        self._update()
        if had and not self._out and self._is_connected:
            self._handler.upstream_drained()

    def _broke(self, reason: str) -> None:
        if not self._is_connected:
            self._reason = reason
            self._next()
            return
        self.close(abruptly=True)
        self._handler.upstream_broke(reason)
