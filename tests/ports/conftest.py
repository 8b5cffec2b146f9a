"""A session of the real agent as a local process. Its "inside" is this very host: tests' servers are threads here."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxkit import Limits, Sandbox
from sandboxkit._session import AgentSession
from tests.support import sockets
from tests.support.local import LocalBackend
from tests.support.sockets import MIB

Handler = Callable[[socket.socket], object]


def echo(sock: socket.socket) -> None:
    """Sends back what it reads, as it reads it."""
    while chunk := sock.recv(MIB):
        sock.sendall(chunk)


class Server:
    """Serves each connection on a thread of its own until the test ends."""

    def __init__(self, handler: Handler, listener: socket.socket) -> None:
        self._handler = handler
        self._listener = listener
        self.connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="test-server", daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(30)
                self.connections.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), name="test-serve", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            self._handler(sock)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers inside: on a port of 127.0.0.1, or on the listener that is given."""
    servers: list[Server] = []

    def start(handler: Handler = echo, listener: socket.socket | None = None) -> Server:
        listener = listener or socket.create_server(("127.0.0.1", 0), backlog=600)
        servers.append(Server(handler, listener))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


FreePort = Callable[[], int]


@pytest.fixture
def free_port() -> Iterator[FreePort]:
    """Gives ports that nothing listens on, and that nobody else is given until the test ends."""
    with contextlib.ExitStack() as held:
        yield lambda: held.enter_context(sockets.free_port())


@pytest.fixture(scope="module")
def backend() -> Iterator[LocalBackend]:
    with tempfile.TemporaryDirectory(prefix="ports-") as folder:
        yield LocalBackend(Path(folder))


@pytest.fixture
def session(backend: LocalBackend) -> Iterator[AgentSession]:
    """No test leaves a thread of ours or an open socket behind."""
    before = set(threading.enumerate())
    made = Sandbox("host", backend, limits=Limits(allow_unenforced=True)).create_session()
    assert isinstance(made, AgentSession)
    yield made
    made.destroy()
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("sandboxkit")]
    for thread in left:
        thread.join(10)
        assert not thread.is_alive(), thread
    assert not made.relay._watches
    assert not made.relay._owners
