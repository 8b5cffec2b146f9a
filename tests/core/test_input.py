"""A command's input, from whatever source: sent as it is read, within the credit, and refused when it is no bytes."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxkit import AbortSignal, ConfigError
from sandboxkit._frames import INPUT_WINDOW, FrameType
from sandboxkit._session import AgentSession

from .background import Call
from .fake_agent import FakeAgent


def received(session: AgentSession, agent: FakeAgent, source: object) -> bytes:
    result = session.exec("count", input=source)  # type: ignore[arg-type]
    job = agent.job()
    assert result.stdout == str(len(job.input))
    assert job.input_ended
    return bytes(job.input)


SIZES = [0, 1, INPUT_WINDOW - 1, INPUT_WINDOW, INPUT_WINDOW + 1, 2 * INPUT_WINDOW, 1_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_source_arrives_whole(size: int, session: AgentSession, agent: FakeAgent, tmp_path: Path) -> None:
    data = os.urandom(size)
    path = tmp_path / "data"
    path.write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), io.BytesIO(data), iter([data]), iter([data[:3], data[3:]])):
        assert received(session, agent, source) == data
    with path.open("rb") as file, path.open("rb", buffering=0) as raw:
        assert received(session, agent, file) == data
        assert received(session, agent, raw) == data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.binary(max_size=100_000).map(lambda data: data * 3), max_size=5))
def test_any_pieces_arrive_whole(session: AgentSession, agent: FakeAgent, pieces: list[bytes]) -> None:
    assert received(session, agent, iter(pieces)) == b"".join(pieces)


def test_views_of_every_shape(session: AgentSession, agent: FakeAgent) -> None:
    assert received(session, agent, memoryview(b"abcdef")[::2]) == b"ace"
    assert received(session, agent, memoryview(b"abcd").cast("H")) == b"abcd"
    assert received(session, agent, memoryview(b"abcd").cast("B", (2, 2))) == b"abcd"
    assert received(session, agent, memoryview(b"")[::2]) == b""
    assert received(session, agent, iter([b"a", bytearray(b"b"), memoryview(b"cxd")[::2], b""])) == b"abcd"


def test_text_is_utf_8(session: AgentSession, agent: FakeAgent) -> None:
    assert received(session, agent, "é\0\udcff") == b"\xc3\xa9\0\xff"


def test_a_source_that_blocks_for_a_block_gives_what_is_there(session: AgentSession, agent: FakeAgent) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:
        call = Call(lambda: session.exec("count", input=source))
        job = agent.job()
        arrived = threading.Event()
        agent.arrived = lambda frame: arrived.set() if frame.kind is FrameType.DATA else None
        sink.write(b"abc")
        assert arrived.wait(10)
        assert bytes(job.input) == b"abc"
        sink.close()
        assert call.get().stdout == "3"


def test_an_iterator_is_read_only_as_far_as_there_is_credit(session: AgentSession, agent: FakeAgent) -> None:
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 10_000
            yield bytes(10_000)

    signal = AbortSignal()
    call = Call(lambda: session.exec("deaf", input=pieces(), abort=signal))
    job = agent.job()
    while len(job.input) < INPUT_WINDOW:
        session.exec("true")
    assert taken == 70_000
    signal.set()
    assert call.get().aborted
    assert len(job.input) == INPUT_WINDOW


def test_a_command_that_ends_without_reading_is_no_error(session: AgentSession, agent: FakeAgent) -> None:
    result = session.exec("echo", ["done"], input=bytes(10_000_000))
    assert (result.stdout, result.ok) == ("done", True)
    assert session.exec("echo", ["done"], input=iter([bytes(100)] * 1000)).ok


@pytest.mark.parametrize("with_signal", [True, False], ids=["AbortSignal", "Event"])
def test_an_endless_trickle_can_be_aborted(with_signal: bool, session: AgentSession) -> None:
    # It never runs out of credit, so the call never sleeps.
    abort = AbortSignal() if with_signal else threading.Event()

    def trickle() -> Iterator[bytes]:
        for count in range(10_000_000):
            if count == 50:
                abort.set()
            yield b""

    assert session.exec("count", input=trickle(), abort=abort).aborted


@pytest.mark.parametrize("early", [0, 1, 200_000])
def test_an_iterator_that_raises_kills_and_propagates(early: int, session: AgentSession, agent: FakeAgent) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(early)
        raise LookupError("broken source")

    with pytest.raises(LookupError, match="broken source"):
        session.exec("count", input=pieces())
    job = agent.job()
    assert job.ended.is_set()
    assert job.kills == [0]
    assert session.exec("echo", ["next"]).stdout == "next"


@pytest.mark.parametrize("piece", ["text", None, 3, [b"x"]])
def test_a_source_that_gives_no_bytes_kills_and_says_so(piece: object, session: AgentSession, agent: FakeAgent) -> None:
    with pytest.raises(ConfigError, match=r"^input is .*gives bytes, not text"):
        session.exec("count", input=iter([b"x", piece]))  # type: ignore[arg-type]
    assert agent.job().kills == [0]


class Reader:
    def __init__(self, read: Callable[[int], object]) -> None:
        self.read = read


def test_a_file_that_gives_text_says_so(session: AgentSession, agent: FakeAgent) -> None:
    with pytest.raises(ConfigError, match="gives bytes, not text"):
        session.exec("count", input=Reader(lambda size: "text"))  # type: ignore[arg-type]
    assert agent.job().kills == [0]


def test_a_large_input_respects_the_credit(session: AgentSession, agent: FakeAgent) -> None:
    # FakeAgent ends the session when more comes than was granted.
    call = Call(lambda: session.exec("deaf", input=bytes(1_000_000)))
    job = agent.job()
    granted = INPUT_WINDOW
    for size in (0, 1, 2, 1000, 65_000, 70_000, 500_000):
        with agent.lock:
            grant = min(size, job.input_outstanding)
            job.grant(grant)
            granted += grant
        while len(job.input) < granted:
            session.exec("true")
        assert len(job.input) == granted
    job.exit()
    assert call.get().ok
