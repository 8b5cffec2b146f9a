"""What listens, in the relay's thread: on the host for the sandbox's servers, in the sandbox for one of the host's."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from ._bridge import Bridge, Loan
from ._frames import Refusal, RefusalCode
from ._latch import Latch
from ._pump import Pump
from ._relay import Relay, Watch, close_socket
from ._shortcut import Offer
from ._tunnels import Address, End, Tunnel
from .errors import EngineError, SandboxError, UnsupportedError

__all__ = ["ForwardServer", "Listening", "PumpOwner", "ServiceExposer"]

MAX_CONNECTIONS: Final = 256
"""Connections of one forward at a time: further ones wait in the kernel's backlog. An exposed service resets them, but
the agent accepts fewer (MAX_ACCEPTED), and lets further ones wait inside."""

_TURN: Final = 32  # connections accepted before others have their turn
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE: Final = 0.1  # seconds without accepting when the process has no descriptor left

Coupling: TypeAlias = Pump | Bridge | Loan
"""What becomes of one connection."""

_C = TypeVar("_C", bound=Coupling)


class PumpOwner:
    """What a forward and an exposed service have in common: they own couplings, and end once, from any thread."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._pumps: dict[Coupling, None] = {}
        self._closed = Latch()
        self._is_closed = False
        self._counted = 0
        self._to_sandbox = 0
        self._from_sandbox = 0

    @property
    def counters(self) -> tuple[int, int, int]:
        """Connections so far, bytes to the sandbox, bytes from it."""
        pumps = tuple(self._pumps.copy())
        return (
            self._counted,
            self._to_sandbox + sum(pump.bytes_to_sandbox for pump in pumps),
            self._from_sandbox + sum(pump.bytes_from_sandbox for pump in pumps),
        )

    def close(self, timeout: float) -> None:
        """Any thread: afterwards nothing is accepted and every connection is closed, unless it takes longer."""
        self._relay.post(lambda: self.end(None))
        if not self._relay.here and self._relay.ended is None:
            self._closed.wait(timeout)
            self._closed.set()

    def abandon(self) -> bool:
        """`close` without waiting, for one whose maker was interrupted or failed. False when it was never started."""
        started = self._relay.owns(self)
        if started:
            self._relay.post(lambda: self.end(None))
        return started

    def end(self, error: SandboxError | None) -> None:
        """See Owner."""
        if self._is_closed:
            return
        self._is_closed = True
        closed = self._close_listener()
        for pump in tuple(self._pumps):
            pump.reset()
        self._relay.release(self)
        if closed:
            self._closed.set()

    def _close_listener(self) -> bool:
        # Whether that is all, or someone else will set `_closed`.
        raise NotImplementedError

    def _add(self, pump: _C) -> _C:
        self._pumps[pump] = None
        return pump

    def _done(self, pump: Coupling) -> None:
        self._pumps.pop(pump, None)
        self._to_sandbox += pump.bytes_to_sandbox
        self._from_sandbox += pump.bytes_from_sandbox


class ForwardServer(PumpOwner):
    """A listening socket of the host, each of whose connections gets a tunnel to one address in the sandbox."""

    def __init__(self, relay: Relay, listener: socket.socket, address: Address) -> None:
        """Owns the socket, which is non-blocking."""
        super().__init__(relay)
        self._listener = listener
        self._address = address
        self._watch: Watch | None = None

    def start(self) -> None:
        """Any thread. Raises why not, when the session is over."""
        self._relay.hold(self)
        self._relay.post(self._begin)

    def _begin(self) -> None:
        if not self._is_closed:
            self._watch = self._relay.watch(self._listener, self._ready)
            self._watch.want(read=True)

    def _close_listener(self) -> bool:
        if self._watch is not None:
            self._watch.close()
        close_socket(self._listener, abruptly=False)
        return True

    def _ready(self, readable: bool, writable: bool) -> None:
        assert self._watch is not None
        for _ in range(_TURN):
            if len(self._pumps) >= MAX_CONNECTIONS:
                self._watch.want(errors=False)
                return
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _SCARCE:
                    self._watch.want(errors=False)
                    self._relay.call_later(_PAUSE, self._resume)
                return  # nobody waits any more, or the one that did has gone
            self._connect(sock)

    def _connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._counted += 1
        tunnels = self._relay.tunnels
        # No unix socket: a server inside could send descriptors through it, for this process to close.
        lends = isinstance(self._address, int) and tunnels.lends
        pump = self._add(
            Loan(self._relay, sock, self._couple, self._done) if lends else Pump(self._relay, sock, self._done)
        )
        try:
            pump.start(tunnels.connect(self._address, pump, lent=lends))
        except SandboxError:
            pump.reset()  # the session is over: its end comes here too

    def _couple(self, loan: Loan, offer: Offer) -> None:
        client, tunnel = loan.release()
        del self._pumps[loan]
        inside = self._relay.tunnels.take(tunnel, offer)
        if inside is None:
            pump = self._add(Pump(self._relay, client, self._done))
            tunnel.accept(pump)
            pump.start(tunnel)
        else:
            self._add(Bridge(self._relay, client, inside, self._done)).start()

    def _done(self, pump: Coupling) -> None:
        super()._done(pump)
        self._resume()

    def _resume(self) -> None:
        if self._watch is not None and not self._is_closed and len(self._pumps) < MAX_CONNECTIONS:
            self._watch.want(read=True)


