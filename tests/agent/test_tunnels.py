"""Tunnels (PROTOCOL.md section 9): connections of the sandbox whose other end is the host."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.driver import BUSY, DATA, DEADLINE, EOF, INVALID, KILL, RESIZE, WINDOW, Agent, encode
from tests.agent.tunnels import ADDRESS, CONNECT, LISTEN, Tunnel, Tunnels, connect_payload
from tests.support.sockets import MIB, exactly, free_port, read_all, reset


@pytest.fixture
def tunnels(agent: Agent) -> Tunnels:
    return Tunnels(agent)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=600) as listener:
        listener.settimeout(30)
        yield listener


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def connected(tunnels: Tunnels, server: socket.socket, **options: object) -> tuple[Tunnel, socket.socket]:
    tunnel = tunnels.connect(port_of(server), **options)  # type: ignore[arg-type]
    tunnels.wait_opened(tunnel)
    peer, _ = server.accept()
    peer.settimeout(30)
    return tunnel, peer


def is_reset(peer: socket.socket) -> bool:
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_bytes_go_both_ways_and_both_ends_end(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    with peer:
        tunnels.send(tunnel, b"question")
        tunnels.eof(tunnel)
        assert read_all(peer) == b"question"
        peer.sendall(b"answer")
    assert tunnels.wait_closed(tunnel) == 0
    assert (bytes(tunnel.received), tunnel.eof) == (b"answer", True)


def test_what_is_sent_before_it_is_open_arrives(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel = tunnels.connect(port_of(server))
    tunnels.send(tunnel, b"early")
    tunnels.eof(tunnel)
    with server.accept()[0] as peer:
        assert read_all(peer) == b"early"
    assert tunnels.wait_closed(tunnel) == 0


def test_the_sandbox_s_end_may_end_first(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    with peer:
        peer.sendall(b"all")
        peer.shutdown(socket.SHUT_WR)
        tunnels.wait(lambda: tunnel.eof)
        tunnels.send(tunnel, b"still")
        assert exactly(peer, 5) == b"still"
        tunnels.eof(tunnel)
        assert peer.recv(1) == b""
    assert tunnels.wait_closed(tunnel) == 0


@pytest.mark.parametrize("size", [1, 65536, 65537, 5 * MIB])
def test_any_size_arrives_unchanged(tunnels: Tunnels, server: socket.socket, size: int) -> None:
    data = random.Random(size).randbytes(size)
    tunnel, peer = connected(tunnels, server)

    def echo() -> None:
        with peer:
            while chunk := peer.recv(MIB):
                peer.sendall(chunk)

    thread = threading.Thread(target=echo)
    thread.start()
    tunnels.send(tunnel, data)
    tunnels.eof(tunnel)
    assert tunnels.wait_closed(tunnel) == 0
    thread.join()
    assert hashlib.sha256(tunnel.received).digest() == hashlib.sha256(data).digest()


def test_many_tunnels_at_once(tunnels: Tunnels, server: socket.socket) -> None:
    def serve() -> None:
        peers = []
        for _ in range(300):
            peer, _ = server.accept()
            peers.append(peer)
        for peer in peers:
            with peer:
                peer.sendall(read_all(peer) * 1000)

    thread = threading.Thread(target=serve)
    thread.start()
    made = {number: tunnels.connect(port_of(server)) for number in range(300)}
    for number, tunnel in made.items():
        tunnels.send(tunnel, str(number).encode())
        tunnels.eof(tunnel)
    for number, tunnel in made.items():
        assert tunnels.wait_closed(tunnel) == 0
        assert bytes(tunnel.received) == str(number).encode() * 1000
    thread.join()


# -- addresses ------------------------------------------------------------------------------------------------------


def test_nobody_listens(tunnels: Tunnels) -> None:
    with free_port() as port:
        error = tunnels.wait_error(tunnels.connect(port))
    assert (error.code, error.errno) == (ADDRESS, errno.ECONNREFUSED)
    assert error.text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_a_server_on_the_ipv6_loopback_alone(tunnels: Tunnels) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        tunnel, peer = connected(tunnels, server)
        with peer:
            peer.sendall(b"six")
        tunnels.eof(tunnel)
        assert tunnels.wait_closed(tunnel) == 0
        assert tunnel.received == b"six"


@pytest.mark.parametrize("abstract", [False, True])
def test_unix_sockets(tunnels: Tunnels, workspace: Path, abstract: bool) -> None:
    name = f"@tunnel-test-{os.getpid()}" if abstract else str(workspace / "a socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name.replace("@", "\0", 1) if abstract else name)
        server.listen()
        tunnel = tunnels.connect(name)
        tunnels.send(tunnel, b"hello")
        with server.accept()[0] as peer:
            assert exactly(peer, 5) == b"hello"
            peer.sendall(b"there")
        tunnels.eof(tunnel)
        assert tunnels.wait_closed(tunnel) in (0, errno.EPIPE)
        assert tunnel.received == b"there"


def test_a_unix_socket_whose_backlog_is_full_is_tried_again(tunnels: Tunnels, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(workspace / "full"))
        server.listen(0)
        made = [tunnels.connect(str(workspace / "full")) for _ in range(5)]
        tunnels.ping()
        for _ in made:
            server.accept()[0].close()
        for tunnel in made:
            tunnels.eof(tunnel)
            tunnels.wait_closed(tunnel)


@pytest.mark.parametrize(
    ("name", "number"), [("missing", errno.ENOENT), ("regular", errno.ECONNREFUSED), ("closed", errno.ECONNREFUSED)]
)
def test_a_unix_socket_that_is_none(tunnels: Tunnels, workspace: Path, name: str, number: int) -> None:
    workspace.joinpath("regular").touch()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(workspace / "closed"))
    error = tunnels.wait_error(tunnels.connect(str(workspace / name)))
    assert (error.code, error.errno) == (ADDRESS, number)


MALFORMED = {
    "empty": b"",
    "port 0": connect_payload(0),
    "a port and a name": connect_payload(80) + b"/x",
    "a name and a port": struct.pack("<IBBH", 1, 1, 0, 80) + b"/x",
    "another kind": struct.pack("<IBBH", 1, 2, 0, 80),
    "not zero": struct.pack("<IBBH", 1, 0, 1, 80),
    "a window above the limit": connect_payload(80, 1 << 31),
    "no name": connect_payload(""),
    "half a name": connect_payload("/"),
    "a relative name": connect_payload("socket"),
    "a NUL": connect_payload(b"/a\0b"),
    "a long name": connect_payload("/" + "x" * 107),
    "the agent's own socket": connect_payload("@sandboxkit-agent"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_address_is_refused(tunnels: Tunnels, name: str) -> None:
    assert tunnels.wait_error(tunnels.request(CONNECT, MALFORMED[name])).code == INVALID


def test_the_longest_name_is_no_malformed_one(tunnels: Tunnels) -> None:
    assert tunnels.wait_error(tunnels.connect("/" + "x" * 106)).errno == errno.ENOENT


# -- backpressure ---------------------------------------------------------------------------------------------------


def test_no_more_is_sent_than_was_granted(tunnels: Tunnels, server: socket.socket) -> None:
    size = 30 * MIB  # more than any buffer on the way takes
    tunnel, peer = connected(tunnels, server, window=100_000, auto_grant=False)
    with peer:
        sender = threading.Thread(target=peer.sendall, args=(bytes(size),), daemon=True)
        sender.start()
        tunnels.wait(lambda: len(tunnel.received) == 100_000)
        tunnels.run("true")
        assert sender.is_alive()
        assert len(tunnel.received) == 100_000
        tunnel.auto_grant = True
        tunnels.grant(tunnel, 100_000)
        tunnels.wait(lambda: len(tunnel.received) == size)
        sender.join()


def test_a_reader_that_stops_holds_up_nobody_else(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    other, other_peer = connected(tunnels, server)
    with peer, other_peer:
        data = random.Random(1).randbytes(30 * MIB)
        while data:  # until socket buffers and the agent's are full and the credit is used up
            size = min(tunnel.credit, 65536, len(data))
            if not size:
                before = tunnel.credit
                tunnels.ping()
                if tunnel.credit == before:
                    break
                continue
            tunnel.credit -= size
            tunnels.agent.send_raw(encode(tunnel.channel, DATA, data[:size]))
            data = data[size:]
        assert data, "30 MiB fit into buffers"
        tunnels.send(other, b"x" * MIB)
        tunnels.eof(other)
        assert len(read_all(other_peer)) == MIB
        tunnels.run("true")


def test_neither_commands_nor_tunnels_starve(tunnels: Tunnels, server: socket.socket) -> None:
    """Floods of both kinds at once: each gets its share, and a third one its turn."""
    agent = tunnels.agent
    commands = [agent.start("head", "-c", "4000000000", "/dev/zero", keep=False) for _ in range(6)]
    made = [connected(tunnels, server) for _ in range(6)]
    stop = threading.Event()

    def flood(peer: socket.socket) -> None:
        with peer:
            while not stop.is_set():
                try:
                    peer.sendall(bytes(MIB))
                except OSError:
                    return

    threads = [threading.Thread(target=flood, args=(peer,)) for _, peer in made]
    for thread in threads:
        thread.start()
    totals = dict.fromkeys(range(6), 0)

    def moved() -> bool:
        for number, (tunnel, _) in enumerate(made):
            totals[number] += len(tunnel.received)
            tunnel.received.clear()
        return min(totals.values()) > 4 * MIB and min(command.total for command in commands) > 4 * MIB

    tunnels.wait(moved)
    spread = [*totals.values(), *(command.total for command in commands)]
    assert max(spread) < 20 * min(spread)
    stop.set()
    for tunnel, _ in made:
        tunnels.kill(tunnel)
        tunnels.wait_closed(tunnel)
    for command in commands:
        agent.kill(command)
        tunnels.wait(lambda command=command: command.done)
        del agent.commands[command.channel]
    for thread in threads:
        thread.join()


# -- resets ---------------------------------------------------------------------------------------------------------


def test_kill_resets(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    with peer:
        tunnels.kill(tunnel)
        assert tunnels.wait_closed(tunnel) == errno.ECONNABORTED
        assert is_reset(peer)


def test_a_reset_inside_is_told(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    reset(peer)
    assert tunnels.wait_closed(tunnel) == errno.ECONNRESET


def test_an_answer_in_full_comes_although_the_question_was_not_read(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server, window=10)
    peer.sendall(b"413 " * 1000)
    peer.shutdown(socket.SHUT_RD)
    peer.shutdown(socket.SHUT_WR)
    tunnels.send(tunnel, b"x" * 100)
    tunnels.grant(tunnel, MIB)
    tunnels.wait(lambda: tunnel.eof or tunnel.done)
    assert tunnel.received == b"413 " * 1000
    peer.close()
    tunnels.eof(tunnel)
    tunnels.wait_closed(tunnel)


def test_what_crosses_with_the_end_is_dropped(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connected(tunnels, server)
    peer.close()
    tunnels.eof(tunnel)
    tunnels.wait_closed(tunnel)
    for kind, payload in ((DATA, b"x"), (EOF, b""), (WINDOW, bytes(4)), (KILL, bytes(4))):
        tunnels.agent.send_raw(encode(tunnel.channel, kind, payload))
    tunnels.ping()


def test_a_command_holds_no_descriptor_of_a_tunnel(tunnels: Tunnels, server: socket.socket) -> None:
    """Else the peer would not see the end before the command's."""
    tunnel, peer = connected(tunnels, server)
    command = tunnels.agent.start("sleep", "1000", flags=4)
    tunnels.wait(lambda: command.pid is not None)
    assert b"socket" not in tunnels.run("ls", "-l", f"/proc/{command.pid}/fd")
    with peer:
        tunnels.kill(tunnel)
        assert is_reset(peer)
    tunnels.agent.kill(command)
    tunnels.wait(lambda: command.done)
    del tunnels.agent.commands[command.channel]


