"""Bytes from the container into calls on its connection, trusting none of them (agent/PROTOCOL.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._frames import (
    HEADER,
    MAX_CREDIT,
    MAX_PAYLOAD,
    Exit,
    FrameType,
    Hello,
    ProtocolError,
    Refusal,
    Stream,
    parse_u32,
)
from ._process_frames import parse_cursor
from ._shortcut import Offer
from ._tunnels import Tunnel

if TYPE_CHECKING:
    from ._channel import Channel, Connection

__all__ = ["Decoder"]


class Decoder:
    """Turns the received bytes into calls on the connection. Holds at most one frame of 64 KiB, and of DATA nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._header = bytearray()
        self._left = 0  # of the current frame's payload
        self._type = 0
        self._flags = 0
        self._number = 0
        self._target: Channel | Tunnel | None = None  # of the current DATA frame
        self._payload = bytearray()
        self._greeted = False

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes. ProtocolError when they break a rule."""
        position, end = 0, len(chunk)
        while position < end:
            if self._left:
                piece = chunk[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                if self._target is not None:
                    self._target.receive(Stream(self._flags), piece)
                    continue
                self._payload += piece
            elif not self._header and end - position >= HEADER.size:
                self._begin(*HEADER.unpack_from(chunk, position))
                position += HEADER.size
                if self._target is not None:
                    continue
            else:
                need = HEADER.size - len(self._header)
                self._header += chunk[position : position + need]
                position = min(position + need, end)
                if len(self._header) < HEADER.size:
                    return
                self._begin(*HEADER.unpack(self._header))
                self._header.clear()
            if not self._left and self._target is None:
                payload = bytes(self._payload)
                self._payload.clear()
                self._dispatch(payload)

    def _begin(self, length: int, number: int, kind: int, flags: int, reserved: int) -> None:
        if length > MAX_PAYLOAD:
            raise ProtocolError(f"a frame of {length} bytes")
        if reserved:
            raise ProtocolError("a frame with reserved bits set")
        if not self._greeted and kind != FrameType.HELLO:
            raise ProtocolError(f"a frame of type {kind:#04x} before HELLO")
        self._left, self._number, self._type, self._flags = length, number, kind, flags
        self._target = None
        if kind == FrameType.DATA:
            tunnel = self._connection.tunnels.find(number)
            if tunnel is not None:
                tunnel.expect(flags, length)
                self._target = tunnel
                return
            if flags not in (Stream.STDOUT, Stream.STDERR):
                raise ProtocolError(f"output on stream {flags}")
            channel = self._connection.channel(number)
            with self._connection.credit_lock:
                channel.granted -= length
            if channel.granted + channel.extra < 0:
                raise ProtocolError("more output than it was granted")
            self._target = channel

    def _dispatch(self, payload: bytes) -> None:
        kind, number = self._type, self._number
        if kind == FrameType.EOF:
            self._connection.tunnels.eof(number, self._flags, payload)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"a frame of unknown type {kind:#04x}")
        if kind == FrameType.HELLO:
            if self._greeted or number:
                raise ProtocolError("a second HELLO")
            self._greeted = True
        handler(self._connection, number, payload)


def _on_hello(connection: Connection, number: int, payload: bytes) -> None:
    connection.said_hello(Hello.parse(payload))


def _on_pong(connection: Connection, number: int, payload: bytes) -> None:
    if number or len(payload) > 8:
        raise ProtocolError("a malformed PONG")
    connection.answered.set()


def _on_offer(connection: Connection, number: int, payload: bytes) -> None:
    if number:
        raise ProtocolError("an OFFER on a command's channel")
    connection.offered(Offer.parse(payload))


def _on_started(connection: Connection, number: int, payload: bytes) -> None:
    channel = connection.channel(number)
    channel.pid = parse_u32(payload)
    channel.changed.set()


def _on_window(connection: Connection, number: int, payload: bytes) -> None:
    tunnel = connection.tunnels.find(number)
    if tunnel is not None:
        connection.tunnels.window(tunnel, parse_u32(payload))
        return
    channel = connection.channel(number)
    with connection.credit_lock:
        channel.input_credit += parse_u32(payload)
    if channel.input_credit > MAX_CREDIT:
        raise ProtocolError("more credit than the protocol allows")
    channel.input_changed.set()
    channel.changed.set()


def _on_exit(connection: Connection, number: int, payload: bytes) -> None:
    if not connection.channel(number).is_command:
        raise ProtocolError("an EXIT of what is no command")
    connection.finished(number, Exit.parse(payload))


def _on_error(connection: Connection, number: int, payload: bytes) -> None:
    tunnel = connection.tunnels.find(number)
    if tunnel is not None:
        connection.tunnels.refused(tunnel, Refusal.parse(payload))
    else:
        connection.finished(number, Refusal.parse(payload))


def _on_process(connection: Connection, number: int, payload: bytes) -> None:
    connection.finished(number, connection.channel(number).answered(payload))


def _on_cursor(connection: Connection, number: int, payload: bytes) -> None:
    connection.channel(number).moved(parse_cursor(payload))


def _on_opened(connection: Connection, number: int, payload: bytes) -> None:
    connection.tunnels.opened(number, payload)


def _on_accepted(connection: Connection, number: int, payload: bytes) -> None:
    connection.tunnels.accepted(number, payload)


def _on_closed(connection: Connection, number: int, payload: bytes) -> None:
    connection.tunnels.closed(number, payload)


_HANDLERS: dict[int, Callable[[Connection, int, bytes], None]] = {
    FrameType.HELLO: _on_hello,
    FrameType.PONG: _on_pong,
    FrameType.OFFER: _on_offer,
    FrameType.STARTED: _on_started,
    FrameType.WINDOW: _on_window,
    FrameType.EXIT: _on_exit,
    FrameType.ERROR: _on_error,
    FrameType.PROCESS: _on_process,
    FrameType.CURSOR: _on_cursor,
    FrameType.OPENED: _on_opened,
    FrameType.ACCEPTED: _on_accepted,
    FrameType.CLOSED: _on_closed,
}
