"""KeyboardInterrupt at every place of every call: the tree is killed, the stream stays whole, the next call works."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType

import pytest

import sandboxkit
from sandboxkit import AbortSignal
from sandboxkit._channel import Connection
from sandboxkit._session import AgentSession

from .fake_agent import FakeAgent
from .interrupts import at_place, finalizers_may_be_interrupted, interrupted_at

PACKAGE = os.path.dirname(sandboxkit.__file__)
ROUNDS = int(os.environ.get("SANDBOXKIT_TEST_ROUNDS", "200"))
"""How often the random tests here repeat."""


def pieces(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b"i" * 1000


def stream_it(session: AgentSession) -> None:
    with session.exec_stream("flood", ["1", "3000", "1000"]) as stream:
        for _ in stream:
            pass


def write_it(session: AgentSession) -> None:
    with session.exec_stream("count", stdin=True) as stream:
        stream.write(b"w" * 1000)
        stream.close_stdin()
        stream.wait()


def kill_it(session: AgentSession) -> None:
    with session.exec_stream("scripted", stdin=True) as stream:
        stream.kill()
        stream.wait()


def ignore(text: str) -> None:
    pass


CALLS: dict[str, Callable[[AgentSession], object]] = {
    "exec": lambda session: session.exec("true"),
    "output": lambda session: session.exec("flood", ["2", "600000", "60000"]),
    "input": lambda session: session.exec("count", input=b"i" * 100_000),
    "pieces": lambda session: session.exec("count", input=pieces(5)),
    "signal": lambda session: session.exec("true", abort=AbortSignal.any(AbortSignal(), AbortSignal.after(1000))),
    "callbacks": lambda session: session.exec("echo", ["hello"], on_stdout=ignore),
    "stream": stream_it,
    "write": write_it,
    "kill": kill_it,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_place_of_a_call(name: str, session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    call, place = CALLS[name], 0
    for place in itertools.count(1):
        interrupted = interrupted_at(place, lambda: call(session))
        settle(agent)
        assert session.exec("echo", ["next"]).stdout == "next"
        assert connection.lost is None
        if not interrupted:
            break
    assert place > 50


def test_every_place_of_dropping_a_stream(session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    # An interrupt of the finalizer is lost, and its command may be left running. All else holds.
    def drop() -> None:
        next(session.exec_stream("hello"))

    killed = place = 0
    for place in itertools.count(1):
        reached = interrupted_at(place, drop, finalizers=True)
        assert session.exec("echo", ["next"]).stdout == "next"
        with agent.lock:
            left = list(agent.open.values())
        for job in left:
            killed += job.killed.wait(0.05)
            job.exit()
        if not reached:
            break
    assert place > 50
    assert connection.lost is None


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_is_collected_at_every_place_of_a_call(name: str, session: AgentSession, agent: FakeAgent) -> None:
    # A finalizer may run wherever memory is allocated: also while its own thread holds a lock, or is amid a frame.
    place = 0
    for place in itertools.count(1):
        streams = [session.exec_stream("hello")]
        next(streams[0])
        job = agent.job()
        _, reached = at_place(place, streams.clear, lambda: CALLS[name](session))
        streams.clear()
        assert job.ended.wait(10)
        assert job.kills == [0]
        while agent.job() is not agent.jobs[max(agent.jobs)]:
            pass
        if not reached:
            break
    assert place > 50


@contextlib.contextmanager
def alarms(first: float, every: float = 0.0) -> Iterator[list[int]]:
    """Real signals, whose handler raises KeyboardInterrupt wherever the main thread is inside sandboxkit; counted."""
    count = [0]

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                count[0] += 1
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, first, every)
    try:
        with finalizers_may_be_interrupted():
            yield count
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", CALLS)
def test_real_signals(name: str, session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    random, interrupts = Random(name), 0
    began = time.perf_counter()
    CALLS[name](session)
    span = 1.5 * (time.perf_counter() - began)
    for _ in range(ROUNDS):
        with alarms(random.uniform(1e-6, span)) as count, contextlib.suppress(KeyboardInterrupt):
            CALLS[name](session)
        interrupts += count[0]
        settle(agent)
    assert interrupts
    assert connection.lost is None
    assert session.exec("echo", ["next"]).stdout == "next"


def test_a_storm_of_signals(session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    # Ctrl-C held down: the clean-up is interrupted, too, again and again. The stream stays whole, the session usable.
    # Python 3.10 forgets a lock when the next signal comes between an exception and its handler (python/cpython#74174).
    pause = 1e-4 if sys.version_info >= (3, 11) else 5e-3
    with alarms(pause, pause) as count:
        for _ in range(ROUNDS):
            for call in CALLS.values():
                with contextlib.suppress(KeyboardInterrupt):
                    call(session)
    assert count[0] > 10
    assert connection.lost is None
    assert session.exec("echo", ["next"]).stdout == "next"
    with agent.lock:
        left = list(agent.open.values())
    for job in left:
        job.exit()


def settle(agent: FakeAgent) -> None:
    """Until every command that the agent has seen has ended; it fails when one was not killed."""
    with agent.lock:
        jobs = list(agent.open.values())
    for job in jobs:
        assert job.ended.wait(10), f"{job.argv} runs on: kills {job.kills}"
