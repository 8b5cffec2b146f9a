"""Tunnels and listeners on the wire (agent/PROTOCOL.md section 9): their table, and what each frame does to them.

A tunnel is a channel whose bytes go to and from a connection inside the sandbox. Its frames are acted on by the reader
thread, which tells the tunnel's sink; what is sent for it comes from the relay's thread (`sandboxkit._relay`), but the
credit that the sink gives back at once and the reset of what came too late.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from ._frames import (
    HEADER,
    MAX_PAYLOAD,
    FrameType,
    ProtocolError,
    Refusal,
    Stream,
    encode,
    encode_u32,
    parse_u32,
)
from ._shortcut import OFFER_SIZE, Offer
from .errors import SandboxError

if TYPE_CHECKING:
    from ._channel import Connection

__all__ = ["WINDOW", "Address", "Closed", "Companion", "End", "ListenerSink", "Tunnel", "TunnelSink", "Tunnels"]

WINDOW: Final = 1024 * 1024
"""Credit that the agent gets for each tunnel: the most that may wait here for one that does not read."""

HOST_WINDOW: Final = 524_288  # §9.3: the first credit for what the host sends through a tunnel
MAX_ACCEPTED: Final = 224  # §9.4: connections from inside that may be open at once
FIRST_ACCEPTED: Final = 0x8000_0000

_MAX_TAKEN: Final = 512
_USE: Final = 0.1  # seconds: idle timeouts are longer

_ADDRESS = struct.Struct("<IBBH")
_PORT = struct.Struct("<HH")

Address: TypeAlias = int | str
"""Inside the sandbox: a TCP port on its loopback, the absolute path of a unix socket, or `@` and an abstract name."""


@attrs.frozen
class Closed:
    """§9.5: how a tunnel ended; 0 is an end in order."""

    errno: int


End: TypeAlias = Closed | Refusal | SandboxError
"""CLOSED, or ERROR for what never opened, or the error that ended the session."""


class TunnelSink(Protocol):
    """What becomes of a tunnel. Called by the reader thread: nothing here may block, or send but by `send_later`."""

    def opened(self, offer: Offer | None) -> None:
        """The connection inside is made; where it is to be had, if it was asked for on loan."""

    def received(self, chunk: memoryview) -> int:
        """Take the bytes (copy them). Returns how many were consumed: the credit of the others by `Tunnel.consumed`."""
        ...

    def received_eof(self) -> None:
        """No more will be received."""

    def credited(self) -> None:
        """There is credit again."""

    def closed(self, end: End) -> None:
        """The last call. After `Tunnel.reset` it is the only one."""


class ListenerSink(Protocol):
    """What becomes of a listener inside. Called by the reader thread: nothing here may block."""

    def listening(self, port: int) -> None:
        """It is bound."""

    def accepted(self, tunnel: Tunnel) -> None:
        """A connection: from the relay's thread, `tunnel.accept(sink)` takes it and `tunnel.reset()` refuses it."""

    def closed(self, end: End) -> None:
        """The last call."""


class Companion(Protocol):
    """The relay, as the connection needs it."""

    def session_ended(self, error: SandboxError) -> None:
        """Reader thread, or whoever ended the session: give everything back. May be called twice."""

    def join(self, timeout: float) -> None:
        """Wait for its thread, if there is one and this is another."""


