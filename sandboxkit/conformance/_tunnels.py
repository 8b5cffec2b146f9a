"""`session.ports.forward` and `expose`: servers inside, reached with the network off, and one service of the host."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from sandboxkit import (
    ConfigError,
    Lifecycle,
    PortError,
    Session,
    SessionDestroyedError,
    SessionState,
    StdoutEvent,
)
from sandboxkit.backend import Feature

from ._inside import fresh
from ._lifecycle_detached import Lasting
from ._sockets import drain, exactly, free_port
from ._suite import Suite, needs
from ._threads import Background
from ._watch import MARGIN, Stopwatch, allowed, wait_until

# Prints the port it was given, or the path of its socket, once it listens. `/N` is N bytes that depend on N.
PAGES = r"""
import hashlib, http.server, os, socket, socketserver, sys

class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        size = int(self.path[1:] or 0)
        body = (hashlib.sha256(b"%d" % size).digest() * (size // 32 + 1))[:size]
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            block = self.rfile.read(min(left, 1 << 16))
            digest.update(block)
            left -= len(block)
        answer = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self):
        return "client"

    def log_message(self, *args):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    where = sys.argv[1]
    if where.isdigit():
        address_family = socket.AF_INET
        address = ("127.0.0.1", int(where))
    else:
        address_family = socket.AF_UNIX
        address = where.replace("@", "\0", 1)

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)
        self.server_name = self.server_port = ""

server = Server(Server.address, Pages)
name = server.socket.getsockname()
print(name[1] if isinstance(name, tuple) else Server.where, flush=True)
server.serve_forever()
"""

# One connection after the other: the handshake of RFC 6455, then every text message comes back, until close.
ECHO = r"""
import base64, hashlib, socket, struct

def exactly(sock, size):
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    sock, _ = listener.accept()
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(4096)
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    key = next(value.strip() for name, _, value in lines if name.lower() == b"sec-websocket-key")
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    opcode = 0
    while opcode != 8:
        first, second = exactly(sock, 2)
        opcode, size = first & 15, second & 127
        if size == 126:
            size = struct.unpack(">H", exactly(sock, 2))[0]
        mask = exactly(sock, 4)
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(exactly(sock, size)))
        head = bytes([first, size]) if size < 126 else bytes([first, 126]) + struct.pack(">H", size)
        sock.sendall(head + data)
    sock.close()
"""

DIAL = r"""
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as sock:
    sock.sendall(sys.argv[2].encode())
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while chunk := sock.recv(65536):
        answer += chunk
    print(answer.decode())