class ServiceExposer(PumpOwner):
    """A listener in the sandbox, each of whose connections is led to one address of the host."""

    def __init__(self, relay: Relay, family: int, address: tuple[str, int]) -> None:
        super().__init__(relay)
        self._family = family
        self._address = address
        self._listening = Listening(relay, self._lead, self._closed.set)

    def start(self, port: int, patience: float) -> int | Refusal:
        """Any thread: see `Listening.open`. Raises why not, when the session is over."""
        self._relay.hold(self)
        return self._listening.open(port, patience, "`expose`")

    def _close_listener(self) -> bool:
        return self._listening.close()

    def _lead(self, tunnel: Tunnel) -> None:
        if self._is_closed or len(self._pumps) >= MAX_CONNECTIONS:
            tunnel.reset()
            return
        try:
            sock = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError:
            tunnel.reset()
            return
        sock.setblocking(False)
        code = sock.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            tunnel.reset()
            return
        self._counted += 1
        pump = self._add(Pump(self._relay, sock, self._done, connected=code == 0))
        tunnel.accept(pump)
        pump.start(tunnel)


class Listening:
    """A listener on the sandbox's loopback, for an owner in the relay. See ListenerSink for what the reader calls."""

    def __init__(
        self, relay: Relay, lead: Callable[[Tunnel], object], ended: Callable[[], object] = lambda: None
    ) -> None:
        """`lead` gets each connection, in the relay's thread, also after `close`. `ended`: it listens no more."""
        self._relay = relay
        self._lead = lead
        self._ended = ended
        self._answered = Latch()
        self._tunnel: Tunnel | None = None
        self._is_closed = False
        self._outcome: End | None = None  # why it does not listen (any more)
        self._port: int | None = None

    # Any thread.

    def open(self, port: int, patience: float, feature: str) -> int | Refusal:
        """Listen at `port` (0: any); which one it is, or why not. The owner holds the relay. May be called after a no.

        Raises what the session ended with, EngineError when no answer came within `patience` seconds, and
        UnsupportedError from an agent that is older than `feature`.
        """
        self._outcome = None
        self._relay.post(lambda: self._begin(port))
        self._answered.wait(patience)
        if self._port is not None:
            return self._port
        self._relay.tunnels.raise_if_unusable()
        if not isinstance(self._outcome, Refusal):
            raise EngineError(f"The agent did not answer within {patience:g} s. Try again.", retryable=True)
        if self._outcome.code is RefusalCode.UNSUPPORTED:
            raise UnsupportedError(f"This session's agent is older than {feature}: {self._outcome.message}")
        return self._outcome

    # The relay's thread.

    def _begin(self, port: int) -> None:
        if self._is_closed:
            return
        try:
            self._tunnel = self._relay.tunnels.listen(port, self)
        except SandboxError as error:
            self.closed(error)

    def close(self) -> bool:
        """Listen no more. True when that is all; False when `ended` will come."""
        self._is_closed = True
        self._answered.set()
        if self._tunnel is None or self._tunnel.ended:
            return True
        self._tunnel.reset()
        return False

    # The reader thread.

    def listening(self, port: int) -> None:
        self._port = port
        self._answered.set()

    def accepted(self, tunnel: Tunnel) -> None:
        self._relay.post(lambda: self._lead(tunnel))
        if self._is_closed:  # then the relay's thread may have ended before that came; looked at behind it
            tunnel.reset()

    def closed(self, end: End) -> None:
        self._outcome = end
        self._answered.set()
        self._ended()
