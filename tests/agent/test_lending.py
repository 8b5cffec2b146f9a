"""Connections that the host takes out of the agent. Section 9.6."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from sandboxkit._shortcut import Offer, Taker
from tests.agent.conftest import StartAgent
from tests.agent.driver import BUSY, DATA, DEADLINE, EOF, INVALID, Agent, encode
from tests.agent.test_tunnels import port_of, server, tunnels
from tests.agent.tunnels import ADDRESS, CONNECT, TAKEN, Tunnel, Tunnels, connect_payload
from tests.support.sockets import exactly, free_port

__all__ = ["server", "tunnels"]  # fixtures

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an agent that no engine started is its user's no more")


def offered(tunnels: Tunnels, server: socket.socket) -> tuple[Tunnel, Offer, socket.socket]:
    tunnel = tunnels.borrow(port_of(server))
    tunnels.wait_opened(tunnel)
    assert tunnel.offer is not None
    peer, _ = server.accept()
    peer.settimeout(DEADLINE)
    return tunnel, tunnel.offer, peer


def take(agent: Agent, offer: Offer) -> socket.socket | None:
    taker = Taker(agent.process.pid)
    sock = taker.take(offer, socket.AF_INET)
    taker.close()
    if sock is not None:
        sock.settimeout(DEADLINE)
    return sock


def test_what_is_taken_is_the_connection_and_lives_on_without_the_agent(
    tunnels: Tunnels, server: socket.socket
) -> None:
    tunnel, offer, peer = offered(tunnels, server)
    sock = take(tunnels.agent, offer)
    assert sock is not None
    with sock, peer:
        tunnels.take(tunnel)
        assert tunnels.wait_closed(tunnel) == 0
        for near, far in ((sock, peer), (peer, sock)):
            near.sendall(b"there")
            assert exactly(far, 5) == b"there"
        assert tunnels.agent.close() == 0
        sock.sendall(b"still")
        assert exactly(peer, 5) == b"still"
        sock.close()
        assert peer.recv(1) == b""


def test_before_it_is_taken_nothing_is_read_from_it(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, offer, peer = offered(tunnels, server)
    with peer:
        peer.sendall(b"early")
        peer.shutdown(socket.SHUT_WR)
        tunnels.ping()
        tunnels.run("true")
        assert (bytes(tunnel.received), tunnel.eof, tunnel.done) == (b"", False, False)
        sock = take(tunnels.agent, offer)
        assert sock is not None
        tunnels.take(tunnel)
        with sock:
            assert exactly(sock, 6) == b"early"


def test_one_that_is_not_taken_goes_on_as_a_tunnel(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, _, peer = offered(tunnels, server)
    with peer:
        peer.sendall(b"question")
        tunnels.grant(tunnel, 1 << 20)
        tunnels.wait(lambda: bytes(tunnel.received) == b"question")
        tunnels.send(tunnel, b"answer")
        tunnels.eof(tunnel)
        assert exactly(peer, 6) == b"answer"
    assert tunnels.wait_closed(tunnel) == 0


def test_one_that_is_killed_is_reset(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, offer, peer = offered(tunnels, server)
    with peer:
        tunnels.kill(tunnel)
        assert tunnels.wait_closed(tunnel) != 0
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
    assert take(tunnels.agent, offer) is None


def test_one_that_can_not_be_made_is_refused_as_ever(tunnels: Tunnels) -> None:
    with free_port() as port:
        assert tunnels.wait_error(tunnels.borrow(port)).code == ADDRESS


def test_commands_have_none_of_them(tunnels: Tunnels, server: socket.socket) -> None:
    kept = [offered(tunnels, server) for _ in range(3)]
    for _ in range(3):
        assert tunnels.run("ls", "/proc/self/fd").split() == [b"0", b"1", b"2", b"3"]
    for tunnel, _, peer in kept:
        tunnels.take(tunnel)
        tunnels.wait_closed(tunnel)
        peer.close()


def test_the_agent_keeps_no_descriptor_of_what_was_taken(tunnels: Tunnels, server: socket.socket) -> None:
    tunnels.run("true")
    tunnels.run("true")
    folder = f"/proc/{tunnels.agent.process.pid}/fd"
    before = len(os.listdir(folder))
    for _ in range(50):
        tunnel, offer, peer = offered(tunnels, server)
        sock = take(tunnels.agent, offer)
        assert sock is not None
        tunnels.take(tunnel)
        tunnels.wait_closed(tunnel)
        sock.close()
        peer.close()
    assert len(os.listdir(folder)) <= before


def test_more_than_the_table_holds_are_refused_until_some_are_taken(tunnels: Tunnels, server: socket.socket) -> None:
    made = [offered(tunnels, server) for _ in range(512)]
    assert tunnels.wait_error(tunnels.borrow(port_of(server))).code == BUSY
    for tunnel, _, peer in made:
        tunnels.take(tunnel)
        tunnels.wait_closed(tunnel)
        peer.close()
    tunnel, _, peer = offered(tunnels, server)
    peer.close()


def test_only_ports_are_lent_and_a_window_is_for_later(tunnels: Tunnels) -> None:
    wrong = (connect_payload(80, 1, 1), connect_payload(80, 0, 2), connect_payload(80, 0, 255))
    for payload in (*wrong, connect_payload("/tmp/socket", 0, 1), connect_payload("@socket", 0, 1)):
        assert tunnels.wait_error(tunnels.request(CONNECT, payload)).code == INVALID


def taken_twice(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.take(tunnel)
    tunnels.take(tunnel)


def taken_after_bytes(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.agent.send_raw(encode(tunnel.channel, DATA, b"x"))
    tunnels.take(tunnel)


def taken_after_the_end(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.agent.send_raw(encode(tunnel.channel, EOF))
    tunnels.take(tunnel)


def taken_after_credit(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.grant(tunnel, 1)
    tunnels.take(tunnel)


def taken_with_a_payload(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.agent.send_raw(encode(tunnel.channel, TAKEN, b"x"))


def another_taken(tunnels: Tunnels, tunnel: Tunnel) -> None:
    tunnels.agent.send_raw(encode(tunnel.channel + 1000, TAKEN))


BROKEN: list[Callable[[Tunnels, Tunnel], None]] = [
    *(taken_twice, taken_after_bytes, taken_after_the_end, taken_after_credit, taken_with_a_payload, another_taken),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda call: call.__name__)
def test_a_host_that_breaks_the_rules_ends_the_session(
    broken: Callable[[Tunnels, Tunnel], None], start_agent: StartAgent, server: socket.socket
) -> None:
    tunnels = Tunnels(start_agent(stderr=subprocess.DEVNULL))
    tunnel, _, peer = offered(tunnels, server)
    with peer:
        broken(tunnels, tunnel)
        assert tunnels.agent.process.wait(DEADLINE) == 64


def test_what_was_not_lent_can_not_be_taken(start_agent: StartAgent, server: socket.socket) -> None:
    tunnels = Tunnels(start_agent(stderr=subprocess.DEVNULL))
    tunnel = tunnels.connect(port_of(server), window=0)
    tunnels.wait_opened(tunnel)
    tunnels.take(tunnel)
    assert tunnels.agent.process.wait(DEADLINE) == 64