class Tunnel:
    """One tunnel, or with a ListenerSink a listener. What sends is for the relay's thread alone, but `reset`."""

    __slots__ = (
        "_connection",
        "_returned",
        "credit",
        "ended",
        "eof_received",
        "eof_sent",
        "granted",
        "id",
        "is_open",
        "lent",
        "listener",
        "reset_sent",
        "sink",
    )

    def __init__(
        self,
        connection: Connection,
        sink: TunnelSink | None,
        listener: ListenerSink | None = None,
        *,
        lent: bool = False,
    ) -> None:
        self._connection = connection
        self.id = 0
        self.lent = lent  # asked for on loan (§9.6), and neither accepted nor taken yet
        self.sink = sink
        self.listener = listener
        self.granted = 0 if sink is None or lent else WINDOW  # bytes the agent may still send
        self._returned = 0  # consumed and not granted again yet
        self.credit = HOST_WINDOW
        self.is_open = False
        self.eof_received = False
        self.eof_sent = False
        self.reset_sent = False
        self.ended = False

    def accept(self, sink: TunnelSink) -> None:
        """Take a connection from inside, or one on loan that can't be had: from here on its bytes come."""
        self.sink = sink
        self.granted = WINDOW
        self.lent = False  # last: until then the reader takes an end for a broken rule
        self._send(encode_u32(FrameType.WINDOW, self.id, WINDOW))

    def let_go(self) -> None:
        """The connection is the host's, and the agent's no more. Nothing comes here but the end."""
        self.lent = False
        self.reset_sent = True
        self._send(encode(FrameType.TAKEN, self.id))

    def send(self, data: memoryview) -> int:
        """Send as much as there is credit for, 64 KiB at most, and return how much; 0 when there is none."""
        size = min(len(data), self.credit, MAX_PAYLOAD)
        if size:
            self._take_credit(size)
            self._send(encode(FrameType.DATA, self.id, data[:size], Stream.STDIN))
        return size

    def send_framed(self, buffer: memoryview, size: int) -> None:
        """Send `size` bytes, no more than `credit`, that lie in `buffer` in pieces of 64 KiB behind room for headers.

        All leave in one call, so that much costs little.
        """
        self._take_credit(size)
        at, left = 0, size
        while left:
            piece = min(left, MAX_PAYLOAD)
            HEADER.pack_into(buffer, at, piece, self.id, FrameType.DATA, Stream.STDIN, 0)
            at += HEADER.size + piece
            left -= piece
        self._send(buffer[:at])

    def send_eof(self) -> None:
        """The connection inside will read end of file. May be called twice."""
        if not self.eof_sent:
            self.eof_sent = True
            self._send(encode(FrameType.EOF, self.id, b"", Stream.STDIN))

    def reset(self) -> None:
        """End it at once, both ways; a listener closes. Never waits. May be called twice, and when it has ended."""
        if not self.reset_sent and not self.ended:
            self.reset_sent = True
            self._connection.send_later(encode_u32(FrameType.KILL, self.id, 0))

    def consumed(self, size: int) -> None:
        """`size` bytes of what `TunnelSink.received` left were consumed since."""
        returned = self._due(size)
        if returned:
            self._send(encode_u32(FrameType.WINDOW, self.id, returned))

    def _send(self, frame: bytes | memoryview) -> None:
        # A tunnel that has ended may be sent to: the agent drops what crossed with its end. A session that has ended
        # tells the sink so by itself.
        if not self.ended:
            self._connection.send_quietly(frame)

    def _take_credit(self, size: int) -> None:
        with self._connection.credit_lock:  # the reader adds to it meanwhile
            self.credit -= size

    def _due(self, size: int) -> int:
        with self._connection.credit_lock:
            self._returned += size
            if self._returned < WINDOW // 4 or self.ended or self.reset_sent or self.eof_received:
                return 0
            returned, self._returned = self._returned, 0
            self.granted += returned
            return returned

    # The reader thread's side.

    def expect(self, flags: int, length: int) -> None:
        """The head of a DATA frame."""
        if flags != Stream.STDOUT:
            raise ProtocolError(f"a tunnel's bytes on stream {flags}")
        if not self.is_open or self.listener is not None or self.eof_received:
            raise ProtocolError("bytes of a tunnel that carries none")
        with self._connection.credit_lock:
            self.granted -= length
        if self.granted < 0:
            raise ProtocolError("more bytes than a tunnel was granted")

    def receive(self, stream: Stream, chunk: memoryview) -> None:
        """Bytes came."""
        if self.sink is None or self.reset_sent:
            return
        returned = self._due(self.sink.received(chunk))
        if returned:
            self._connection.send_later(encode_u32(FrameType.WINDOW, self.id, returned))

    def finish(self, end: End) -> None:
        """The last frame, or the end of the session."""
        if self.ended:
            return
        self.ended = True
        if self.listener is not None:
            self.listener.closed(end)
        elif self.sink is not None:
            self.sink.closed(end)


