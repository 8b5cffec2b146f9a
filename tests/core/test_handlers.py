"""What a signal handler may do wherever it comes: destroy the session, set an AbortSignal. Nothing hangs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

import pytest

from sandboxkit import AbortSignal, Limits, SessionDestroyedError
from sandboxkit._channel import Connection
from sandboxkit._session import AgentSession
from sandboxkit.streams import SocketStream

from .fake_agent import FakeAgent
from .fake_backend import FakeBackend
from .interrupts import at_place


@contextlib.contextmanager
def fresh_session() -> Iterator[tuple[AgentSession, FakeAgent]]:
    agent = FakeAgent()
    connection = Connection(SocketStream(agent.host))
    connection.start()
    connection.wait_hello(10)
    session = AgentSession(
        session_id="fresh",
        container_id="container",
        backend=FakeBackend(),
        connection=connection,
        limits=Limits(timeout=None),
        env={},
    )
    yield session, agent
    session.destroy()
    agent.close()
    agent.host.close()
    assert agent.broken is None


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxkit._channel._PATIENCE", 0.001)


def stream_all(session: AgentSession, abort: AbortSignal) -> object:
    with session.exec_stream("flood", ["1", "300000", "65536"], abort=abort) as stream:
        return stream.wait()


def write_all(session: AgentSession, abort: AbortSignal) -> object:
    with session.exec_stream("count", stdin=True, abort=abort) as stream:
        stream.write(bytes(100_000))
        stream.close_stdin()
        return stream.wait()


CALLS: dict[str, Callable[[AgentSession, AbortSignal], object]] = {
    "exec": lambda session, abort: session.exec("true", abort=abort),
    "input": lambda session, abort: session.exec("count", input=bytes(100_000), abort=abort),
    "stream": stream_all,
    "write": write_all,
}


@pytest.mark.parametrize("name", CALLS)
def test_destroy_at_every_place(name: str) -> None:
    place = 0
    for place in itertools.count(1):
        with fresh_session() as (session, _):
            reached = True
            with contextlib.suppress(SessionDestroyedError):
                _, reached = at_place(place, session.destroy, lambda: CALLS[name](session, AbortSignal()))
            if reached:
                assert session.state.value == "destroyed"
        if not reached:
            break
    assert place > 50


def test_destroy_at_every_place_of_a_destroy() -> None:
    place = 0
    for place in itertools.count(1):
        with fresh_session() as (session, _):
            _, reached = at_place(place, session.destroy, session.destroy)
            assert session.state.value == "destroyed"
        if not reached:
            break
    assert place > 20


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("name", ["exec", "input", "stream"])
def test_abort_at_every_place(name: str, combined: bool, session: AgentSession) -> None:
    place = 0
    for place in itertools.count(1):
        signal = AbortSignal()
        abort = AbortSignal.any(signal) if combined else signal
        _, reached = at_place(place, signal.set, functools.partial(CALLS[name], session, abort))
        assert not signal._callbacks
        if not reached:
            break
    assert place > 50


def test_an_abort_at_every_place_ends_what_would_never_end(session: AgentSession) -> None:
    place = 0
    for place in itertools.count(1):
        signal, deadline = AbortSignal(), AbortSignal.after(0.5)
        abort = AbortSignal.any(signal, deadline)
        _, reached = at_place(place, signal.set, functools.partial(session.exec, "scripted", abort=abort))
        if not reached or deadline.is_set():
            break  # this place comes after the waiting
        assert abort.reason is None
    assert place > 50
