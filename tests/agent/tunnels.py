"""The host's end of tunnels for the agent's tests: it breaks no rule, and checks every frame against section 9."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field

from sandboxkit._shortcut import Offer
from tests.agent.driver import DATA, DEADLINE, EOF, ERROR, HEADER, KILL, WINDOW, Agent, Error, Frame, encode

__all__ = [
    "ACCEPTED",
    "ADDRESS",
    "CLOSED",
    "CONNECT",
    "LISTEN",
    "OPENED",
    "TAKEN",
    "Tunnel",
    "Tunnels",
    "connect_payload",
]

CONNECT, LISTEN, OPENED, ACCEPTED, CLOSED, TAKEN = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45
LEND = 1
ADDRESS = 6
INPUT = 524_288
FIRST = 0x8000_0000


def connect_payload(address: int | str | bytes, window: int = 1 << 20, flags: int = 0) -> bytes:
    if isinstance(address, int):
        return struct.pack("<IBBH", window, 0, flags, address)
    return struct.pack("<IBBH", window, 1, flags, 0) + os.fsencode(address)


@dataclass
class Tunnel:
    """What is known of one tunnel or listener."""

    channel: int
    granted: int
    auto_grant: bool = True
    credit: int = INPUT
    received: bytearray = field(default_factory=bytearray)
    opened: int | None = None
    eof: bool = False
    closed: int | None = None
    error: Error | None = None
    listener: Tunnel | None = None
    lent: bool = False
    offer: Offer | None = None
    taken: bool = True
    accepted: list[Tunnel] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.closed is not None or self.error is not None


class Tunnels:
    """See the module. Commands of the same agent go on as ever, by `step`."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.open: dict[int, Tunnel] = {}
        self._last_accepted = FIRST - 1

    def connect(self, address: int | str | bytes, *, window: int = 1 << 20, auto_grant: bool = True) -> Tunnel:
        return self.request(CONNECT, connect_payload(address, window), granted=window, auto_grant=auto_grant)

    def borrow(self, address: int | str | bytes) -> Tunnel:
        """Connect, with the connection on loan."""
        tunnel = self.request(CONNECT, connect_payload(address, 0, LEND), granted=0)
        tunnel.lent = True
        return tunnel

    def take(self, tunnel: Tunnel) -> None:
        """Tell the agent that it was taken."""
        self._send_all(encode(tunnel.channel, TAKEN))

    def listen(self, port: int = 0) -> Tunnel:
        return self.request(LISTEN, struct.pack("<HH", port, 0))

    def request(self, kind: int, payload: bytes, *, granted: int = 0, auto_grant: bool = True) -> Tunnel:
        channel = self.agent._next_channel
        self.agent._next_channel += 1
        tunnel = self.open[channel] = Tunnel(channel, granted, auto_grant)
        self.agent.send_raw(encode(channel, kind, payload))
        return tunnel

    def accept(self, tunnel: Tunnel, window: int = 1 << 20) -> None:
        tunnel.taken = True
        self.grant(tunnel, window)

    def grant(self, tunnel: Tunnel, credit: int) -> None:
        tunnel.granted += credit
        self.agent.send_raw(encode(tunnel.channel, WINDOW, struct.pack("<I", credit)))

    def kill(self, tunnel: Tunnel) -> None:
        tunnel.taken = True
        self._send_all(encode(tunnel.channel, KILL, struct.pack("<I", 0)))

    def eof(self, tunnel: Tunnel) -> None:
        self._send_all(encode(tunnel.channel, EOF))

    def send(self, tunnel: Tunnel, data: bytes, timeout: float = DEADLINE) -> None:
        """All of it, as the credit allows; stops when the tunnel ends."""
        view, deadline = memoryview(data), time.monotonic() + timeout
        while view and not tunnel.done:
            size = min(tunnel.credit, 65536, len(view))
            if not size or self.agent._unsent:
                if not self.available():
                    self.agent.pump(deadline)
                continue
            tunnel.credit -= size
            self.agent.send_raw(encode(tunnel.channel, DATA, bytes(view[:size])))
            view = view[size:]
        self._send_all(b"")

    def _send_all(self, frame: bytes) -> None:
        """What comes next in a test may be a wait for the other end of a tunnel, which sends nothing on."""
        self.agent.send_raw(frame)
        self.agent.flush()

    def available(self) -> bool:
        """Acts on one frame that is here, if any."""
        received = self.agent._received
        if len(received) < HEADER.size or len(received) < HEADER.size + HEADER.unpack_from(received)[0]:
            return False
        return self.step()

    def step(self, timeout: float = DEADLINE) -> bool:
        """Acts on one frame; False at the end of the stream."""
        frame = self.agent.next_frame(timeout)
        if frame is None:
            return False
        if frame.type == ACCEPTED:
            self._accepted(frame.channel, frame.payload)
            return True
        tunnel = self.open.get(frame.channel)
        if tunnel is not None:
            self._tunnel_frame(tunnel, frame)
        elif frame.channel == 0:
            self.agent._session_frame(frame)
        else:
            self.agent._command_frame(self.agent.commands[frame.channel], frame)
        return True

    def _accepted(self, channel: int, payload: bytes) -> None:
        listener = self.open[struct.unpack("<I", payload)[0]]
        assert listener.opened
        assert channel > self._last_accepted
        self._last_accepted = channel
        tunnel = self.open[channel] = Tunnel(channel, 0, opened=0, listener=listener, taken=False)
        listener.accepted.append(tunnel)

    def _tunnel_frame(self, tunnel: Tunnel, frame: Frame) -> None:
        kind, flags, payload = frame.type, frame.flags, frame.payload
        assert tunnel.taken, "a frame for a connection that was not taken"
        if kind == DATA:
            assert flags == 1
            assert tunnel.opened is not None
            assert not tunnel.eof
            assert payload
            tunnel.granted -= len(payload)
            assert tunnel.granted >= 0, "more than was granted"
            tunnel.received += payload
            if tunnel.auto_grant:
                self.grant(tunnel, len(payload))
        elif kind == EOF:
            assert flags == 1
            assert not payload
            assert not tunnel.eof
            tunnel.eof = True
        elif kind == WINDOW:
            tunnel.credit += struct.unpack("<I", payload)[0]
            assert tunnel.credit <= INPUT
        elif kind == OPENED:
            assert tunnel.opened is None
            port, zero = struct.unpack_from("<HH", payload)
            assert zero == 0
            tunnel.opened = port
            assert len(payload) == (16 if tunnel.lent else 4)
            if tunnel.lent:
                tunnel.offer = Offer(*struct.unpack_from("<IQ", payload, 4))
        elif kind == CLOSED:
            assert tunnel.opened is not None
            tunnel.closed, zero = struct.unpack("<HH", payload)
            assert zero == 0
            del self.open[tunnel.channel]
        else:
            assert kind == ERROR, kind
            assert tunnel.opened is None
            tunnel.error = self.agent._parse_error(frame)
            del self.open[tunnel.channel]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, done: object, timeout: float = DEADLINE) -> None:
        """Until `done()` is true."""
        assert callable(done)
        deadline = time.monotonic() + timeout
        while not done():
            assert self.step(deadline - time.monotonic()), f"the session ended; {self.agent.describe()}"

    def wait_opened(self, tunnel: Tunnel) -> int:
        self.wait(lambda: tunnel.done or tunnel.opened is not None)
        assert tunnel.opened is not None, tunnel.error
        return tunnel.opened

    def wait_closed(self, tunnel: Tunnel) -> int:
        self.wait(lambda: tunnel.done)
        assert tunnel.closed is not None, tunnel.error
        return tunnel.closed

    def wait_error(self, tunnel: Tunnel) -> Error:
        self.wait(lambda: tunnel.done)
        assert tunnel.error is not None
        return tunnel.error

    def run(self, *argv: str) -> bytes:
        """A command beside the tunnels; its output."""
        command = self.agent.start(*argv)
        self.wait(lambda: command.done)
        assert command.exit is not None, command.error
        del self.agent.commands[command.channel]
        return bytes(command.stdout)

    def ping(self) -> None:
        """Returns when the agent has acted on everything sent before."""
        before = len(self.agent.pongs)
        self.agent.send_raw(encode(0, 0x03, b""))
        self.wait(lambda: len(self.agent.pongs) > before)