# -- the table and the host's rules ---------------------------------------------------------------------------------


def test_the_table_has_an_end_and_places_come_back(tunnels: Tunnels, server: socket.socket) -> None:
    made = [tunnels.connect(port_of(server)) for _ in range(512)]
    assert tunnels.wait_error(tunnels.connect(port_of(server))).code == BUSY
    tunnels.run("true")
    for tunnel in made:
        tunnels.kill(tunnel)
    tunnels.wait(lambda: all(tunnel.done for tunnel in made))
    connected(tunnels, server)[1].close()


def test_memory_does_not_grow_with_tunnels(tunnels: Tunnels, server: socket.socket) -> None:
    def resident() -> int:
        status = Path(f"/proc/{tunnels.agent.process.pid}/statm").read_text().split()
        return int(status[1]) * os.sysconf("SC_PAGE_SIZE")

    def round_trip() -> None:
        tunnel, peer = connected(tunnels, server)
        with peer:
            tunnels.send(tunnel, bytes(200_000))
            tunnels.eof(tunnel)
            read_all(peer)
        tunnels.wait_closed(tunnel)

    for _ in range(20):
        round_trip()
    before = resident()
    for _ in range(200):
        round_trip()
    assert resident() < before + MIB


def open_tunnel(frames: bytes) -> bytes:
    return encode(1, LISTEN, bytes(4)) + frames


