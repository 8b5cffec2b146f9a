"""Connections on loan (agent/PROTOCOL.md section 9.6): what the host takes, what it refuses, what it does with them.

The fake agent is of this process, so what it offers are sockets of this process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from sandboxkit import SessionLostError, _tunnels
from sandboxkit._bridge import Bridge
from sandboxkit._channel import Connection
from sandboxkit._frames import FrameType
from sandboxkit._session import AgentSession
from sandboxkit._shortcut import Taker
from sandboxkit.ports import Forward
from tests.support.sockets import MIB, exactly, read_all, reset
from tests.support.waiting import wait_until

from .background import Call
from .fake_agent import FakeAgent, frame

TIMEOUT = 20.0
SO_TIMESTAMPING = 37  # asm-generic/socket.h; the module has no name for it


@pytest.fixture(autouse=True)
def taker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taker]:
    taker = Taker(os.getpid())
    monkeypatch.setattr(Connection, "taker", taker)
    yield taker
    taker.close()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "the relay's thread closes its descriptors")


def wait_for(agent: FakeAgent, kind: FrameType, count: int = 1) -> int:
    wait_until(lambda: len(agent.sent(kind)) >= count, f"{kind.name} comes")
    return agent.sent(kind)[-1].channel


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), TIMEOUT)
        far = listener.accept()[0]
    far.settimeout(TIMEOUT)
    return near, far


def opened(channel: int, descriptor: int, inode: int) -> bytes:
    return frame(FrameType.OPENED, channel, struct.pack("<HHIQ", 0, 0, descriptor, inode))


def closed(channel: int, errno: int = 0) -> bytes:
    return frame(FrameType.CLOSED, channel, struct.pack("<HH", errno, 0))


class Coupled:
    """A client of a forward and the server's end of the connection that was taken for it."""

    def __init__(
        self,
        forward: Forward,
        agent: FakeAgent,
        prepare: Callable[[socket.socket], object] = id,
        *,
        lets_go: bool = True,
    ) -> None:
        number, taken = len(agent.sent(FrameType.CONNECT)) + 1, len(agent.sent(FrameType.TAKEN)) + 1
        self.client = socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT)
        channel = wait_for(agent, FrameType.CONNECT, number)
        self.lent, self.server = tcp_pair()
        prepare(self.lent)
        agent.send(opened(channel, self.lent.fileno(), os.fstat(self.lent.fileno()).st_ino))
        assert wait_for(agent, FrameType.TAKEN, taken) == channel
        self.lent.close()
        if lets_go:
            agent.send(closed(channel))

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def forward(session: AgentSession) -> Iterator[Forward]:
    with contextlib.closing(session.ports.forward(80)) as forward:
        yield forward


@pytest.fixture
def coupled(forward: Forward, agent: FakeAgent) -> Iterator[Coupled]:
    made = Coupled(forward, agent)
    yield made
    made.close()


def is_reset(sock: socket.socket) -> bool:
    try:
        read_all(sock)
    except ConnectionError:
        return True
    return False


def test_bytes_go_both_ways_and_each_end_ends_alone(coupled: Coupled, forward: Forward, agent: FakeAgent) -> None:
    coupled.client.sendall(b"question")
    coupled.client.shutdown(socket.SHUT_WR)
    assert read_all(coupled.server) == b"question"
    coupled.server.sendall(b"answer")
    coupled.server.shutdown(socket.SHUT_WR)
    assert read_all(coupled.client) == b"answer"
    assert (forward.connections, forward.bytes_to_sandbox, forward.bytes_from_sandbox) == (1, 8, 6)
    assert not agent.sent(FrameType.DATA)


def test_the_server_may_end_first(coupled: Coupled) -> None:
    coupled.server.shutdown(socket.SHUT_WR)
    assert read_all(coupled.client) == b""
    coupled.client.sendall(b"still")
    assert exactly(coupled.server, 5) == b"still"
    coupled.client.close()
    assert coupled.server.recv(1) == b""


