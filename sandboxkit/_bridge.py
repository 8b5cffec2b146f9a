"""A connection of the host coupled with one that was taken out of the sandbox: its bytes pass the agent by.

Through a tunnel (`sandboxkit._pump`) each byte is copied twice more, by one process more. So where the agent's sockets
can be taken (`sandboxkit._shortcut`), a forward asks for its connections on loan (agent/PROTOCOL.md §9.6).
Everything here is called in the relay's thread, but what TunnelSink has.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Final

from ._frames import ProtocolError
from ._relay import LINGER_AT_ONCE, Relay, close_socket
from ._shortcut import Offer
from ._tunnels import WINDOW, End, Tunnel

__all__ = ["Bridge", "Loan"]

_TURN: Final = 4  # buffers before the next connection has its turn


class Loan:
    """A TunnelSink: a client that waits for its connection inside. Nothing is read from it meanwhile."""

    bytes_to_sandbox = 0
    bytes_from_sandbox = 0

    def __init__(
        self, relay: Relay, client: socket.socket, lent: Callable[[Loan, Offer], None], done: Callable[[Loan], None]
    ) -> None:
        """Owns the socket until `release`. `lent` is called, with what is offered, or `done`, once both have ended."""
        self._relay = relay
        self._client = client
        self._lent = lent
        self._done = done
        self._watch = relay.watch(client, self._client_failed)
        self._has_client = True
        self.tunnel: Tunnel | None = None

    def start(self, tunnel: Tunnel) -> None:
        """This is the tunnel."""
        self.tunnel = tunnel
        if self._has_client:
            self._watch.want()

    def release(self) -> tuple[socket.socket, Tunnel]:
        """Within `lent`: the client and the tunnel, from now on the caller's."""
        assert self.tunnel is not None
        self._done = _nothing
        self._let_go()
        return self._client, self.tunnel

    def reset(self) -> None:
        """End both at once. May be called twice."""
        if self._has_client:
            self._let_go()
            close_socket(self._client, abruptly=True)
        if self.tunnel is not None:
            self.tunnel.reset()
        # Its place in the agent's table is free once the agent has said so.
        if self.tunnel is None or self.tunnel.ended:
            done, self._done = self._done, _nothing
            done(self)

    def _let_go(self) -> None:
        self._has_client = False
        self._watch.close()

    def _client_failed(self, readable: bool, writable: bool) -> None:
        self.reset()

    def _offered(self, offer: Offer) -> None:
        if self._has_client:
            self._lent(self, offer)

    # The reader thread. It looks after the credit; the agent is to keep silent as long as it has none.

    def opened(self, offer: Offer | None) -> None:
        assert offer is not None
        self._relay.post(lambda: self._offered(offer))

    def received(self, chunk: memoryview) -> int:
        raise ProtocolError("bytes of a connection that was not taken yet")

    def received_eof(self) -> None:
        raise ProtocolError("the end of a connection that was not taken yet")

    def credited(self) -> None:
        raise ProtocolError("credit for a connection that was not taken yet")

    def closed(self, end: End) -> None:
        self._relay.post(self.reset)


def _nothing(loan: Loan) -> None:
    pass


