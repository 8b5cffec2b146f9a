"""Forks and Ctrl-C: a child disturbs nothing, and an interrupted call leaves all closed or all working."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from typing import Any

import pytest

from sandboxkit import SessionDestroyedError
from sandboxkit._session import AgentSession
from sandboxkit.conformance._tunnels import dial, is_over
from tests.core.interrupts import interrupted_at
from tests.support.forks import in_child
from tests.support.waiting import wait_until

from .conftest import FreePort, Serve


def test_a_forked_child_disturbs_nothing(session: AgentSession, serve: Serve, free_port: FreePort) -> None:
    forward = session.ports.forward(serve().port)
    exposed = session.ports.expose(serve().port, free_port())
    with dial(forward.port) as client, dial(exposed.port) as other:
        for sock in (client, other):
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"

        def use_it() -> None:
            forward.close()
            exposed.close()
            for call in (lambda: session.ports.forward(80), lambda: session.ports.expose(80)):
                with pytest.raises(SessionDestroyedError, match="forked"):
                    call()
            assert not session.relay._watches

        in_child(use_it)
        for sock in (client, other):
            sock.sendall(b"y")
            assert sock.recv(1) == b"y"
    with dial(forward.port) as client:
        client.sendall(b"z")
        assert client.recv(1) == b"z"
    forward.close()
    exposed.close()


def test_a_child_that_lives_on_keeps_no_connection_open(session: AgentSession, serve: Serve) -> None:
    forward = session.ports.forward(serve().port)
    with dial(forward.port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        (reading, writing), (hearing, telling) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(writing)
            client.close()
            os.write(telling, b"up")
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        os.close(telling)
        try:
            assert os.read(hearing, 2) == b"up"  # it has let go of its copies
            forward.close()
            assert is_over(client)
            with pytest.raises(ConnectionRefusedError):
                dial(forward.port)
        finally:
            os.close(writing)
            os.close(hearing)
            os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that nobody got yet
@pytest.mark.parametrize("name", ["forward", "with", "expose"])
def test_ctrl_c_at_every_place(session: AgentSession, serve: Serve, name: str, free_port: FreePort) -> None:
    """Afterwards it works, as the call was over or its end had not begun; or nothing of it is left."""
    service, port = serve().port, free_port()
    calls = {
        "forward": lambda: session.ports.forward(service, port).close(),
        "with": lambda: use(session, service, port),
        "expose": lambda: session.ports.expose(service, port).close(),
    }
    place, worked = 1, 0
    while interrupted_at(place, calls[name]):
        place += 1
        seen = threading.Event()
        session.relay.post(seen.set)  # behind an end that was asked for
        wait_until(lambda: seen.is_set() or not session.relay._owners, "the relay has seen to it")  # noqa: B023
        owners: list[Any] = list(session.relay._owners)
        if owners:
            worked += 1
            with dial(port) as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
            owners[0].close(10)
        wait_until(lambda: not session.relay._owners, "nobody holds the relay")
        wait_until(lambda: is_free(port), "the port is free")
    assert 0 < worked < place / 2
    assert place > 20
    calls[name]()
    assert session.exec("true").ok


def use(session: AgentSession, port: int, host_port: int) -> None:
    with session.ports.forward(port, host_port):
        pass


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
