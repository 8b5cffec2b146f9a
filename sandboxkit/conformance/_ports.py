"""Ports: what listens inside, waiting for it, and what the engine publishes of it."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandboxkit
from sandboxkit import AbortSignal, ConfigError, ExecStream, Network, PortError, Session, StdoutEvent
from sandboxkit.backend import Feature

from ._inside import sh
from ._lifecycle_detached import Lasting
from ._suite import Suite, needs
from ._watch import MARGIN, Stopwatch, allowed

_SERVER = """
import http.server, os, sys, time
address, port = sys.argv[1], int(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        if self.path == "/ill" or (self.path == "/slow" and Handler.asked < 4):
            self.send_error(503)
            return
        body = b"hello from " + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
sys.stdin.readline()
server = http.server.HTTPServer((address, port), Handler)
print(server.server_port, time.time(), os.getpid(), flush=True)
server.serve_forever()
"""
_SIOCGIFADDR = 0x8915


@contextlib.contextmanager
def server(session: Session, address: str = "127.0.0.1", port: int = 0) -> Iterator[ExecStream]:
    """An HTTP server that listens once a line is written to it, and then says at which port and since when."""
    with session.exec_stream("python3", ["-c", _SERVER, address, str(port)], stdin=True) as stream:
        yield stream


def first_words(stream: ExecStream) -> list[str]:
    """Those of the first line that it prints."""
    text = ""
    while not text.endswith("\n"):
        event = next(stream)
        assert isinstance(event, StdoutEvent), event
        text += event.text
    return text.split()


def started(stream: ExecStream) -> tuple[int, float, int]:
    """Let it listen: its port, when it did by the sandbox's clock, and its pid."""
    stream.write(b"\n")
    port, since, pid = first_words(stream)
    return int(port), float(since), int(pid)


def free_port(session: Session) -> int:
    """One that nothing inside listens on; where the network is the host's own, nothing there."""
    script = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    return int(session.exec("python3", ["-c", script]).check().stdout)


def get(host: str, port: int, path: str) -> bytes:
    """A small page. A server that is published may be reached a moment before it answers."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def host_addresses() -> list[str]:
    """This host's IPv4 addresses beside 127.0.0.1."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if address != "127.0.0.1"]


class Ports(Suite):
    """`session.ports`, without any network."""

    def test_what_listens_is_listed(self, python_session: Session) -> None:
        """Port, address, owner and process."""
        with server(python_session) as stream:
            port, _, pid = started(stream)
            (found,) = [one for one in python_session.ports.listening() if one.port == port]
            assert (found.address, found.pid, found.is_loopback) == ("127.0.0.1", pid, True)
            uid = python_session.exec("id", ["-u"]).check().stdout.strip()
            assert str(found.uid) == uid
        assert port not in [one.port for one in python_session.ports.listening()]

    def test_an_address_is_told_as_the_server_bound_it(self, python_session: Session) -> None:
        """IPv6 and the addresses that stand for all."""
        script = """
import socket, sys
held = []
for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
    try:
        sock = socket.socket(family)
        sock.bind((address, 0))
    except OSError:
        continue
    sock.listen()
    held.append(sock)
    print(address, sock.getsockname()[1])
print("end", flush=True)
sys.stdin.read()
"""
        with python_session.exec_stream("python3", ["-c", script], stdin=True) as stream:
            text = ""
            while not text.endswith("end\n"):
                event = next(stream)
                assert isinstance(event, StdoutEvent)
                text += event.text
            bound = [tuple(line.split()) for line in text.splitlines()[:-1]]
            listed = {(one.address, str(one.port)) for one in python_session.ports.listening()}
            assert bound
            assert set(bound) <= listed

    def test_a_wait_ends_within_20_ms_of_the_listen(self, python_session: Session) -> None:
        """By the sandbox's clock, the best of some: the machine may be busy."""
        late = []
        for _ in range(8):
            port = free_port(python_session)
            with server(python_session, port=port) as stream:
                stream.write(b"\n")
                found = python_session.ports.wait(port, timeout=20)
                now = time.time()
                _, since, pid = started(stream)
                late.append(now - since)
            assert (found.port, found.pid) == (port, pid)
        assert min(late) < 0.02 * MARGIN, late

    def test_a_wait_for_nothing_says_what_listens(self, python_session: Session) -> None:
        """The timeout, and then a clear error; nothing is left of it."""
        with server(python_session) as stream:
            other, _, _ = started(stream)
            port = free_port(python_session)
            with Stopwatch() as watch, pytest.raises(PortError, match=f"Nothing listens on port {port} ") as caught:
                python_session.ports.wait(port, timeout=0.3)
            assert 0.3 <= watch.seconds < 0.3 + allowed(1.0)
            assert caught.value.details["reason"] == "timeout"
            assert caught.value.retryable
            assert "127.0.0.1:" in str(caught.value)
            assert other in [one.port for one in python_session.ports.listening()]

    def test_a_wait_is_aborted(self, python_session: Session) -> None:
        """At once, before and during."""
        port = free_port(python_session)
        for seconds in (0.0, 0.2):
            with Stopwatch() as watch, pytest.raises(PortError, match="aborted") as caught:
                python_session.ports.wait(port, timeout=30, abort=AbortSignal.after(seconds))
            assert caught.value.details["reason"] == "aborted"
            assert watch.seconds < seconds + allowed(0.5)

    def test_a_wait_ends_with_its_process(self, python_session: Session) -> None:
        """Not at the timeout: what has died, just now or long ago, will listen no more."""
        port = free_port(python_session)
        process = python_session.processes.start("sh", ["-c", "sleep 0.2; exit 3"])
        for _ in range(2):
            with Stopwatch() as watch, pytest.raises(PortError, match="exited with 3 and nothing listens") as caught:
                python_session.ports.wait(port, timeout=30, process=process)
            assert caught.value.details["reason"] == "ended"
            assert caught.value.details["process"] == process.id
            assert watch.seconds < allowed(2.0)
        with pytest.raises(ConfigError, match="a ManagedProcess of this session"):
            python_session.ports.wait(port, process=process.pid)  # type: ignore[arg-type]

    def test_a_wait_for_a_server_that_is_well(self, python_session: Session) -> None:
        """`http_ok`: until its answer is 200 to 399, else an error that tells the last one."""
        port = free_port(python_session)
        with server(python_session, port=port) as stream:
            started(stream)
            assert python_session.ports.wait(port, timeout=30, http_ok="/slow").port == port
            with pytest.raises(PortError, match=r"/ill is not well after .* status 503") as caught:
                python_session.ports.wait(port, timeout=0.5, http_ok="/ill")
            assert caught.value.details["reason"] == "http"
            with Stopwatch() as watch, pytest.raises(PortError, match="aborted"):
                python_session.ports.wait(port, timeout=30, http_ok="/ill", abort=AbortSignal.after(0.2))
            assert watch.seconds < allowed(1.0)
            process = python_session.processes.start("sh", ["-c", "sleep 0.2; exit 3"])
            with Stopwatch() as watch, pytest.raises(PortError, match="exited with 3"):
                python_session.ports.wait(port, timeout=30, http_ok="/ill", process=process)
            assert watch.seconds < allowed(2.0)
        with pytest.raises(ConfigError, match="http_ok"):
            python_session.ports.wait(port, http_ok="health")

    def test_a_wait_tells_how_its_process_ended(self, python_session: Session) -> None:
        """The exit code, and the last lines of its log."""
        process = python_session.processes.start("sh", ["-c", "echo one; echo cannot bind >&2; exit 3"])
        with Stopwatch() as watch, pytest.raises(PortError, match=r"(?s)exited with 3 .*cannot bind") as caught:
            python_session.ports.wait(free_port(python_session), timeout=30, process=process)
        assert watch.seconds < allowed(2.0)
        assert caught.value.details["exit_code"] == 3

    def test_a_wait_is_not_bounded_by_the_longest_command(self) -> None:
        """`limits.max_timeout` is for commands: a wait looks as often as it needs to."""
        with self.create("python", limits=self.rig.limits(timeout=0.2, max_timeout=0.2)) as session:
            with Stopwatch() as watch, pytest.raises(PortError, match="Nothing listens on port 1 "):
                session.ports.wait(1, timeout=0.7)
            assert 0.7 <= watch.seconds < 0.7 + allowed(1.0)

    def test_nothing_is_published_without_a_bridge(self, session: Session) -> None:
        """Network none."""
        assert dict(session.ports.published) == {}

    def test_a_session_that_was_destroyed_has_no_ports(self) -> None:
        """At once, never a hang."""
        session = self.create()
        session.destroy()
        for call in (session.ports.listening, lambda: session.ports.wait(80)):
            with pytest.raises(sandboxkit.SessionDestroyedError):
                call()


class PublishedPorts(Lasting):
    """`Network.bridge(ports=[...])`."""

    @needs(Feature.PUBLISHED_PORTS)
    def test_a_published_port_reaches_its_server(self) -> None:
        """At a free port of 127.0.0.1, each of its own."""
        with self.create("python", network=Network.bridge(ports=[8000, 8001])) as session:
            published = session.ports.published
            assert sorted(published) == [8000, 8001]
            assert len({where.port for where in published.values()}) == 2
            with server(session, "0.0.0.0", 8000) as one, server(session, "0.0.0.0", 8001) as two:
                started(one)
                started(two)
                for port, where in published.items():
                    assert where.host == "127.0.0.1"
                    session.ports.wait(port, timeout=10)
                    assert get(where.host, where.port, f"/{port}") == b"hello from /%d" % port

    @needs(Feature.PUBLISHED_PORTS)
    def test_a_published_port_is_at_127_0_0_1_alone(self) -> None:
        """No other address of this host takes connections there."""
        with self.create("python", network=Network.bridge(ports=[8000])) as session:
            with server(session, "0.0.0.0", 8000) as stream:
                started(stream)
                where = session.ports.published[8000]
                assert get(where.host, where.port, "/x") == b"hello from /x"
                for address in host_addresses():
                    with pytest.raises(OSError):  # noqa: PT011 - refused or unreachable
                        socket.create_connection((address, where.port), timeout=2).close()
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                for line in Path(table).read_text().splitlines()[1:]:
                    local, state = line.split()[1], line.split()[3]
                    if state == "0A" and int(local.rpartition(":")[2], 16) == where.port:
                        assert local.startswith("0100007F"), line

    @needs(Feature.PUBLISHED_PORTS)
    def test_a_server_on_the_wrong_address_is_told(self) -> None:
        """Not a silent timeout: a published port does not reach a loopback."""
        with self.create("python", network=Network.bridge(ports=[8000])) as session:
            with server(session, "127.0.0.1", 8000) as stream:
                started(stream)
                with Stopwatch() as watch, pytest.raises(PortError, match=r"127\.0\.0\.1 only.*0\.0\.0\.0") as caught:
                    session.ports.wait(8000, timeout=30)
                assert caught.value.details["reason"] == "loopback"
                assert watch.seconds < allowed(5.0)
            with server(session, "127.0.0.1", 8001) as stream:  # not published: loopback is as good as any
                started(stream)
                assert session.ports.wait(8001, timeout=10).address == "127.0.0.1"

    @needs(Feature.PUBLISHED_PORTS, Feature.RESUME)
    def test_a_resumed_session_has_its_ports(self) -> None:
        """As the engine publishes them now."""
        session = self.lasting(image="python", keep=True, network=Network.bridge(ports=[8000]))
        session.stop()
        session = self.resumed(session.id)
        where = session.ports.published[8000]
        with server(session, "0.0.0.0", 8000) as stream:
            started(stream)
            assert get(where.host, where.port, "/again") == b"hello from /again"

    @needs(Feature.PUBLISHED_PORTS, Feature.DETACHED)
    def test_an_attached_session_has_its_ports(self) -> None:
        """Whoever attaches is told where they are."""
        session = self.lasting(image="python", detached=True, network=Network.bridge(ports=[8000]))
        before = dict(session.ports.published)
        session.detach()
        assert dict(self.attached_when_free(session.id).ports.published) == before

    @needs(Feature.PUBLISHED_PORTS)
    def test_many_sessions_never_share_a_port(self) -> None:
        """OpenHands#7373: parallel creates never collide on a port."""
        sessions = [self.create(network=Network.bridge(ports=[8000]), limits=self.rig.limits()) for _ in range(3)]
        assert len({session.ports.published[8000].port for session in sessions}) == 3
        for session in sessions:
            assert sh(session, "true").ok
            session.destroy()
