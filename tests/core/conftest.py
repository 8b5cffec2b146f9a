"""A session over the fake agent, and what must hold after every test of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from sandboxkit import Limits
from sandboxkit._channel import Connection
from sandboxkit._session import AgentSession
from sandboxkit.streams import SocketStream

from .fake_agent import FakeAgent
from .fake_backend import FakeBackend

# Other tests may keep both processors busy: how long an example takes says nothing.
hypothesis.settings.register_profile("core", deadline=None)
hypothesis.settings.load_profile("core")


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    """A fake agent that has said hello."""
    with_end = FakeAgent()
    yield with_end
    with_end.close()
    with_end.host.close()
    assert with_end.broken is None, f"the host broke the protocol: {with_end.broken}"


@pytest.fixture
def connection(agent: FakeAgent) -> Iterator[Connection]:
    """A started connection to it."""
    made = Connection(SocketStream(agent.host))
    made.start()
    made.wait_hello(10)
    yield made
    assert not made._later
    assert made.lost is not None or not made._channels
    made.shutdown()
    made._thread.join(10)
    assert not made._thread.is_alive()


MakeSession = Callable[..., AgentSession]


@pytest.fixture
def make_session(connection: Connection) -> Iterator[MakeSession]:
    """A session on the connection; the keywords are those of Limits."""
    made: list[AgentSession] = []

    def make(**limits: object) -> AgentSession:
        session = AgentSession(
            session_id="test",
            container_id="container",
            backend=FakeBackend(),
            connection=connection,
            limits=Limits(**{"timeout": None, **limits}),  # type: ignore[arg-type]
            env={},
        )
        made.append(session)
        return session

    yield make
    for session in made:
        session.destroy()


@pytest.fixture
def session(make_session: MakeSession) -> AgentSession:
    """A session without limits of time."""
    return make_session()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """No test leaves a thread of ours behind."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