def test_much_goes_both_ways_at_once_unchanged(coupled: Coupled) -> None:
    data = os.urandom(20 * MIB)

    def send(sock: socket.socket) -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    sending = [Call(partial(send, sock)) for sock in (coupled.client, coupled.server)]
    reading = Call(lambda: read_all(coupled.server))
    assert read_all(coupled.client) == data
    assert reading.get() == data
    for each in sending:
        each.get()


def fill(reader: socket.socket, writer: socket.socket) -> int:
    """As much as goes into all buffers between the two."""
    writer.setblocking(False)
    sent, full = 0, 0
    while full < 20:
        try:
            sent += writer.send(bytes(MIB))
            full = 0
        except BlockingIOError:
            full += 1
            time.sleep(0.01)
    writer.settimeout(TIMEOUT)
    return sent


def test_a_client_that_reads_nothing_holds_up_nobody_and_little_memory(
    coupled: Coupled, forward: Forward, agent: FakeAgent
) -> None:
    sent = fill(coupled.client, coupled.server)
    other = Coupled(forward, agent)
    other.client.sendall(b"x")
    assert other.server.recv(1) == b"x"
    other.close()
    bridge = next(iter(forward._server._pumps))
    wait_until(lambda: bridge._from.waiting, "the bridge holds some of it")  # type: ignore[union-attr]
    assert len(bridge._from.waiting) <= 4 * 65536 + 48  # type: ignore[union-attr]
    coupled.server.shutdown(socket.SHUT_WR)
    assert len(read_all(coupled.client)) == sent


def test_an_answer_comes_home_from_a_server_that_refuses_the_rest(forward: Forward, agent: FakeAgent) -> None:
    coupled = Coupled(forward, agent)
    coupled.server.sendall(b"413")
    coupled.server.shutdown(socket.SHUT_WR)
    assert exactly(coupled.client, 3) == b"413"
    reset(coupled.server)
    with contextlib.suppress(ConnectionError):  # the rest of the question goes nowhere, or is refused
        for _ in range(100):
            coupled.client.sendall(bytes(65536))
    coupled.close()


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_of_one_is_the_other_s(forward: Forward, agent: FakeAgent, who: str) -> None:
    coupled = Coupled(forward, agent)
    first, second = (coupled.client, coupled.server) if who == "client" else (coupled.server, coupled.client)
    reset(first)
    assert is_reset(second)
    coupled.close()


def test_closing_the_forward_resets_both(coupled: Coupled, forward: Forward) -> None:
    forward.close()
    assert is_reset(coupled.client)
    assert is_reset(coupled.server)


def test_the_session_s_end_resets_both(coupled: Coupled, agent: FakeAgent) -> None:
    agent.close()
    assert is_reset(coupled.client)
    assert is_reset(coupled.server)


def test_an_agent_that_makes_its_socket_blocking_blocks_nobody(forward: Forward, agent: FakeAgent) -> None:
    """The flag belongs to the socket, which both have."""
    number = 1
    client = socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT)
    channel = wait_for(agent, FrameType.CONNECT, number)
    lent, server = tcp_pair()
    agent.send(opened(channel, lent.fileno(), os.fstat(lent.fileno()).st_ino))
    wait_for(agent, FrameType.TAKEN)
    lent.setblocking(True)
    agent.send(closed(channel))
    stop = threading.Event()

    def flood() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                client.sendall(bytes(MIB))

    flooding = Call(flood)
    other = Coupled(forward, agent)
    for _ in range(50):
        other.client.sendall(b"x")
        assert other.server.recv(1) == b"x"
    stop.set()
    for sock in (client, lent, server):
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
    flooding.get()
    other.close()