"""


def page(size: int) -> bytes:
    """What the server's page of that number is."""
    return (hashlib.sha256(b"%d" % size).digest() * (size // 32 + 1))[:size]


@contextlib.contextmanager
def running(session: Session, program: str, *args: str) -> Iterator[str]:
    """A Python program inside, for as long as the block; gives its first line."""
    with session.exec_stream("python3", ["-c", program, *args], timeout=300) as stream:
        first = next(stream)
        assert isinstance(first, StdoutEvent), getattr(first, "result", first)
        yield first.text.strip()


def fetch(url: str) -> bytes:
    """A page."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def dial(where: str | int) -> socket.socket:
    """A plain connection to where a URL leads, or to a port of this host."""
    port = where if isinstance(where, int) else int(where.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def leads_nowhere(where: str | int) -> bool:
    """Whether a connection ends at once; the reset may come before `connect` has returned."""
    try:
        with dial(where) as sock:
            return is_over(sock)
    except ConnectionResetError:
        return True


def is_over(sock: socket.socket) -> bool:
    """Whether it ends, in order or not, with nothing to read before."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


class Forwarding(Suite):
    """Servers inside, for the host."""

    def test_a_server_on_the_loopback_is_reached_by_http(self, python_session: Session) -> None:
        """No published port, no network: the URL that `with` gives leads there."""
        with running(python_session, PAGES, "0") as port, python_session.ports.forward(int(port)) as url:
            assert url.startswith("http://127.0.0.1:")
            assert fetch(f"{url}/10000") == page(10_000)
            assert fetch(f"{url}/0") == b""

    def test_200_requests_at_once_get_their_own_bodies(self, python_session: Session) -> None:
        """Each its own, right to the last byte."""
        with running(python_session, PAGES, "0") as port, python_session.ports.forward(int(port)) as url:
            sizes = [number * 997 % 100_000 for number in range(200)]
            calls = [Background(lambda size=size: fetch(f"{url}/{size}")) for size in sizes]  # type: ignore[misc]
            assert [call.result() for call in calls] == [page(size) for size in sizes]

    def test_much_goes_both_ways_unchanged(self, python_session: Session) -> None:
        """32 MiB up, by its digest; 32 MiB down."""
        data = os.urandom(1 << 20) * 32
        with running(python_session, PAGES, "0") as port, python_session.ports.forward(int(port)) as url:
            with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as answer:
                assert answer.read().decode() == hashlib.sha256(data).hexdigest()
            assert fetch(f"{url}/{32 << 20}") == page(32 << 20)

    @pytest.mark.parametrize("kind", ["path", "abstract"])
    def test_a_server_on_a_unix_socket(self, python_session: Session, kind: str) -> None:
        """By path or abstract name."""
        name = f"{fresh('sandboxkit-socket')}-{os.getpid()}"
        target = f"/tmp/{name}" if kind == "path" else f"@{name}"
        with running(python_session, PAGES, target), python_session.ports.forward(target) as url:
            assert fetch(f"{url}/1000") == page(1000)
        python_session.exec("rm", ["-f", f"/tmp/{name}"]).check()

    def test_a_websocket(self, python_session: Session) -> None:
        """The handshake, messages both ways, the close."""
        with running(python_session, ECHO) as port, python_session.ports.forward(int(port)) as url, dial(url) as sock:
            key = base64.b64encode(os.urandom(16))
            sock.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
            )
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += sock.recv(1)
            guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            assert base64.b64encode(hashlib.sha1(key + guid, usedforsecurity=False).digest()) in head
            for text in (b"hello", b"", b"x" * 125):
                sock.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
                assert exactly(sock, 2 + len(text)) == bytes([0x81, len(text)]) + text
            sock.sendall(b"\x88\x80" + bytes(4))
            assert exactly(sock, 2) == b"\x88\x00"
            assert is_over(sock)

    def test_where_nobody_listens_the_connection_ends_and_the_forward_lives(self, python_session: Session) -> None:
        """It works once the server is there."""
        with running(python_session, PAGES, "0") as port:
            pass
        with python_session.ports.forward(int(port)) as url:
            assert leads_nowhere(url)
            with running(python_session, PAGES, port):
                assert fetch(f"{url}/5") == page(5)

    def test_commands_and_files_go_on_beside_a_stalled_client(self, python_session: Session) -> None:
        """A client that reads nothing holds up its own connection and nothing else."""
        with (
            running(python_session, PAGES, "0") as port,
            python_session.ports.forward(int(port)) as url,
            dial(url) as stalled,
            Stopwatch() as watch,
        ):
            stalled.sendall(b"GET /200000000 HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(10):
                assert python_session.exec("true").ok
                assert fetch(f"{url}/1000") == page(1000)
                python_session.files.write("beside", b"x" * 1000)
        assert watch.seconds < allowed(20)

    def test_a_session_is_not_idle_while_a_forward_is_used(self) -> None:
        """One connection is enough, without a command or a managed process; afterwards it is idle again."""
        server = 'python3 -c "$0" 0 > port 2> /dev/null < /dev/null & until [ -s port ]; do sleep 0.01; done'
        with self.create("python", lifecycle=Lifecycle(idle_timeout=MARGIN)) as session:
            session.exec("sh", ["-c", server, PAGES]).check()
            with session.ports.forward(int(session.files.read_text("port"))) as url:
                connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
                with contextlib.closing(connection):
                    until = time.monotonic() + 2 * MARGIN
                    while time.monotonic() < until:
                        connection.request("GET", "/100")
                        assert connection.getresponse().read() == page(100)
                        time.sleep(0.3)
                    assert session.state is SessionState.RUNNING
                wait_until(lambda: session.state is SessionState.LOST, "it ends", 20)

    def test_close_ends_the_port_and_its_connections(self, python_session: Session) -> None:
        """At once, and again."""
        with running(python_session, PAGES, "0") as port:
            forward = python_session.ports.forward(int(port))
            with dial(forward.url) as sock:
                sock.sendall(b"GET /5 HTTP/1.1\r\nHost: x\r\n\r\n")
                assert sock.recv(1) == b"H"
                forward.close()
                drain(sock)
            with pytest.raises(ConnectionRefusedError):
                dial(forward.url)
            forward.close()

    def test_destroy_closes_everything_at_once(self) -> None:
        """Connections and ports; a later call says why."""
        session = self.create("python")
        with running(session, PAGES, "0") as port:
            forward = session.ports.forward(int(port))
            with dial(forward.url) as sock:
                sock.sendall(b"GET /5 HTTP/1.1\r\nHost: x\r\n\r\n")
                assert sock.recv(1) == b"H"
                with Stopwatch() as watch:
                    session.destroy()
                    drain(sock)
                assert watch.seconds < allowed(5)
        with pytest.raises(SessionDestroyedError):
            session.ports.forward(80)
        wait_until(lambda: self._is_refused(forward.url), "the port is closed")

    @staticmethod
    def _is_refused(url: str) -> bool:
        try:
            dial(url).close()
        except ConnectionRefusedError:
            return True
        return False

    @pytest.mark.parametrize("target", [0, 65536, True, "relative", "", "@"])
    def test_a_bad_target_is_named(self, session: Session, target: object) -> None:
        """ConfigError; nothing listens."""
        with pytest.raises(ConfigError) as caught:
            session.ports.forward(target)  # type: ignore[arg-type]
        assert caught.value.details["field"] == "target"

    def test_a_port_of_the_host_that_is_in_use(self, session: Session) -> None:
        """PortError."""
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortError):
            session.ports.forward(80, taken.getsockname()[1])


class Reattaching(Lasting):
    """Tunnels are of the connection of their host; the servers inside live on."""

    @needs(Feature.DETACHED)
    def test_forwards_end_with_detach_and_are_made_anew_after_attach(self) -> None:
        """Their connections are reset; listeners inside go, so that their ports can be had again."""
        session = self.lasting(image="python", detached=True)
        server = session.processes.start("python3", ["-c", PAGES, "8000"])
        session.ports.wait(8000, process=server)
        forward, exposed = session.ports.forward(8000), session.ports.expose(80, 8080)
        with dial(forward.url) as sock:
            sock.sendall(b"GET /5 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(1) == b"H"
            session.detach()
            drain(sock)
        again = self.attached_when_free(session.id)
        with again.ports.forward(8000) as url, again.ports.expose(80, exposed.port):
            assert fetch(f"{url}/1000") == page(1000)


class Exposing(Suite):
    """One service of the host, for the sandbox."""

    def test_the_sandbox_reaches_the_service_and_its_port_goes_with_close(self, python_session: Session) -> None:
        """On its own loopback, with the network off."""
        with socket.create_server(("127.0.0.1", 0)) as service, free_port() as port:

            def serve() -> None:
                sock, _ = service.accept()
                with sock:
                    sock.settimeout(60)
                    data = b""
                    while chunk := sock.recv(65536):
                        data += chunk
                    sock.sendall(b"hello, " + data)

            call = Background(serve)
            with python_session.ports.expose(service.getsockname()[1], port) as exposed:
                assert exposed.port == port
                answer = python_session.exec("python3", ["-c", DIAL, str(port), "sandbox"]).check()
                assert answer.stdout == "hello, sandbox\n"
                call.result()
            refused = python_session.exec("python3", ["-c", DIAL, str(port), "sandbox"])
            assert "ConnectionRefusedError" in refused.stderr

    def test_a_port_in_use_inside(self, python_session: Session) -> None:
        """PortError; it is had once it is free."""
        with running(python_session, PAGES, "0") as port, pytest.raises(PortError, match="in use"):
            python_session.ports.expose(80, int(port))
        with python_session.ports.expose(80, int(port)):
            pass

    @pytest.mark.parametrize(
        ("field", "arguments"), [("host_port", (0,)), ("as_port", (80, 65536)), ("host", (80, 81, ""))]
    )
    def test_bad_input_is_named(self, session: Session, field: str, arguments: tuple[object, ...]) -> None:
        """ConfigError; nothing listens."""
        with pytest.raises(ConfigError) as caught:
            session.ports.expose(*arguments)  # type: ignore[arg-type]
        assert caught.value.details["field"] == field