class Tunnels:
    """The tunnels and listeners of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[int, Tunnel] = {}
        self._last_accepted = FIRST_ACCEPTED - 1
        self._accepted = 0  # of those that are open
        self._taken: set[int] = set()  # of which the agent has not let go yet
        self._used = 0.0  # when the agent last heard of the use of one
        self.companion: Companion | None = None

    def raise_if_unusable(self) -> None:
        """See Connection."""
        self._connection.raise_if_unusable()

    # The relay's thread.

    @property
    def lends(self) -> bool:
        """Whether connections to ports may be had on loan (§9.6), and the agent lets go of those that were."""
        return self._connection.taker is not None and len(self._taken) < _MAX_TAKEN

    def take(self, tunnel: Tunnel, offer: Offer) -> socket.socket | None:
        """A connection on loan, non-blocking; the agent lets go of it. None when it can't be had: accept it."""
        taker = self._connection.taker
        inside = None if taker is None else taker.take(offer, socket.AF_INET, socket.AF_INET6)
        if inside is not None:
            self._taken.add(tunnel.id)
            tunnel.let_go()
        return inside

    def note_use(self) -> None:
        """Something goes to the sandbox past the agent, whose idle timeout is to hear of it."""
        now = time.monotonic()
        if now - self._used >= _USE:
            self._used = now
            self._connection.send_quietly(encode(FrameType.PING, 0))

    def connect(self, address: Address, sink: TunnelSink, *, lent: bool = False) -> Tunnel:
        """Open a tunnel; bytes may be sent before `TunnelSink.opened`. SandboxError when the session is over.

        `lent`: on loan, if `lends`. Nothing may be sent then before `opened`, and `take` or `Tunnel.accept` behind it.
        """
        return self._begin(
            FrameType.CONNECT, _connect_payload(address, lent), Tunnel(self._connection, sink, lent=lent)
        )

    def listen(self, port: int, listener: ListenerSink) -> Tunnel:
        """Listen on the sandbox's 127.0.0.1; port 0: any. SandboxError when the session is over."""
        return self._begin(FrameType.LISTEN, _PORT.pack(port, 0), Tunnel(self._connection, None, listener))

    def _begin(self, kind: FrameType, payload: bytes, tunnel: Tunnel) -> Tunnel:
        def opening(number: int) -> bytes:
            tunnel.id = number
            self._open[number] = tunnel
            return encode(kind, number, payload)

        try:
            self._connection.send_opening(opening)
        except BaseException:
            self._open.pop(tunnel.id, None)
            raise
        if self._connection.lost is not None:
            tunnel.finish(self._connection.lost)  # the reader may have ended before it was in the table
        return tunnel

    # The reader thread.

    def find(self, number: int) -> Tunnel | None:
        """The open tunnel or listener of that number."""
        return self._open.get(number)

    def opened(self, number: int, payload: bytes) -> None:
        """OPENED came."""
        tunnel = self._known(number)
        if tunnel.is_open or len(payload) != _PORT.size + (OFFER_SIZE if tunnel.lent else 0):
            raise ProtocolError("a tunnel that opened twice, or a malformed OPENED")
        tunnel.is_open = True
        port = _PORT.unpack_from(payload)[0]
        if tunnel.listener is not None:
            tunnel.listener.listening(port)
        elif tunnel.sink is not None and not tunnel.reset_sent:
            tunnel.sink.opened(Offer.parse(payload[_PORT.size :]) if tunnel.lent else None)

    def accepted(self, number: int, payload: bytes) -> None:
        """ACCEPTED came."""
        listener = self._known(parse_u32(payload))
        if listener.listener is None or not listener.is_open:
            raise ProtocolError("a connection accepted by what is no listener")
        if number <= self._last_accepted or self._accepted >= MAX_ACCEPTED:
            raise ProtocolError("an accepted connection with a used number, or more of them than may be open")
        self._last_accepted = number
        self._accepted += 1
        tunnel = self._open[number] = Tunnel(self._connection, None)
        tunnel.id = number
        tunnel.is_open = True
        listener.listener.accepted(tunnel)

    def eof(self, number: int, flags: int, payload: bytes) -> None:
        """EOF came."""
        tunnel = self._known(number)
        if payload or flags != Stream.STDOUT or not tunnel.is_open or tunnel.eof_received:
            raise ProtocolError("an end of file that can't be")
        self._raise_if_waiting(tunnel)
        tunnel.eof_received = True
        if tunnel.sink is not None and not tunnel.reset_sent:
            tunnel.sink.received_eof()

    def window(self, tunnel: Tunnel, credit: int) -> None:
        """WINDOW came."""
        with self._connection.credit_lock:
            tunnel.credit += credit
        if tunnel.credit > HOST_WINDOW or tunnel.listener is not None:
            raise ProtocolError("more credit than was used")
        if tunnel.sink is not None and not tunnel.reset_sent:
            tunnel.sink.credited()

    def closed(self, number: int, payload: bytes) -> None:
        """CLOSED came."""
        tunnel = self._known(number)
        if len(payload) != _PORT.size or not tunnel.is_open:
            raise ProtocolError("a malformed CLOSED, or of what never opened")
        self._raise_if_waiting(tunnel)
        self._forget(tunnel, Closed(_PORT.unpack(payload)[0]))

    def refused(self, tunnel: Tunnel, refusal: Refusal) -> None:
        """ERROR came."""
        if tunnel.is_open:
            raise ProtocolError("an ERROR for a tunnel that is open")
        self._forget(tunnel, refusal)

    def finish_all(self, error: SandboxError) -> None:
        """The session has ended."""
        for number, tunnel in self._open.copy().items():
            tunnel.finish(error)
            self._open.pop(number, None)
        if self.companion is not None:
            self.companion.session_ended(error)

    def join(self, timeout: float) -> None:
        """Wait for the relay's end, once the session has ended."""
        if self.companion is not None:
            self.companion.join(timeout)

    def _known(self, number: int) -> Tunnel:
        found = self._open.get(number)
        if found is None:
            raise ProtocolError(f"a tunnel's frame for channel {number}, which is none")
        return found

    @staticmethod
    def _raise_if_waiting(tunnel: Tunnel) -> None:
        # Until the host has taken or refused it, nothing is read from it, so nothing can be known of it.
        if (tunnel.lent or (tunnel.sink is None and tunnel.listener is None)) and not tunnel.reset_sent:
            raise ProtocolError("the end of a connection that was not taken yet")

    def _forget(self, tunnel: Tunnel, end: End) -> None:
        self._open.pop(tunnel.id, None)
        self._taken.discard(tunnel.id)
        if tunnel.id >= FIRST_ACCEPTED:
            self._accepted -= 1
        tunnel.finish(end)


def _connect_payload(address: Address, lent: bool) -> bytes:
    window = 0 if lent else WINDOW
    if isinstance(address, int):
        return _ADDRESS.pack(window, 0, lent, address)
    return _ADDRESS.pack(window, 1, lent, 0) + address.encode("utf-8", "surrogateescape")