BROKEN = {
    "CONNECT on channel 0": encode(0, CONNECT, connect_payload(80)),
    "CONNECT on an agent's number": encode(0x80000000, CONNECT, connect_payload(80)),
    "CONNECT with a used number": encode(1, CONNECT, connect_payload(80)) * 2,
    "LISTEN with a used number": encode(1, LISTEN, bytes(4)) * 2,
    "DATA for a listener": open_tunnel(encode(1, DATA, b"x")),
    "EOF for a listener": open_tunnel(encode(1, EOF)),
    "WINDOW for a listener": open_tunnel(encode(1, WINDOW, bytes(4))),
    "RESIZE for a listener": open_tunnel(encode(1, RESIZE, bytes(4))),
    "KILL without grace": open_tunnel(encode(1, KILL)),
    "an unknown type": open_tunnel(encode(1, 0x20)),
    **{f"agent's type {kind:#x}": encode(1, kind, bytes(4)) for kind in (0x42, 0x43, 0x44)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_rules_of_the_host(agent: Agent, name: str) -> None:
    agent.send_raw(BROKEN[name])
    while agent.next_frame() is not None:
        pass
    assert agent.process.wait(DEADLINE) == 64


BROKEN_OPEN = {
    "DATA on stream 1": (DATA, b"x", 1),
    "EOF on stream 1": (EOF, b"", 1),
    "WINDOW too short": (WINDOW, b"\0", 0),
    "WINDOW above the limit": (WINDOW, struct.pack("<I", 0x7FFFFFFF), 0),
    "RESIZE": (RESIZE, bytes(4), 0),
}


@pytest.mark.parametrize("name", BROKEN_OPEN)
def test_rules_of_the_host_on_a_tunnel(tunnels: Tunnels, server: socket.socket, name: str) -> None:
    kind, payload, flags = BROKEN_OPEN[name]
    tunnel, peer = connected(tunnels, server)
    with peer:
        tunnels.agent.send_raw(encode(tunnel.channel, kind, payload, flags))
        assert tunnels.agent.wait_end() == 64


def test_more_input_than_was_granted(tunnels: Tunnels) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        tunnel, peer = connected(tunnels, server)
        with peer:
            tunnels.agent.send_raw(encode(tunnel.channel, DATA, bytes(65536)) * 400)
            while tunnels.agent.next_frame() is not None:
                pass
            assert tunnels.agent.process.wait(DEADLINE) == 64