class _Way:
    """One direction. What its destination does not take waits here, one buffer at most; then nothing more is read.

    A `tolerant` one goes on when its destination takes nothing more: what comes is dropped.
    """

    __slots__ = ("_tolerant", "count", "destination", "over", "read_all", "shut", "source", "waiting")

    def __init__(self, source: socket.socket, destination: socket.socket, *, tolerant: bool) -> None:
        self.source = source
        self.destination = destination
        self.waiting = bytearray()
        self.read_all = False
        self.shut = False  # the destination was told that this was all
        self.over = False  # that, or it takes nothing more
        self.count = 0  # bytes that the destination took
        self._tolerant = tolerant

    @property
    def wants(self) -> bool:
        """Whether there may be something to read, and somewhere to put it."""
        return not self.read_all and not self.waiting

    def move(self, buffer: memoryview) -> bool:
        """Bring over what is there; False when nothing was. OSError of the source, or of a destination that matters."""
        for turn in range(_TURN):
            if not self.wants:
                break
            try:
                size = self.source.recv_into(buffer, 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return turn > 0
            self.read_all = not size
            sent = self._send(buffer[:size])
            if not self.over:
                self.waiting += buffer[sent:size]
            self._finish()
            if size < len(buffer):
                break
        return True

    def flush(self) -> None:
        """Go on with what waits. OSError of a destination that matters."""
        with memoryview(self.waiting) as view:
            sent = self._send(view)
        del self.waiting[:sent]
        self._finish()

    def refuse(self) -> None:
        """The destination takes nothing more."""
        self.over = True
        self.waiting.clear()

    def _send(self, view: memoryview) -> int:
        sent = 0
        while sent < len(view) and not self.over:
            try:
                sent += self.destination.send(view[sent:], socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                if not self._tolerant:
                    raise
                self.over = True
        self.count += sent
        return sent

    def _finish(self) -> None:
        if self.over:
            self.waiting.clear()
        elif self.read_all and not self.waiting:
            self.shut = self.over = True
            try:
                self.destination.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise


class Bridge:
    """Moves bytes between a client and the connection inside, both non-blocking, and ends with both."""

    def __init__(
        self, relay: Relay, client: socket.socket, inside: socket.socket, done: Callable[[Bridge], None]
    ) -> None:
        """Owns the sockets. `done` is called once they are closed."""
        self._relay = relay
        self._done = done
        # A server may answer in full and refuse the rest of the question: so the answer is brought home.
        self._to = _Way(client, inside, tolerant=True)
        self._from = _Way(inside, client, tolerant=False)
        self._client = relay.watch(client, self._client_ready)
        self._inside = relay.watch(inside, self._inside_ready)
        self._finished = False
        self._noted = (0, 0)  # of the counts: the agent has heard of so much
        # This process may die: then the server is to see a reset, as from the agent, and no end in order.
        inside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_AT_ONCE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the agent has done so with the other

    @property
    def bytes_to_sandbox(self) -> int:
        """So far."""
        return self._to.count

    @property
    def bytes_from_sandbox(self) -> int:
        """So far."""
        return self._from.count

    def start(self) -> None:
        """Begin."""
        self._update()

    def reset(self) -> None:
        """End both at once. May be called twice."""
        self._close(abruptly=True)

    def _client_ready(self, readable: bool, writable: bool) -> None:
        if self._client.failed and self._client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
            return
        try:
            if writable and self._from.waiting:
                self._from.flush()
            if readable:
                self._to.move(self._relay.buffer)
        except OSError:
            self.reset()
        self._update()

    def _inside_ready(self, readable: bool, writable: bool) -> None:
        try:
            if writable and self._to.waiting:
                self._to.flush()
            dry = readable and not self._from.move(self._relay.buffer)
            if self._inside.failed:
                self._inside_failed(dry)
        except OSError:
            self.reset()
        self._update()

    def _inside_failed(self, dry: bool) -> None:
        # A connection that has failed gives its last bytes, then its end or the error, and never says "nothing yet".
        # Who has the socket too (a hostile agent) can make a sound one look so, and this thread turn in circles.
        if self._from.read_all and (self._to.over or self._inside.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self._to.refuse()
        elif self._from.read_all or dry:
            self.reset()

    def _update(self) -> None:
        if self._finished:
            return
        self._note_use()
        if self._from.shut and self._to.over:
            self._close(abruptly=False)
            return
        # A hang-up stays one: it has been seen, and is no reason to be woken again.
        self._client.want(read=self._to.wants, write=bool(self._from.waiting), errors=not self._client.failed)
        self._inside.want(read=self._from.wants, write=bool(self._to.waiting), errors=not self._inside.failed)

    def _note_use(self) -> None:
        # As with a tunnel, whose credit the host gives back in as large pieces.
        inward, outward = self._noted
        if self._to.count != inward or self._from.count - outward >= WINDOW // 4:
            self._noted = (self._to.count, self._from.count)
            self._relay.tunnels.note_use()

    def _close(self, *, abruptly: bool) -> None:
        if self._finished:
            return
        self._finished = True
        for watch in (self._client, self._inside):
            watch.close()
            close_socket(watch.sock, abruptly=abruptly)
        self._done(self)
