"""`session.processes` against an agent that answers as a test likes: bad input, refusals, lies, silence and the end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import (
    ConfigError,
    EngineError,
    PathError,
    ProcessError,
    ProcessTimeoutError,
    SandboxError,
    SessionLostError,
    _process_calls,
)
from sandboxkit._frames import FrameType
from sandboxkit._session import AgentSession
from sandboxkit.conformance._watch import wait_until

from .conftest import MakeSession
from .fake_agent import FakeAgent, Frame, frame
from .test_process_frames import launch, record

Answers = dict[FrameType, Callable[[Frame], bytes]]


def process_frame(*records: bytes) -> Callable[[Frame], bytes]:
    return lambda request: frame(FrameType.PROCESS, request.channel, b"".join(records))


def refusal(code: int, text: str = "Because.") -> Callable[[Frame], bytes]:
    return lambda request: frame(FrameType.ERROR, request.channel, struct.pack("<HH", code, 0) + text.encode())


def view(payload: bytes, ending: bytes, start: int = 0) -> Callable[[Frame], bytes]:
    def answer(request: Frame) -> bytes:
        return b"".join(
            (
                frame(FrameType.CURSOR, request.channel, struct.pack("<Q", start)),
                frame(FrameType.DATA, request.channel, payload, 1) if payload else b"",
                frame(FrameType.PROCESS, request.channel, ending),
            )
        )

    return answer


@pytest.fixture
def answer(agent: FakeAgent) -> Callable[[Answers], None]:
    """Have requests answered from now on; those without an answer are not."""

    def begin(answers: Answers) -> None:
        def arrived(received: Frame) -> None:
            if received.kind in answers:
                agent.send(answers[received.kind](received))

        agent.arrived = arrived

    return begin


BAD: list[tuple[str, dict[str, Any]]] = [
    *(("command", {"command": value}) for value in ("", 1, None, "a\0b", b"true")),
    *(("args", {"args": value}) for value in ("x", None, {"a"})),
    *(("env", {"env": value}) for value in ({"": "x"}, {"A": 1}, "A=1")),
    *(("cwd", {"cwd": value}) for value in ("", 3, "a\0b")),
    *(("stdin", {"stdin": value}) for value in (1, None, b"x")),
    *(("name", {"name": value}) for value in ("", "a\0b", 1, "é" * 128)),
    *(("log_bytes", {"log_bytes": value}) for value in (0, 4095, 16_777_217, 4096.0, True, None)),
    ("args", {"args": ["x" * 100_000] * 3}),
]


@pytest.mark.parametrize(("field", "options"), BAD)
def test_bad_input_sends_nothing(session: AgentSession, agent: FakeAgent, field: str, options: dict[str, Any]) -> None:
    command = options.pop("command", "true")
    with pytest.raises(ConfigError, match=field):
        session.processes.start(command, **options)
    assert not agent.frames


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (2, EngineError, None),
        (3, EngineError, None),
        (4, PathError, None),
        (5, EngineError, None),
        (7, ProcessError, "not_found"),
        (8, ProcessError, "not_executable"),
        (11, ProcessError, "limit"),
    ],
)
def test_a_refused_start_is_the_right_error(
    session: AgentSession,
    answer: Callable[[Answers], None],
    code: int,
    kind: type[SandboxError],
    reason: str | None,
) -> None:
    answer({FrameType.START: refusal(code, "no\x1b[31m such thing.")})
    with pytest.raises(kind) as raised:
        session.processes.start("thing")
    assert type(raised.value) is kind
    if reason is not None:
        assert raised.value.details["reason"] == reason
        assert "\x1b" not in str(raised.value)
    assert session.launches == {}


def test_the_limit_travels_with_the_start(make_session: MakeSession, agent: FakeAgent, answer: Any) -> None:
    answer({FrameType.START: process_frame(record())})
    make_session(max_processes=3).processes.start("thing", log_bytes=5000, name="né")
    (sent,) = agent.sent(FrameType.START)
    assert struct.unpack_from("<IIII", sent.payload) == (5000, 3, 3, 0)


def test_a_process_that_another_host_started_is_known_by_its_request(
    session: AgentSession, agent: FakeAgent, answer: Callable[[Answers], None]
) -> None:
    made = launch()
    answer({FrameType.LIST: process_frame(record(4)), FrameType.VIEW: view(made.payload(16), record(4))})
    for _ in range(2):
        (found,) = session.processes.list()
        assert (found.id, found.command, found.args, found.name) == ("p4", "sh", ("-c", "exit"), "né")
    assert len(agent.sent(FrameType.VIEW)) == 1, "asked once"
    answer({FrameType.LIST: process_frame(), FrameType.START: process_frame(record(5))})
    assert session.processes.list() == []
    assert session.launches == {}


def test_what_is_kept_of_processes_does_not_grow_with_their_number(
    session: AgentSession, answer: Callable[[Answers], None]
) -> None:
    number = 0

    def started(request: Frame) -> bytes:
        nonlocal number
        number += 1
        return newest(request)

    def newest(request: Frame) -> bytes:
        return process_frame(record(number))(request)

    answer({FrameType.START: started, FrameType.LIST: newest})
    for _ in range(600):
        assert session.processes.start("thing").id == f"p{number}"
    assert len(session.launches) <= 256


@pytest.mark.parametrize("request_bytes", [b"", b"x" * 100, launch().payload(1)[:-1], launch().payload(1) + b"x"])
def test_a_request_that_is_none_is_an_error(
    session: AgentSession, answer: Callable[[Answers], None], request_bytes: bytes
) -> None:
    answer({FrameType.LIST: process_frame(record(4)), FrameType.VIEW: view(request_bytes, record(4))})
    with pytest.raises(ProcessError) as raised:
        session.processes.get("p4")
    assert raised.value.details["reason"] == "malformed"
    assert session.state.value == "running"


@pytest.mark.parametrize(
    "lie",
    [
        process_frame(),
        process_frame(record(2)),
        process_frame(record(1), record(2)),
        lambda request: frame(FrameType.DATA, request.channel, b"x", 1),
        lambda request: frame(FrameType.CURSOR, request.channel, bytes(8)),
        lambda request: frame(FrameType.EXIT, request.channel, bytes(38)),
    ],
)
def test_an_answer_to_another_question_ends_the_session(
    session: AgentSession, answer: Callable[[Answers], None], lie: Callable[[Frame], bytes]
) -> None:
    answer({FrameType.START: process_frame(record(1)), FrameType.LIST: lie})
    process = session.processes.start("thing")
    with pytest.raises(SessionLostError, match="protocol"):
        assert process.status
    with pytest.raises(SessionLostError):
        session.processes.list()


def test_silence_has_an_end(
    session: AgentSession, agent: FakeAgent, answer: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer({FrameType.START: process_frame(record(1))})
    process = session.processes.start("thing")
    with monkeypatch.context() as patch:
        patch.setattr(_process_calls.Calls, "patience", 0.05)
        with pytest.raises(ProcessTimeoutError, match="in time") as raised:
            assert process.status
    assert raised.value.retryable
    assert isinstance(raised.value, TimeoutError)
    wait_until(lambda: agent.sent(FrameType.KILL), "the agent hears that nobody waits")
    assert [kill.channel for kill in agent.sent(FrameType.KILL)] == [agent.sent(FrameType.LIST)[0].channel]
    answer({FrameType.LIST: process_frame(record(1, ended=1, code=5))})
    assert process.exit_code == 5
    assert process.exit_code == 5
    assert len(agent.sent(FrameType.LIST)) == 2, "an end is known for good"


def test_a_lost_session_ends_every_wait(
    session: AgentSession, agent: FakeAgent, answer: Callable[[Answers], None]
) -> None:
    def hang_up(request: Frame) -> bytes:
        agent.hang_up()
        return b""

    answer({FrameType.START: process_frame(record(1)), FrameType.VIEW: hang_up})
    process = session.processes.start("thing")
    for call in (lambda: list(process.follow()), process.logs, process.wait, process.stop, session.processes.list):
        with pytest.raises(SessionLostError):
            call()


def test_lost_bytes_and_cursors_are_told(session: AgentSession, answer: Callable[[Answers], None]) -> None:
    ended = record(1, ended=1, first=100, last=107)
    answer({FrameType.START: process_frame(record(1)), FrameType.VIEW: view(b"\xa9abcd\xc3\xa9", ended, 100)})
    process = session.processes.start("thing")
    logs = process.logs(since=40)
    assert (logs.text, logs.start, logs.next_cursor, logs.lost_bytes, logs.ended) == ("abcdé", 101, 107, 61, True)
    stream = process.follow(since=40)
    assert b"".join(event.data for event in stream) == b"\xa9abcd\xc3\xa9"
    assert (stream.lost_bytes, stream.cursor) == (60, 107)
