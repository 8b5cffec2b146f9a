"""`session.ports.expose` on the real agent: one service of the host for the sandbox, and no more than that."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from sandboxkit import ConfigError, PortError
from sandboxkit._session import AgentSession
from sandboxkit.conformance._tunnels import dial, is_over, leads_nowhere
from tests.support.sockets import MIB, read_all, reset
from tests.support.waiting import wait_until

from .conftest import FreePort, Serve

# In these tests the sandbox's loopback is the host's own: so `as_port` must be another port than the service's.


def test_the_sandbox_reaches_the_service(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    def answer(sock: socket.socket) -> None:
        sock.sendall(b"hello, " + read_all(sock))

    port = free_port()
    with session.ports.expose(serve(answer).port, port) as exposed:
        assert exposed.port == port
        program = (
            f"import socket; c = socket.create_connection(('127.0.0.1', {port})); c.sendall(b'sandbox');"
            "c.shutdown(1); print(c.recv(100), c.recv(1))"
        )
        assert session.exec("python3", ["-c", program]).check().stdout == "b'hello, sandbox' b''\n"
        assert exposed.connections == 1
    with pytest.raises(ConnectionRefusedError):
        dial(port)


def test_much_goes_both_ways(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    port = free_port()
    with session.ports.expose(serve().port, port), dial(port) as client:
        data = bytes(range(256)) * (20 * MIB // 256)

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_all(client) == data
        sender.join()


def test_the_service_need_not_run_yet(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    service, port = free_port(), free_port()
    with session.ports.expose(service, port):
        assert leads_nowhere(port)
        serve(lambda sock: sock.sendall(b"now"), socket.create_server(("127.0.0.1", service)))
        with dial(port) as client:
            assert read_all(client) == b"now"


def test_resets_pass_through(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    seen: list[str] = []

    def watch(sock: socket.socket) -> None:
        sock.sendall(b"hello")
        try:
            read_all(sock)
        except ConnectionResetError:
            seen.append("reset")

    port = free_port()
    with session.ports.expose(serve(watch).port, port):
        client = dial(port)
        assert client.recv(5) == b"hello"
        reset(client)
        wait_until(lambda: seen == ["reset"], "the service sees the reset")


def test_a_storm_of_connections_harms_nobody(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    """A command that opens connections without end gets its turn, and commands and others go on."""
    server, port = serve(lambda sock: sock.sendall(b"x")), free_port()
    storm = f"""
import socket
held = []
for number in range(500):
    try:
        c = socket.socket(); c.settimeout(0.05); c.connect(('127.0.0.1', {port}))
        held.append(c)
    except OSError:
        pass
    if len(held) > 330:
        for c in held: c.close()
        held.clear()
print("done")
"""
    before = threading.active_count()
    with session.ports.expose(server.port, port):
        with session.exec_stream("python3", ["-c", storm], timeout=60) as stream:
            for _ in range(20):
                assert session.exec("true").ok
            most = threading.active_count()
            assert "done" in "".join(event.text for event in stream if event.type == "stdout")
        assert most - before < 600  # the server's own
        wait_until(lambda: works(port), "the service is reached after the storm")


def works(port: int) -> bool:
    try:
        with dial(port) as client:
            return read_all(client) == b"x"
    except ConnectionResetError:
        return False


def test_a_port_in_use_inside(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    taken = serve().port
    with pytest.raises(PortError, match=f"as_port {taken} is in use in the sandbox"):
        session.ports.expose(80, taken)
    wait_until(lambda: not session.relay._owners, "nothing is left half open")
    with session.ports.expose(80, free_port()):
        pass


def test_a_port_is_free_again_after_close(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    service, port = serve().port, free_port()
    for _ in range(5):
        exposed = session.ports.expose(service, port)
        with dial(port) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            exposed.close()
            exposed.close()
            assert is_over(client)


def test_many_services(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    ports = [free_port() for _ in range(20)]
    exposed = [session.ports.expose(serve(lambda sock, n=n: sock.sendall(b"%d" % n)).port, ports[n]) for n in range(20)]
    for number, port in enumerate(ports):
        with dial(port) as client:
            assert read_all(client) == b"%d" % number
    for one in exposed:
        one.close()


def test_the_end_of_the_session(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    exposed = session.ports.expose(serve().port, free_port())
    with dial(exposed.port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        start = time.monotonic()
        session.destroy()
        assert is_over(client)
        assert time.monotonic() - start < 5
    exposed.close()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        *(("host_port", (port,)) for port in (0, -1, 65536, True, 1.5, "80", None)),
        *(("as_port", (80, port)) for port in (0, -1, 65536, True, 1.5, "80")),
        *(("host", (80, None, host)) for host in ("", None, 5, "a\0b", "no.such.host.invalid")),
    ],
)
def test_bad_input(session: AgentSession, field: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        session.ports.expose(*arguments)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
