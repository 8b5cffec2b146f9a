"""Many threads on one session: commands end in any order, and whatever ends the session ends all who wait."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from sandboxkit import (
    AbortSignal,
    ExecResult,
    ExecStream,
    SessionBusyError,
    SessionDestroyedError,
    SessionLostError,
)
from sandboxkit._channel import Connection
from sandboxkit._frames import FrameType
from sandboxkit._session import AgentSession

from .background import Call
from .conftest import MakeSession
from .fake_agent import FakeAgent


def test_32_threads_get_their_own_results(session: AgentSession, connection: Connection, agent: FakeAgent) -> None:
    def run(thread: int) -> None:
        for number in range(30):
            text = f"{thread}/{number} " * (1 + 500 * (number % 3))
            if number % 5 == 0:
                assert session.exec("count", input=text * 10).stdout == str(len(text * 10))
            elif number % 5 == 1:
                with session.exec_stream("echo", [text]) as stream:
                    assert stream.wait().stdout == text
            else:
                assert session.exec("echo", [text]).stdout == text

    for call in [Call(lambda thread=thread: run(thread)) for thread in range(32)]:  # type: ignore[misc]
        call.get(60)
    assert not connection._channels
    numbers = [frame.channel for frame in agent.sent(FrameType.EXEC)]
    assert numbers == list(range(1, 32 * 30 + 1))


def test_commands_end_in_any_order(session: AgentSession, agent: FakeAgent) -> None:
    calls = {number: Call(lambda number=number: session.exec("scripted", [str(number)])) for number in range(32)}  # type: ignore[misc]
    jobs = [agent.job() for _ in calls]
    Random(1).shuffle(jobs)
    for job in jobs:
        number = int(job.argv[1])
        job.write(job.argv[1].encode())
        job.exit(number)
        result = calls.pop(number).get()
        assert (result.stdout, result.exit_code) == (str(number), number)


@pytest.mark.parametrize("end", ["destroy", "hang up", "garbage"])
def test_the_end_of_the_session_ends_all_who_wait(end: str, make_session: MakeSession, agent: FakeAgent) -> None:
    session = make_session(max_concurrent_execs=20)
    stream = session.exec_stream("scripted", stdin=True)
    agent.job().granting = False
    calls: list[Call[object]] = [Call(lambda: stream.write(bytes(100_000)))]
    calls.extend(Call(lambda: session.exec("scripted")) for _ in range(24))  # some of them wait for their turn
    calls.extend(Call(lambda: session.exec("scripted", abort=AbortSignal())) for _ in range(8))
    for _ in range(19):
        agent.job()
    began = time.monotonic()
    if end == "destroy":
        session.destroy()
    elif end == "hang up":
        agent.hang_up()
    else:
        agent.send(b"\xff" * 100)
    for call in calls:
        with pytest.raises(SessionDestroyedError if end == "destroy" else SessionLostError) as caught:
            call.get()
        assert caught.value.__traceback__ is not None
    assert time.monotonic() - began < 5


def test_destroys_from_many_threads_are_one(session: AgentSession) -> None:
    for call in [Call(session.destroy) for _ in range(16)]:
        call.get()
    assert session._backend.calls == ["remove"]  # type: ignore[attr-defined]


def test_when_busy_error(make_session: MakeSession, agent: FakeAgent) -> None:
    session = make_session(max_concurrent_execs=2, when_busy="error")
    streams = [session.exec_stream("scripted") for _ in range(2)]
    jobs = [agent.job() for _ in streams]
    for call in (lambda: session.exec("true"), lambda: session.exec_stream("true")):
        with pytest.raises(SessionBusyError, match=r"2 commands run already.*limits\.max_concurrent_execs"):
            call()
    jobs[0].exit()
    streams[0].wait()
    assert session.exec("echo", ["on"]).stdout == "on"
    # A command that has ended counts no more, though nobody has asked for its result; one that was left, until it died.
    jobs[1].exit()
    while session._connection._channels:
        jobs[1].ended.wait(10)
    fresh = [session.exec_stream("hello") for _ in range(2)]
    fresh[0].close()
    assert session.exec("true").ok
    del fresh
    streams[1].wait()


def test_when_busy_wait(make_session: MakeSession, agent: FakeAgent) -> None:
    session = make_session(max_concurrent_execs=3)
    most = 0

    def count(frame: object) -> None:
        nonlocal most
        most = max(most, len(agent.open))

    agent.arrived = count
    calls = [Call(lambda: session.exec("scripted")) for _ in range(30)]
    for _ in calls:
        agent.job().exit()
    for call in calls:
        assert call.get().ok
    assert most <= 3


def test_those_who_wait_are_woken_not_polled(
    make_session: MakeSession, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit._session._LOOK", 1000.0)
    session = make_session(max_concurrent_execs=4)
    calls = [Call(lambda: session.exec("scripted")) for _ in range(40)]
    for _ in range(10):
        for job in [agent.job() for _ in range(4)]:  # four end at once
            job.exit()
    for call in calls:
        assert call.get().ok


def test_waiting_for_a_turn_ends_at_the_timeout(make_session: MakeSession, agent: FakeAgent) -> None:
    session = make_session(max_concurrent_execs=1)
    stream = session.exec_stream("scripted")
    with pytest.raises(SessionBusyError, match=r"ended within 0.05 s, and 1 run already"):
        session.exec("true", timeout=0.05)
    stream.close()


@pytest.mark.parametrize("abort", [threading.Event, AbortSignal])
def test_waiting_for_a_turn_can_be_aborted(
    abort: type[threading.Event], make_session: MakeSession, agent: FakeAgent
) -> None:
    session = make_session(max_concurrent_execs=1)
    stream = session.exec_stream("scripted")
    agent.job()  # it has arrived
    event = abort()
    calls: list[Call[ExecResult | ExecStream]] = [Call(lambda: session.exec("true", abort=event)) for _ in range(3)]
    calls.append(Call(lambda: session.exec_stream("true", abort=event)))
    event.set()
    for call in calls:
        ended = call.get()
        assert (ended if isinstance(ended, ExecResult) else ended.wait()).aborted
    assert len(agent.jobs) == 1
    stream.close()


def test_one_event_aborts_a_hundred_commands(session: AgentSession, agent: FakeAgent) -> None:
    signal = AbortSignal()
    calls = [Call(lambda: session.exec("scripted", abort=signal)) for _ in range(100)]
    for _ in calls:
        agent.job()
    signal.set("enough")
    for call in calls:
        assert call.get().aborted
    assert not signal._callbacks
    assert len(agent.sent(FrameType.KILL)) >= 100


def test_channel_numbers_end(session: AgentSession, connection: Connection) -> None:
    connection._next = 0x7FFF_FFFF
    assert session.exec("true").ok
    with pytest.raises(SessionLostError, match="2,147,483,647 commands"):
        session.exec("true")
