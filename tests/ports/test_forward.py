"""`session.ports.forward` on the real agent: bytes, ends, backpressure, many at once, and every way to end it."""

from __future__ import annotations

import gc
import hashlib
import http.server
import os
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from sandboxkit import ConfigError, PortError, SessionDestroyedError
from sandboxkit._session import AgentSession
from sandboxkit.conformance._tunnels import dial, is_over, leads_nowhere
from tests.support.sockets import MIB, exactly, read_all, reset
from tests.support.waiting import wait_until

from .conftest import FreePort, Serve, echo


class Pages(http.server.BaseHTTPRequestHandler):
    """`/N` is N bytes that depend on N."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = page(int(self.path[1:]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Nothing."""


def page(size: int) -> bytes:
    return Random(size).randbytes(size)


def serve_pages(sock: socket.socket) -> None:
    Pages(sock, ("127.0.0.1", 0), None)  # type: ignore[arg-type]


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_a_url_leads_to_the_server_inside(session: AgentSession, serve: Serve) -> None:
    with session.ports.forward(serve(serve_pages).port) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/1000") as answer:
            assert answer.read() == page(1000)


def test_a_forward_says_where_it_is_and_counts(session: AgentSession, serve: Serve) -> None:
    forward = session.ports.forward(serve().port)
    assert (forward.host, forward.url) == ("127.0.0.1", f"http://127.0.0.1:{forward.port}")
    with dial(forward.port) as client:
        client.sendall(b"12345")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"12345"
    wait_until(lambda: forward.bytes_from_sandbox == 5, "the bytes are counted")
    assert (forward.connections, forward.bytes_to_sandbox) == (1, 5)
    forward.close()
    assert (forward.connections, forward.bytes_to_sandbox) == (1, 5)


def test_the_host_s_port_may_be_chosen(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    port = free_port()
    with session.ports.forward(serve().port, port) as url:
        assert url == f"http://127.0.0.1:{port}"
        dial(port).close()
    with session.ports.forward(serve().port, host_port=port) as url:  # and again at once
        dial(port).close()


def test_the_client_ends_first(session: AgentSession, serve: Serve) -> None:
    def question_then_answer(sock: socket.socket) -> None:
        sock.sendall(read_all(sock).upper())

    with session.ports.forward(serve(question_then_answer).port) as url, dial(url) as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"QUESTION"


def test_the_server_ends_first(session: AgentSession, serve: Serve) -> None:
    rest: list[bytes] = []

    def speak_then_listen(sock: socket.socket) -> None:
        sock.sendall(b"all")
        sock.shutdown(socket.SHUT_WR)
        rest.append(read_all(sock))

    with session.ports.forward(serve(speak_then_listen).port) as url, dial(url) as client:
        assert read_all(client) == b"all"
        client.sendall(b"still here")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: rest == [b"still here"], "the server has read the rest")


def test_256_mib_each_way_arrive_unchanged(session: AgentSession, serve: Serve) -> None:
    block, count = Random(1).randbytes(4 * MIB), 64
    sent, received = hashlib.sha256(), hashlib.sha256()
    with session.ports.forward(serve().port) as url, dial(url) as client:

        def send() -> None:
            for _ in range(count):
                sent.update(block)
                client.sendall(block)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        size = 0
        while chunk := client.recv(MIB):
            received.update(chunk)
            size += len(chunk)
        sender.join()
    assert size == count * len(block)
    assert received.digest() == sent.digest()


def test_200_parallel_requests_get_their_own_bodies(session: AgentSession, serve: Serve) -> None:
    with session.ports.forward(serve(serve_pages).port) as url, ThreadPoolExecutor(200) as pool:

        def fetch(size: int) -> bool:
            with urllib.request.urlopen(f"{url}/{size}", timeout=60) as answer:
                return bool(answer.read() == page(size))

        sizes = [(number * 7919) % 200_000 for number in range(200)]
        assert list(pool.map(fetch, sizes)) == [True] * 200


