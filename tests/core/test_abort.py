"""AbortSignal, and what else may abort a command."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref

import pytest

from sandboxkit import AbortSignal, ConfigError
from sandboxkit._session import AgentSession
from sandboxkit.abort import Abort

from .background import Call
from .fake_agent import FakeAgent


def test_set_is_final_and_the_first_reason_stays() -> None:
    signal = AbortSignal()
    assert not signal.is_set()
    assert signal.reason is None
    signal.set("first")
    signal.set("second")
    assert signal.is_set()
    assert signal.reason == "first"
    with pytest.raises(RuntimeError, match="can't be cleared"):
        signal.clear()
    assert signal.is_set()
    assert isinstance(signal, threading.Event)
    assert isinstance(signal, Abort)


def test_callbacks_run_once_in_order_on_the_thread_that_sets() -> None:
    signal, calls = AbortSignal(), list[object]()
    for name in "abc":
        signal.add_callback(lambda name=name: calls.append((name, threading.get_ident())))  # type: ignore[misc]
    forget = signal.add_callback(lambda: calls.append("forgotten"))
    forget()
    forget()

    def set_it() -> int:
        signal.set()
        return threading.get_ident()

    ident = Call(set_it).get()
    signal.set()
    assert calls == [("a", ident), ("b", ident), ("c", ident)]
    signal.add_callback(lambda: calls.append("at once"))()
    assert calls[-1] == "at once"


def test_an_exception_in_a_callback_comes_after_the_others_ran() -> None:
    signal, calls = AbortSignal(), list[str]()

    def fail(name: str) -> None:
        calls.append(name)
        raise LookupError(name)

    for name in "ab":
        signal.add_callback(lambda name=name: fail(name))  # type: ignore[misc]
    signal.add_callback(lambda: calls.append("c"))
    with pytest.raises(LookupError, match="a"):
        signal.set()
    assert calls == ["a", "b", "c"]
    signal.set()
    assert calls == ["a", "b", "c"]


def test_a_callback_may_use_the_signal() -> None:
    signal, calls = AbortSignal(), list[object]()

    def use() -> None:
        signal.add_callback(lambda: calls.append(signal.reason))
        forget()
        signal.set("again")

    signal.add_callback(use)
    forget = signal.add_callback(lambda: calls.append("forgotten meanwhile"))
    signal.set("why")
    assert calls == ["why"]


def test_concurrent_sets_run_each_callback_once() -> None:
    for _ in range(50):
        signal, calls = AbortSignal(), list[int]()
        for number in range(20):
            signal.add_callback(functools.partial(calls.append, number))
        for setter in [Call(signal.set) for _ in range(4)]:
            setter.get()
        while len(calls) < 20:
            pass
        assert sorted(calls) == list(range(20))


def test_after_is_set_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    signal = AbortSignal.after(5)
    monkeypatch.setattr(time, "monotonic", lambda: now + 4)
    assert not signal.is_set()
    assert 0 < (signal.next_look() or 0) <= 5
    monkeypatch.setattr(time, "monotonic", lambda: now + 6)
    assert signal.is_set()
    assert signal.reason == "deadline"
    assert AbortSignal.after(0).is_set()


def test_wait_knows_the_deadline_and_the_sources() -> None:
    assert AbortSignal.after(0.01).wait(10)
    assert AbortSignal.after(0.01).wait()
    assert not AbortSignal().wait(0.01)
    assert not AbortSignal.after(1e300).wait(0.01)
    assert AbortSignal.any(AbortSignal.after(0.01), threading.Event()).wait(10)
    source = AbortSignal()
    derived = AbortSignal.any(AbortSignal.any(source))
    waiting = Call(lambda: derived.wait(1e300))
    source.set("reason")
    assert waiting.get()
    assert derived.reason == "reason"
    event = threading.Event()
    waiting = Call(lambda: AbortSignal.any(event).wait())
    event.set()
    assert waiting.get()


def test_any_takes_the_reason_of_the_first() -> None:
    first, second, event = AbortSignal(), AbortSignal(), threading.Event()
    combined = AbortSignal.any(first, event, second)
    calls: list[object] = []
    combined.add_callback(lambda: calls.append(combined.reason))
    assert not combined.is_set()
    second.set("second")
    assert calls == ["second"], "a callback is told by the source, without anyone looking"
    first.set("first")
    assert combined.is_set()
    assert combined.reason == "second"
    assert AbortSignal.any(first, second).reason is None
    late = AbortSignal.any(first, second)
    assert late.is_set()
    assert late.reason == "first"
    late_calls: list[int] = []
    AbortSignal.any(first).add_callback(lambda: late_calls.append(1))
    assert late_calls == [1]
    event.set()
    assert AbortSignal.any(event).is_set()
    assert not AbortSignal.any().is_set()


def test_a_long_lived_source_keeps_no_signal_alive() -> None:
    source = AbortSignal()
    made = [weakref.ref(AbortSignal.any(source, AbortSignal())) for _ in range(10)]
    gc.collect()
    assert [ref() for ref in made] == [None] * 10
    derived = AbortSignal.any(source)
    forget = [derived.add_callback(lambda: None) for _ in range(3)]
    assert len(source._callbacks) == 3
    for undo in forget:
        undo()
        undo()
    assert not derived.wait(0)
    assert not source._callbacks


def test_a_command_leaves_nothing_on_its_signal(session: AgentSession) -> None:
    source = AbortSignal()
    for abort in (source, AbortSignal.any(source)):
        session.exec("true", abort=abort)
        session.exec_stream("true", abort=abort).wait()
        session.exec_stream("hello", abort=abort).close()
        next(session.exec_stream("hello", abort=abort))
        assert not source._callbacks


@pytest.mark.parametrize("make", [threading.Event, AbortSignal], ids=["Event", "AbortSignal"])
@pytest.mark.parametrize(("grace", "sent"), [(None, 0), (0, 0), (1.5, 1500)])
def test_an_abort_kills_with_its_grace(
    make: type[threading.Event], grace: float | None, sent: int, session: AgentSession, agent: FakeAgent
) -> None:
    abort = make()
    call = Call(lambda: session.exec("hello", abort=abort, kill_grace=grace))
    job = agent.job()
    abort.set()
    result = call.get()
    assert (result.aborted, result.exit_code, result.timed_out, result.stdout) == (True, None, False, "hello\n")
    assert set(job.kills) == {sent}
    assert session.exec("echo", ["next"]).stdout == "next"


def test_a_signal_kills_a_stream_whose_consumer_sleeps(session: AgentSession, agent: FakeAgent) -> None:
    signal = AbortSignal()
    stream = session.exec_stream("hello", abort=AbortSignal.any(signal))
    job = agent.job()
    signal.set()
    assert job.ended.wait(10)
    assert stream.wait().aborted


def test_a_deadline_needs_nobody_to_set_it(session: AgentSession) -> None:
    signal = AbortSignal.after(0.05)
    assert session.exec("scripted", abort=signal).aborted
    assert signal.reason == "deadline"


def test_an_abort_that_is_set_runs_nothing(session: AgentSession, agent: FakeAgent) -> None:
    event = threading.Event()
    event.set()
    result = session.exec("true", ["x"], abort=event, input=b"y")
    assert (result.aborted, result.exit_code, result.command, result.args, result.duration) == (
        True,
        None,
        "true",
        ("x",),
        0,
    )
    assert session.exec("true", abort=AbortSignal.any(event)).aborted
    assert session.shell("true", abort=event).aborted
    assert not agent.frames


def test_an_abort_that_fails_fails_the_call(session: AgentSession, agent: FakeAgent) -> None:
    class Failing:
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            if self.looks > 2:
                raise LookupError("no idea")
            return False

    with pytest.raises(LookupError, match="no idea"):
        session.exec("scripted", abort=Failing())
    assert agent.job().kills == [0]


@pytest.mark.parametrize("value", [True, "stop", 1, threading.Lock(), threading.Event, AbortSignal, object()])
def test_what_is_no_event_is_refused(value: object, session: AgentSession, agent: FakeAgent) -> None:
    for call in (session.exec, session.exec_stream, session.shell):
        with pytest.raises(ConfigError, match=r"^abort is .*accepted: a threading\.Event or an AbortSignal"):
            call("true", abort=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^sources\[1\] is "):
        AbortSignal.any(AbortSignal(), value)  # type: ignore[arg-type]
    assert not agent.frames


@pytest.mark.parametrize("value", [None, "1", -1, float("nan"), float("inf"), True, 10**400])
def test_after_takes_a_number(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^seconds is "):
        AbortSignal.after(value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^sources\[0\] is None"):
        AbortSignal.any(None)  # type: ignore[arg-type]
