"""Listeners inside the sandbox (PROTOCOL.md section 9.4), and what a storm of connections to them costs."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from tests.agent.driver import INVALID, Agent
from tests.agent.test_tunnels import is_reset, port_of, server, tunnels
from tests.agent.tunnels import ADDRESS, LISTEN, Tunnel, Tunnels
from tests.support.sockets import read_all

__all__ = ["server", "tunnels"]  # fixtures


def listening(tunnels: Tunnels) -> tuple[Tunnel, int]:
    listener = tunnels.listen()
    return listener, tunnels.wait_opened(listener)


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def test_a_connection_to_a_listener_is_a_tunnel(tunnels: Tunnels) -> None:
    listener, port = listening(tunnels)
    with dial(port) as peer:
        peer.sendall(b"question")
        tunnels.wait(lambda: listener.accepted)
        tunnel = listener.accepted[0]
        tunnels.accept(tunnel)
        tunnels.wait(lambda: tunnel.received == b"question")
        tunnels.send(tunnel, b"answer")
        tunnels.eof(tunnel)
        assert read_all(peer) == b"answer"
    assert tunnels.wait_closed(tunnel) == 0
    tunnels.kill(listener)
    assert tunnels.wait_closed(listener) == 0
    with pytest.raises(ConnectionRefusedError):
        dial(port)


def test_a_listener_is_on_the_loopback_alone(tunnels: Tunnels) -> None:
    _, port = listening(tunnels)
    lines = Path("/proc/net/tcp").read_text().splitlines()
    assert [line.split()[1] for line in lines if f":{port:04X} 00000000:0000 0A" in line] == [f"0100007F:{port:04X}"]


def test_a_connection_may_be_refused(tunnels: Tunnels) -> None:
    listener, port = listening(tunnels)
    with dial(port) as peer:
        tunnels.wait(lambda: listener.accepted)
        tunnels.kill(listener.accepted[0])
        assert is_reset(peer)
    tunnels.wait_closed(listener.accepted[0])


def test_accepted_connections_outlive_their_listener(tunnels: Tunnels) -> None:
    listener, port = listening(tunnels)
    with dial(port) as peer:
        tunnels.wait(lambda: listener.accepted)
        tunnels.kill(listener)
        tunnels.wait_closed(listener)
        tunnel = listener.accepted[0]
        tunnels.accept(tunnel)
        tunnels.send(tunnel, b"still here")
        tunnels.eof(tunnel)
        assert read_all(peer) == b"still here"
    tunnels.wait_closed(tunnel)


def test_a_port_in_use(tunnels: Tunnels, server: socket.socket) -> None:
    error = tunnels.wait_error(tunnels.listen(port_of(server)))
    assert (error.code, error.errno) == (ADDRESS, errno.EADDRINUSE)


def test_a_port_that_needs_a_privilege(unprivileged: Agent) -> None:
    tunnels = Tunnels(unprivileged)
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80:
        pytest.fail("this host lets everyone listen on port 80")
    error = tunnels.wait_error(tunnels.listen(80))
    assert (error.code, error.errno) == (ADDRESS, errno.EACCES)


@pytest.mark.parametrize("payload", [b"", b"\0\0", b"\0\0\1\0", bytes(5)])
def test_what_is_no_request_to_listen_is_refused(tunnels: Tunnels, payload: bytes) -> None:
    assert tunnels.wait_error(tunnels.request(LISTEN, payload)).code == INVALID


def test_a_storm_of_connections_costs_a_bounded_amount(tunnels: Tunnels) -> None:
    """At most 64 wait for the host, and 224 are open; the others get their turn later."""
    listener, port = listening(tunnels)
    storm = [dial(port) for _ in range(150)]
    tunnels.wait(lambda: len(listener.accepted) == 64)
    tunnels.run("true")
    assert len(listener.accepted) == 64
    for tunnel in listener.accepted:
        tunnels.accept(tunnel)
    tunnels.wait(lambda: len(listener.accepted) == 128)
    for tunnel in listener.accepted[64:]:
        tunnels.kill(tunnel)
    tunnels.wait(lambda: len(listener.accepted) == 150)
    for peer in storm:
        peer.close()
    for tunnel in listener.accepted[:]:
        if not tunnel.taken:
            tunnels.accept(tunnel)
        tunnels.kill(tunnel)
        tunnels.wait(lambda tunnel=tunnel: tunnel.done)


def test_no_more_than_224_accepted_tunnels_are_open(tunnels: Tunnels) -> None:
    listener, port = listening(tunnels)
    peers = []

    def take() -> None:
        for tunnel in listener.accepted:
            if not tunnel.taken:
                tunnels.accept(tunnel)

    while len(listener.accepted) < 224:
        peers.append(dial(port))
        tunnels.wait(lambda: len(listener.accepted) == len(peers))
        take()
    peers.append(dial(port))
    tunnels.ping()
    tunnels.run("true")
    assert len(listener.accepted) == 224
    tunnels.kill(listener.accepted[0])
    tunnels.wait(lambda: len(listener.accepted) == 225)
    take()
    for peer in peers:
        peer.close()
