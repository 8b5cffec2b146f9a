"""Tunnels and an agent that breaks the rules of agent/PROTOCOL.md section 9: the session is lost, and nobody waits."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from sandboxkit import EngineError, PortError, SessionLostError, UnsupportedError
from sandboxkit._channel import Connection
from sandboxkit._frames import FrameType
from sandboxkit._pump import Pump
from sandboxkit._session import AgentSession
from sandboxkit._tunnels import HOST_WINDOW, MAX_ACCEPTED, WINDOW
from tests.support.sockets import drain
from tests.support.waiting import wait_until

from .background import Call
from .fake_agent import FakeAgent, frame

FIRST = 0x8000_0000


def wait_for(agent: FakeAgent, kind: FrameType, count: int = 1) -> int:
    """The channel of the newest frame of a type, once there are so many."""
    wait_until(lambda: len(agent.sent(kind)) >= count, f"{kind.name} comes")
    return agent.sent(kind)[-1].channel


def opened(channel: int, port: int = 0) -> bytes:
    return frame(FrameType.OPENED, channel, struct.pack("<HH", port, 0))


def closed(channel: int, errno: int = 0) -> bytes:
    return frame(FrameType.CLOSED, channel, struct.pack("<HH", errno, 0))


def error(channel: int, code: int = 6, errno: int = 111) -> bytes:
    return frame(FrameType.ERROR, channel, struct.pack("<HH", code, errno) + b"no")


def data(channel: int, size: int = 1, flags: int = 1) -> bytes:
    return frame(FrameType.DATA, channel, b"x" * size, flags)


def eof(channel: int) -> bytes:
    return frame(FrameType.EOF, channel, flags=1)


def window(channel: int, credit: int) -> bytes:
    return frame(FrameType.WINDOW, channel, struct.pack("<I", credit))


def accepted(number: int, listener: int) -> bytes:
    return frame(FrameType.ACCEPTED, number, struct.pack("<I", listener))


# What follows a CONNECT on channel 1.
BROKEN = {
    "OPENED twice": opened(1) * 2,
    "OPENED too short": frame(FrameType.OPENED, 1, b"\0\0"),
    "OPENED for what is not open": opened(77),
    "OPENED on channel 0": opened(0),
    "OPENED for a command": opened(2),
    "bytes before OPENED": data(1),
    "bytes on stream 0": opened(1) + data(1, flags=0),
    "bytes on stream 2": opened(1) + data(1, flags=2),
    "bytes after EOF": opened(1) + eof(1) + data(1),
    "bytes after the end": opened(1) + closed(1) + data(1),
    "more bytes than granted": opened(1) + data(1, 65536) * 512,  # more than the kernel takes for the client
    "EOF before OPENED": eof(1),
    "EOF twice": opened(1) + eof(1) * 2,
    "EOF with bytes": opened(1) + frame(FrameType.EOF, 1, b"x", 1),
    "EOF on stream 0": opened(1) + frame(FrameType.EOF, 1),
    "WINDOW for what was not used": opened(1) + window(1, 1),
    "WINDOW above everything": opened(1) + window(1, 2**32 - 1),
    "WINDOW too short": opened(1) + frame(FrameType.WINDOW, 1, b"\0"),
    "CLOSED before OPENED": closed(1),
    "CLOSED twice": opened(1) + closed(1) * 2,
    "CLOSED too long": opened(1) + frame(FrameType.CLOSED, 1, bytes(5)),
    "ERROR after OPENED": opened(1) + error(1),
    "ERROR with an unknown code": error(1, 99),
    "STARTED for a tunnel": frame(FrameType.STARTED, 1, bytes(4)),
    "EXIT for a tunnel": opened(1) + frame(FrameType.EXIT, 1, bytes(34)),
    "ACCEPTED by a tunnel": opened(1) + accepted(FIRST, 1),
    "ACCEPTED by nobody": accepted(FIRST, 50),
    "a type of the host": frame(FrameType.CONNECT, 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_of_a_tunnel(name: str, session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    forward = session.ports.forward(80)
    with socket.create_connection(("127.0.0.1", forward.port), timeout=20) as client:
        assert wait_for(agent, FrameType.CONNECT) == 1
        running = Call(lambda: session.exec("scripted"))
        agent.job()
        agent.send(BROKEN[name])
        with pytest.raises(SessionLostError, match="protocol"):
            running.get()
        drain(client)
    with pytest.raises(SessionLostError):
        session.ports.forward(80)
    forward.close()


# What follows a LISTEN on channel 1.
BROKEN_LISTENERS = {
    "bytes": opened(1, 80) + data(1),
    "EOF and bytes": opened(1, 80) + eof(1) + data(1),
    "WINDOW": opened(1, 80) + window(1, 0),
    "ACCEPTED before OPENED": accepted(FIRST, 1),
    "a number of the host's": opened(1, 80) + accepted(2, 1),
    "a number used twice": opened(1, 80) + accepted(FIRST, 1) * 2,
    "a number not rising": opened(1, 80) + accepted(FIRST + 5, 1) + accepted(FIRST + 4, 1),
    "ACCEPTED too short": opened(1, 80) + frame(FrameType.ACCEPTED, FIRST, b"\1\0"),
    "more than may be open": opened(1, 80) + b"".join(accepted(FIRST + n, 1) for n in range(MAX_ACCEPTED + 1)),
    "OPENED for what was accepted": opened(1, 80) + accepted(FIRST, 1) + opened(FIRST),
    "ERROR for what was accepted": opened(1, 80) + accepted(FIRST, 1) + error(FIRST),
    "ACCEPTED by what was accepted": opened(1, 80) + accepted(FIRST, 1) + accepted(FIRST + 1, FIRST),
}


@pytest.mark.parametrize("name", BROKEN_LISTENERS)
def test_broken_rules_of_a_listener(name: str, session: AgentSession, agent: FakeAgent) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=300) as service:
        call = Call(lambda: session.ports.expose(service.getsockname()[1], 80))
        assert wait_for(agent, FrameType.LISTEN) == 1
        agent.send(BROKEN_LISTENERS[name])
        running = Call(lambda: session.exec("immortal", timeout=20))
        with pytest.raises(SessionLostError):
            running.get()
        with contextlib.suppress(SessionLostError):
            call.get().close()


@pytest.mark.parametrize("what", [data(FIRST), eof(FIRST), closed(FIRST)])
def test_nothing_may_be_said_of_a_connection_that_was_not_taken(
    session: AgentSession, connection: Connection, agent: FakeAgent, what: bytes
) -> None:
    call = Call(lambda: session.ports.expose(1, 80))
    wait_for(agent, FrameType.LISTEN)
    gate = threading.Event()
    session.relay.post(lambda: gate.wait(20))  # so that it is not taken at once
    agent.send(opened(1, 80) + accepted(FIRST, 1) + what)
    wait_until(lambda: connection.lost, "the session is lost")
    gate.set()
    assert isinstance(connection.lost, SessionLostError)
    with contextlib.suppress(SessionLostError):
        call.get().close()


def test_what_the_agent_may_do(session: AgentSession, agent: FakeAgent) -> None:
    """All credit used, given back, both ends ended: the session lives."""
    with session.ports.forward(80) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as client:
            wait_for(agent, FrameType.CONNECT)
            agent.send(opened(1) + data(1, 65536) * (WINDOW // 65536) + eof(1))
            size = 0
            while chunk := client.recv(1 << 20):
                size += len(chunk)
            assert size == WINDOW
            client.sendall(b"x" * HOST_WINDOW)
            client.shutdown(socket.SHUT_WR)
            wait_until(
                lambda: sum(len(sent.payload) for sent in agent.sent(FrameType.DATA)) >= HOST_WINDOW,
                "all of it is sent",
            )
            agent.send(window(1, HOST_WINDOW))
            wait_for(agent, FrameType.EOF)
            agent.send(closed(1))
        assert session.exec("echo", ["alive"]).stdout == "alive"


def test_a_stalled_client_holds_one_window_at_most(session: AgentSession, agent: FakeAgent) -> None:
    """Also in single bytes, which must not cost an object each."""
    forward = session.ports.forward(80)
    with socket.create_connection(("127.0.0.1", forward.port), timeout=20):
        wait_for(agent, FrameType.CONNECT)
        agent.send(opened(1) + data(1, 1) * 50_000 + data(1, 65536) * 15)
        assert session.exec("echo", ["alive"]).stdout == "alive"
        (pump,) = forward._server._pumps
        assert isinstance(pump, Pump)
        assert len(pump._queue) <= WINDOW
    forward.close()
    agent.send(closed(1))


def test_a_connection_that_crosses_with_the_end_of_its_listener_is_refused(
    session: AgentSession, agent: FakeAgent
) -> None:
    made = Call(lambda: session.ports.expose(80))
    wait_for(agent, FrameType.LISTEN)
    agent.send(opened(1, 80))
    exposed = made.get()
    closing = Call(exposed.close)
    assert wait_for(agent, FrameType.KILL) == 1
    session.relay.join(20)  # its thread has nothing to do any more
    agent.send(accepted(FIRST, 1) + closed(1))
    assert wait_for(agent, FrameType.KILL, 2) == FIRST
    closing.get()


REFUSALS = {
    (6, 98): (PortError, "as_port 80 is in use in the sandbox"),
    (6, 13): (PortError, "needs a privilege"),
    (6, 99): (PortError, "can't listen"),
    (3, 24): (PortError, "can't listen"),
    (1, 0): (UnsupportedError, "older"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_listener_that_is_refused(session: AgentSession, agent: FakeAgent, refusal: tuple[int, int]) -> None:
    call = Call(lambda: session.ports.expose(80))
    wait_for(agent, FrameType.LISTEN)
    agent.send(error(1, *refusal))
    kind, message = REFUSALS[refusal]
    with pytest.raises(kind, match=message):
        call.get()


def test_an_agent_that_does_not_answer(
    session: AgentSession, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.ports._PATIENCE", 0.2)
    with pytest.raises(EngineError, match="did not answer"):
        session.ports.expose(80)
    assert wait_for(agent, FrameType.KILL) == 1
    agent.send(error(1))
    assert session.exec("echo", ["alive"]).stdout == "alive"