def test_the_idle_timeout_hears_of_what_passes_the_agent_by(coupled: Coupled, agent: FakeAgent) -> None:
    coupled.client.sendall(b"x")
    wait_for(agent, FrameType.PING)
    for _ in range(100):
        coupled.client.sendall(b"x")
    assert exactly(coupled.server, 101) == b"x" * 101
    assert len(agent.sent(FrameType.PING)) < 50


def test_the_idle_timeout_hears_of_a_download(coupled: Coupled, agent: FakeAgent) -> None:
    coupled.server.sendall(bytes(MIB // 4 - 1))
    assert len(exactly(coupled.client, MIB // 4 - 1)) == MIB // 4 - 1
    assert not agent.sent(FrameType.PING), "a tunnel gives no credit back before"
    coupled.server.sendall(b"x")
    wait_for(agent, FrameType.PING)


def test_an_agent_that_makes_its_socket_linger_blocks_nobody(forward: Forward, agent: FakeAgent) -> None:
    """Closing such a socket waits until the other end has taken everything."""

    def prepare(lent: socket.socket) -> None:
        lent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))

    coupled = Coupled(forward, agent, prepare)
    fill(coupled.server, coupled.client)
    coupled.client.shutdown(socket.SHUT_WR)
    coupled.server.shutdown(socket.SHUT_WR)
    assert read_all(coupled.client) == b""
    other = Coupled(forward, agent)
    other.client.sendall(b"x")
    assert other.server.recv(1) == b"x"
    other.close()
    forward.close()
    coupled.close()


def test_an_agent_that_fills_the_error_queue_makes_nobody_turn_in_circles(forward: Forward, agent: FakeAgent) -> None:
    """Each byte that is sent then leaves a time stamp there, for which poll reports an error."""

    def prepare(lent: socket.socket) -> None:
        lent.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9)

    coupled = Coupled(forward, agent, prepare)
    coupled.client.sendall(b"x")
    assert is_reset(coupled.client)
    coupled.close()


def test_a_host_that_dies_is_no_end_in_order(forward: Forward, agent: FakeAgent) -> None:
    """The kernel closes its sockets then."""
    coupled = Coupled(forward, agent)
    (bridge,) = forward._server._pumps
    assert isinstance(bridge, Bridge)
    linger = bridge._inside.sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    assert struct.unpack("ii", linger) == (1, 0)
    coupled.close()


def test_an_agent_that_never_lets_go_is_asked_for_no_more(
    forward: Forward, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tunnels, "_MAX_TAKEN", 3)
    for _ in range(3):
        Coupled(forward, agent, lets_go=False).close()
    with socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT):
        wait_for(agent, FrameType.CONNECT, 4)
        window, _, flags, _ = struct.unpack("<IBBH", agent.sent(FrameType.CONNECT)[-1].payload)
        assert (window, flags) == (_tunnels.WINDOW, 0)
    for number in range(1, 4):
        agent.send(closed(number))


@pytest.mark.parametrize("target", ["/tmp/socket", "@socket"])
def test_a_unix_socket_is_never_asked_for(session: AgentSession, agent: FakeAgent, target: str) -> None:
    """A server inside could send descriptors through it, for this process to close, which may take long."""
    with session.ports.forward(target) as url, socket.create_connection(("127.0.0.1", int(url[17:])), timeout=TIMEOUT):
        wait_for(agent, FrameType.CONNECT)
        assert agent.sent(FrameType.CONNECT)[-1].payload[5] == 0


# -- what is offered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["none", "inode", "file", "not open", "datagram", "unix"])
def test_what_can_not_be_had_goes_on_as_a_tunnel(forward: Forward, agent: FakeAgent, wrong: str) -> None:
    with (
        tempfile.TemporaryFile() as file,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_UNIX) as unix,
        socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT) as client,
    ):
        wait_for(agent, FrameType.CONNECT)
        number = {"not open": 99_999, "none": 2**32 - 1, "file": file.fileno(), "unix": unix.fileno()}
        descriptor = number.get(wrong, datagram.fileno())
        inode = 1 if descriptor > 1000 or wrong == "inode" else os.fstat(descriptor).st_ino
        agent.send(opened(1, descriptor, inode))
        assert wait_for(agent, FrameType.WINDOW) == 1
        client.sendall(b"question")
        assert wait_for(agent, FrameType.DATA) == 1
        agent.send(frame(FrameType.DATA, 1, b"answer", 1) + frame(FrameType.EOF, 1, flags=1))
        assert read_all(client) == b"answer"
        assert not agent.sent(FrameType.TAKEN)
        agent.send(closed(1))


