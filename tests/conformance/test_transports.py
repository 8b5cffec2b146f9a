"""The two ways to an agent: most tests here take the shorter one, as their engines are on this machine."""

from __future__ import annotations

import os
import socket

import attrs
import pytest

from sandboxkit import Limits, Sandbox
from sandboxkit._bridge import Bridge
from sandboxkit._forwards import ForwardServer
from sandboxkit._session import AgentSession
from sandboxkit._shortcut import Shortcut
from sandboxkit.backend import Backend, ContainerStatus
from sandboxkit.conformance._aborts import Aborts
from sandboxkit.conformance._commands import Commands
from sandboxkit.conformance._input import Input
from sandboxkit.conformance._lifecycle import Loss
from sandboxkit.conformance._lifecycle_detached import Detached
from sandboxkit.conformance._output import Output
from sandboxkit.conformance._processes import Crashes, KeyboardInterrupts
from sandboxkit.conformance._streams import Backpressure, Streams
from sandboxkit.conformance._tunnels import Forwarding
from tests.support import ordinary

from .engines import EVERY, IMAGES, OnEngine, address

pytestmark = pytest.mark.engine

# A server that says a line to who comes, and a client of a forward to it: how the two are coupled.
SERVER = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as listener:
    while True:
        listener.accept()[0].sendall(b"hello\\n")
"""
PROGRAM = f"""
import socket, sys
from sandboxkit import Limits, Sandbox
from sandboxkit._shortcut import Shortcut
sandbox = Sandbox(sys.argv[1], "podman", sys.argv[2], limits=Limits(allow_unenforced=True), pull="never")
with sandbox.create_session() as session:
    print(isinstance(session._connection._stream, Shortcut))
    session.processes.start("python3", ["-c", {SERVER!r}])
    session.ports.wait(8000)
    forward = session.ports.forward(8000)
    with socket.create_connection(("127.0.0.1", forward.port), timeout=30) as client:
        assert client.recv(1) == b"h"
        print(*(type(each).__name__ for each in forward._server._pumps))
"""


class EngineStream(
    OnEngine,
    Commands,
    Output,
    Input,
    Aborts,
    Streams,
    Backpressure,
    Loss,
    KeyboardInterrupts,
    Crashes,
    Detached,
    Forwarding,
):
    """What a stream has to do with, over the engine's own: as with an engine on another machine."""

    @classmethod
    def make_backend(cls) -> Backend:
        backend = super().make_backend()
        inspect = backend.inspect

        def elsewhere(container_id: str) -> ContainerStatus:
            return attrs.evolve(inspect(container_id), pid=None)

        backend.inspect = elsewhere  # type: ignore[method-assign]
        return backend

    def test_no_shortcut_is_taken(self) -> None:
        session = self.create()
        assert isinstance(session, AgentSession)
        assert not isinstance(session._connection._stream, Shortcut)


class TestDockerStream(EngineStream):
    features = EVERY
    backend_name = "docker"


class TestPodmanRootlessStream(EngineStream):
    features = EVERY
    backend_name = "podman"
    rootless = True


@pytest.mark.parametrize(("backend", "rootless"), [("docker", False), ("podman", False), ("podman", True)])
@pytest.mark.parametrize("detached", [False, True], ids=["owned", "detached"])
def test_an_engine_of_this_machine_is_left_aside(backend: str, rootless: bool, detached: bool) -> None:
    url = address(backend, rootless=rootless)
    sandbox = Sandbox(IMAGES["shell"], backend, url, limits=Limits(allow_unenforced=True), pull="never")
    with sandbox.create_session(detached=detached) as session:
        assert isinstance(session, AgentSession)
        assert isinstance(session._connection._stream, Shortcut)
        assert session.exec("echo", ["hello"]).stdout == "hello\n"


def test_the_user_of_a_rootless_engine_may_do_so_too() -> None:
    url = address("podman", rootless=True)
    uid = os.stat(url.removeprefix("unix://")).st_uid
    assert uid != 0
    assert ordinary.run_program(PROGRAM, IMAGES["python"], url, uid=uid) == "True\nBridge\n"


@pytest.mark.parametrize(("backend", "rootless"), [("docker", False), ("podman", False), ("podman", True)])
def test_a_forward_takes_its_connections_out_of_the_sandbox(backend: str, rootless: bool) -> None:
    url = address(backend, rootless=rootless)
    sandbox = Sandbox(IMAGES["python"], backend, url, limits=Limits(allow_unenforced=True), pull="never")
    with sandbox.create_session() as session:
        session.processes.start("python3", ["-c", SERVER])
        session.ports.wait(8000)
        with session.ports.forward(8000) as local:
            port = int(local.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                assert client.recv(1) == b"h"
                assert isinstance(session, AgentSession)
                (server,) = (owner for owner in session.relay._owners if isinstance(owner, ForwardServer))
                assert [type(each) for each in server._pumps] == [Bridge]