def test_more_connections_than_are_served_at_a_time_wait(session: AgentSession, serve: Serve) -> None:
    server = serve()
    with session.ports.forward(server.port) as url:
        clients = [dial(url) for _ in range(300)]
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        wait_until(lambda: len(server.connections) == 256, "256 are served")
        for number, client in enumerate(clients):
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b"%d" % number
            client.close()
    assert len(server.connections) == 300


def test_two_forwards_to_one_server(session: AgentSession, serve: Serve) -> None:
    port = serve().port
    with session.ports.forward(port) as first:
        with session.ports.forward(port) as second:
            assert first != second
            with dial(second) as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
        with dial(first) as client:
            client.sendall(b"y")
            assert client.recv(1) == b"y"


# -- what it leads to -----------------------------------------------------------------------------------------------


def test_where_nobody_listens_the_connection_ends_and_the_forward_lives(
    session: AgentSession, serve: Serve, free_port: FreePort
) -> None:
    port = free_port()
    with session.ports.forward(port) as url:
        for _ in range(3):
            assert leads_nowhere(url)
        serve(echo, socket.create_server(("127.0.0.1", port)))
        with dial(url) as client:
            client.sendall(b"now")
            assert client.recv(3) == b"now"


@pytest.mark.parametrize("abstract", [False, True])
def test_unix_sockets(session: AgentSession, serve: Serve, tmp_path: Path, abstract: bool) -> None:
    name = f"@forward-{os.getpid()}" if abstract else str(tmp_path / "server")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name.replace("@", "\0", 1) if abstract else name)
    listener.listen()
    serve(serve_pages, listener)
    with session.ports.forward(name) as url, urllib.request.urlopen(f"{url}/5000") as answer:
        assert answer.read() == page(5000)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_a_server_on_the_ipv6_loopback_alone(session: AgentSession, serve: Serve) -> None:
    server = serve(echo, socket.create_server(("::1", 0), family=socket.AF_INET6))
    with session.ports.forward(server.port) as url, dial(url) as client:
        client.sendall(b"six")
        assert client.recv(3) == b"six"


# -- backpressure ---------------------------------------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_reads_nothing_costs_little_and_holds_up_nobody(session: AgentSession, serve: Serve) -> None:
    sent = [0]

    def flood(sock: socket.socket) -> None:
        while True:
            sent[0] += sock.send(bytes(MIB))

    flooding, port = serve(flood), serve().port
    with session.ports.forward(flooding.port) as flood_url, session.ports.forward(port) as url:
        before = resident()
        with dial(flood_url) as stalled:
            wait_until(lambda: sent[0] > 4 * MIB, "the flood has begun")
            for number in range(50):
                assert session.exec("echo", [str(number)]).stdout == f"{number}\n"
                with dial(url) as client:
                    client.sendall(b"x" * 10_000)
                    assert exactly(client, 10_000) == b"x" * 10_000
            assert sent[0] < 64 * MIB
            assert resident() < before + 16 * MIB
            assert stalled.recv(MIB)


def test_a_server_that_reads_nothing_holds_up_nobody(session: AgentSession, serve: Serve) -> None:
    over = threading.Event()
    deaf, port = serve(lambda sock: over.wait(60)), serve().port
    with session.ports.forward(deaf.port) as deaf_url, session.ports.forward(port) as url, dial(deaf_url) as stalled:
        stalled.setblocking(False)
        sent = 0
        for _ in range(50):
            try:
                while True:
                    sent += stalled.send(bytes(MIB))
            except BlockingIOError:
                pass
            assert session.exec("true").ok
            with dial(url) as client:
                client.sendall(b"x" * 10_000)
                assert exactly(client, 10_000) == b"x" * 10_000
        assert sent < 64 * MIB
        over.set()


# -- resets ---------------------------------------------------------------------------------------------------------


def test_a_reset_by_the_client_reaches_the_server(session: AgentSession, serve: Serve) -> None:
    seen: list[str] = []

    def watch(sock: socket.socket) -> None:
        sock.sendall(b"hello")
        try:
            seen.append(f"read {len(read_all(sock))}")
        except ConnectionResetError:
            seen.append("reset")

    with session.ports.forward(serve(watch).port) as url:
        client = dial(url)
        assert client.recv(5) == b"hello"
        reset(client)
        wait_until(lambda: seen == ["reset"], "the server sees the reset")