def test_a_client_that_goes_before_it_is_opened(forward: Forward, agent: FakeAgent) -> None:
    client = socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT)
    wait_for(agent, FrameType.CONNECT)
    reset(client)
    assert wait_for(agent, FrameType.KILL) == 1
    lent, server = tcp_pair()
    with lent, server:
        agent.send(opened(1, lent.fileno(), os.fstat(lent.fileno()).st_ino) + closed(1, 103))
        Coupled(forward, agent).close()
    assert len(agent.sent(FrameType.TAKEN)) == 1


def test_where_nobody_listens_the_client_is_reset(forward: Forward, agent: FakeAgent) -> None:
    with socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT) as client:
        wait_for(agent, FrameType.CONNECT)
        agent.send(frame(FrameType.ERROR, 1, struct.pack("<HH", 6, 111) + b"no"))
        assert is_reset(client)


LENT = "lent"  # stands for OPENED with a socket that can be had
BROKEN: dict[str, tuple[str | bytes, ...]] = {
    "OPENED without an offer": (frame(FrameType.OPENED, 1, bytes(4)),),
    "OPENED too long": (frame(FrameType.OPENED, 1, bytes(17)),),
    "bytes before OPENED": (frame(FrameType.DATA, 1, b"x", 1),),
    # More than the kernel takes for the client: what it takes is granted anew.
    "bytes that were not granted": (opened(1, 2**32 - 2, 0) + frame(FrameType.DATA, 1, b"x" * 65536, 1) * 512,),
    "bytes of what was taken": (LENT, frame(FrameType.DATA, 1, b"x", 1)),
    "OPENED twice": (LENT, frame(FrameType.OPENED, 1, bytes(16))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_agent_that_breaks_the_rules_loses_the_session(
    name: str, session: AgentSession, forward: Forward, agent: FakeAgent
) -> None:
    lent, server = tcp_pair()
    with lent, server, socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT) as client:
        wait_for(agent, FrameType.CONNECT)
        running = Call(lambda: session.exec("scripted"))
        agent.job()
        for part in BROKEN[name]:
            agent.send(opened(1, lent.fileno(), os.fstat(lent.fileno()).st_ino) if part == LENT else part)  # type: ignore[arg-type]
        with pytest.raises(SessionLostError, match="protocol"):
            running.get()
        is_reset(client)


@pytest.mark.parametrize("early", ["EOF", "CLOSED", "WINDOW"])
def test_nothing_is_heard_of_what_was_not_taken_yet(
    early: str, session: AgentSession, forward: Forward, agent: FakeAgent
) -> None:
    """In the very read that brings OPENED, so that the relay's thread has not seen it yet."""
    frames = {
        "EOF": frame(FrameType.EOF, 1, flags=1),
        "CLOSED": closed(1),
        "WINDOW": frame(FrameType.WINDOW, 1, struct.pack("<I", 1)),
    }
    held = threading.Event()
    with socket.create_connection(("127.0.0.1", forward.port), timeout=TIMEOUT) as client:
        wait_for(agent, FrameType.CONNECT)
        session.relay.post(lambda: held.wait(TIMEOUT))
        running = Call(lambda: session.exec("scripted"))
        agent.job()
        agent.send(opened(1, 2**32 - 1, 0) + frames[early])
        with pytest.raises(SessionLostError, match="protocol"):
            running.get()
        held.set()
        is_reset(client)
