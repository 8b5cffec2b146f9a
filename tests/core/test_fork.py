"""A forked child: it can't use its parent's session, and nothing it does, or leaves undone, reaches the parent's."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from sandboxkit import AbortSignal, SessionDestroyedError
from sandboxkit._session import AgentSession
from tests.support.forks import in_child

from .background import Call
from .fake_agent import FakeAgent

TIMEOUT = 20


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(SessionDestroyedError, match="belongs to the parent of this forked process"):
        call()


def test_every_method_is_refused_in_a_child(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("hello", stdin=True, tty=True)
    job = agent.job()

    def child() -> None:
        refused(lambda: session.exec("true"))
        refused(lambda: session.exec_stream("true"))
        refused(lambda: session.shell("true"))
        refused(session.destroy)
        refused(lambda: stream.write(b"x"))
        refused(stream.close_stdin)
        refused(lambda: stream.resize(1, 1))
        refused(stream.kill)
        refused(lambda: next(stream))
        stream.close()

    sent = len(agent.frames)
    in_child(child)
    assert next(stream).type == "stdout"
    assert len(agent.frames) == sent
    assert not job.ended.is_set()
    stream.write(b"x")
    stream.close()
    assert session.exec("echo", ["on"]).stdout == "on"


def test_a_child_that_leaves_the_blocks_or_collects_ends_nothing(session: AgentSession, agent: FakeAgent) -> None:
    signal_ = AbortSignal()
    streams = [session.exec_stream("hello", abort=AbortSignal.any(signal_))]
    job = agent.job()

    def child() -> None:
        with session, streams[0]:
            pass
        streams.clear()
        signal_.set()
        session._connection.close(SessionDestroyedError("x"))
        session._connection.shutdown()
        for attribute in list(vars(session)):
            if attribute not in ("_state", "_connection"):
                delattr(session, attribute)
        session.__del__()
        gc.collect()

    in_child(child)
    assert not job.killed.is_set()
    assert [event.type for event in [next(streams[0])]] == ["stdout"]
    assert session.exec("echo", ["on"]).stdout == "on"
    streams[0].close()


def test_a_child_does_not_wait_for_locks_that_were_held_at_the_fork(session: AgentSession, agent: FakeAgent) -> None:
    signal_ = AbortSignal()
    streams = [session.exec_stream("hello", abort=signal_)]
    connection = session._connection
    agent.job()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with connection._lock, connection._table, connection.credit_lock, signal_._guard, session._destroying:
            held.set()
            release.wait(TIMEOUT)

    holder = Call(hold)
    held.wait(10)

    def child() -> None:
        refused(lambda: session.exec("true"))
        refused(session.destroy)
        refused(lambda: next(streams[0]))
        streams.clear()
        gc.collect()

    in_child(child)
    release.set()
    holder.get()
    assert next(streams[0]).type == "stdout"
    streams[0].close()


def test_a_child_that_exits_ends_nothing(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("hello")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(TIMEOUT)
            del stream, session
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert next(stream).type == "stdout"
    assert session.exec("echo", ["on"]).stdout == "on"
    stream.close()