def test_a_reset_by_the_server_reaches_the_client(session: AgentSession, serve: Serve) -> None:
    with session.ports.forward(serve(reset).port) as url, dial(url) as client, pytest.raises(ConnectionResetError):
        read_all(client)


def test_a_client_that_goes_while_the_server_floods(session: AgentSession, serve: Serve) -> None:
    def flood(sock: socket.socket) -> None:
        while True:
            sock.sendall(bytes(MIB))

    forward = session.ports.forward(serve(flood).port)
    for _ in range(20):
        with dial(forward.port) as client:
            assert client.recv(1000)
    wait_until(lambda: not forward._server._pumps, "all have ended")
    forward.close()


# -- the end --------------------------------------------------------------------------------------------------------


def test_close_ends_the_port_and_its_connections(session: AgentSession, serve: Serve) -> None:
    server = serve()
    forward = session.ports.forward(server.port)
    with dial(forward.port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        forward.close()
        assert is_over(client)
        with pytest.raises(ConnectionRefusedError):
            dial(forward.port)
        forward.close()
    # The server closes its own end when the connection is over.
    wait_until(lambda: server.connections[0].fileno() < 0, "the server's end is over too")
    assert session.exec("true").ok


@pytest.mark.parametrize("end", ["destroy", "kill", "garbage"])
def test_the_end_of_the_session_closes_everything_at_once(session: AgentSession, serve: Serve, end: str) -> None:
    forward, other = session.ports.forward(serve().port), session.ports.forward(serve(lambda sock: sock.recv(1)).port)
    clients = [dial(forward.port) for _ in range(20)] + [dial(other.port)]
    for client in clients[:20]:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    if end == "destroy":
        session.destroy()
    elif end == "kill":
        session._connection.shutdown()
    else:
        session.__del__()
    for client in clients:
        assert is_over(client)
        client.close()
    for port in (forward.port, other.port):
        wait_until(lambda port=port: refused(port), "the port is closed")  # type: ignore[misc]
    forward.close()
    session.destroy()
    with pytest.raises(SessionDestroyedError):
        session.ports.forward(80)
    with pytest.raises(SessionDestroyedError):
        session.ports.expose(80)


def refused(port: int) -> bool:
    try:
        dial(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_thread_ends_with_the_last_forward(session: AgentSession, serve: Serve) -> None:
    def relays() -> int:
        return sum(thread.name == "sandboxkit-relay" for thread in threading.enumerate())

    before = relays()
    for _ in range(5):
        with session.ports.forward(serve().port) as url, session.ports.forward(serve().port):
            for _ in range(10):
                dial(url).close()
            assert relays() == before + 1
        wait_until(lambda: relays() == before, "the thread has ended")


def test_descriptors_come_back(session: AgentSession, serve: Serve) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    server = serve()
    with session.ports.forward(server.port) as url:
        for _ in range(10):
            dial(url).close()
        wait_until(lambda: all(sock.fileno() < 0 for sock in server.connections), "the server is done")
    gc.collect()
    before = held()
    with session.ports.forward(server.port) as url:
        for _ in range(200):
            with dial(url) as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
    wait_until(lambda: held() <= before, "all descriptors are closed")


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [0, -1, 65536, True, 1.5, None, "", "80", "relative/path", "/", "@", "/a\0b", "/" + "x" * 107, "@sandboxkit-agent"],
)
def test_a_bad_target(session: AgentSession, target: object) -> None:
    with pytest.raises(ConfigError) as caught:
        session.ports.forward(target)  # type: ignore[arg-type]
    assert caught.value.details["field"] == "target"


@pytest.mark.parametrize("port", [-1, 65536, True, 1.5, "80", None])
def test_a_bad_host_port(session: AgentSession, port: object) -> None:
    with pytest.raises(ConfigError) as caught:
        session.ports.forward(80, port)  # type: ignore[arg-type]
    assert caught.value.details["field"] == "host_port"


def test_a_host_port_in_use(session: AgentSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"host_port {port} is in use"):
            session.ports.forward(80, port)
    assert not session.relay._owners
