"""exec_stream: events, whose end is the command's end; leaving it, from wherever, kills; writing is a pipe's."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

from sandboxkit import (
    AbortSignal,
    ConfigError,
    ExecStream,
    ExitEvent,
    ProcessError,
    SessionDestroyedError,
    SessionLostError,
    StderrEvent,
    StdoutEvent,
)
from sandboxkit._channel import Connection
from sandboxkit._frames import Stream
from sandboxkit._run import Queue
from sandboxkit._session import AgentSession

from .background import Call
from .conftest import MakeSession
from .fake_agent import FakeAgent, Job


def test_events_in_order_then_the_exit(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("scripted", ["x"])
    job = agent.job()
    job.write(b"one")
    assert next(stream) == StdoutEvent(b"one")
    job.write(b"two", 2)
    assert next(stream) == StderrEvent(b"two")
    assert stream.result is None
    job.exit(5)
    last = next(stream)
    assert isinstance(last, ExitEvent)
    assert (last.type, last.result.exit_code, last.result.stdout, last.result.stderr) == ("exit", 5, "one", "two")
    assert stream.result is last.result
    assert stream.wait() is last.result
    assert list(stream) == []


def test_the_result_is_what_exec_gives(session: AgentSession) -> None:
    streamed = session.exec_stream("flood", ["1", "5000000", "70000"]).wait()
    returned = session.exec("flood", ["1", "5000000", "70000"])
    assert streamed.stdout_bytes == returned.stdout_bytes
    assert streamed.stdout_total_bytes == returned.stdout_total_bytes == 5_000_000
    assert streamed.stdout_truncated


def test_characters_are_never_split_and_what_is_incomplete_comes_at_the_end(
    session: AgentSession, agent: FakeAgent
) -> None:
    stream = session.exec_stream("scripted")
    job = agent.job()
    job.write(b"\xe2\x82")
    job.write(b"E", 2)
    assert next(stream) == StderrEvent(b"E")
    job.write(b"\xac!\xc3")
    assert next(stream) == StdoutEvent("€!".encode())
    job.exit()
    assert next(stream) == StdoutEvent(b"\xc3")
    assert isinstance(next(stream), ExitEvent)


def leave_by_break(stream: ExecStream) -> None:
    with stream:
        for _ in stream:
            break


def leave_by_exception(stream: ExecStream) -> None:
    with contextlib.suppress(LookupError), stream:
        for _ in stream:
            raise LookupError


def leave_by_close(stream: ExecStream) -> None:
    stream.close()
    stream.close()
    with pytest.raises(ProcessError, match="closed before its command ended"):
        stream.wait()
    assert next(stream, None) is None


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_by_close])
def test_leaving_kills_and_waits_until_the_tree_is_dead(
    leave: object, session: AgentSession, connection: Connection, agent: FakeAgent
) -> None:
    stream = session.exec_stream("hello")
    job = agent.job()
    leave(stream)  # type: ignore[operator]
    assert job.ended.is_set()
    assert job.kills == [0]
    assert not connection._channels


def test_a_dropped_stream_is_killed(session: AgentSession, agent: FakeAgent) -> None:
    for _ in session.exec_stream("hello"):
        break
    job = agent.job()
    assert job.ended.wait(10)
    assert job.kills == [0]


def test_a_stream_in_a_cycle_is_killed_when_it_is_collected(session: AgentSession, agent: FakeAgent) -> None:
    holder: list[object] = [session.exec_stream("hello")]
    holder.append(holder)
    job = agent.job()
    del holder
    gc.collect()
    assert job.ended.wait(10)


@pytest.mark.parametrize("stream", [1, 2])
def test_leaving_a_command_that_still_writes(
    stream: int, session: AgentSession, connection: Connection, agent: FakeAgent
) -> None:
    # Its output is more than a window, and its EXIT comes after it.
    events = session.exec_stream("flood", [str(stream), "3000000", "65536"])
    next(events)
    events.close()
    assert agent.job().ended.is_set()
    for _ in session.exec_stream("flood", [str(stream), "3000000", "65536"]):
        break
    assert agent.job().ended.wait(10)
    assert session.exec("echo", ["next"]).stdout == "next"


def test_collection_at_every_allocation(session: AgentSession, agent: FakeAgent) -> None:
    before = gc.get_threshold()

    def drop_some() -> None:
        for _ in range(20):
            holder: list[object] = [session.exec_stream("hello")]
            holder.append(holder)
            del holder
            session.exec("flood", ["1", "300000", "10000"])

    calls = []
    gc.set_threshold(1)
    try:
        calls = [Call(drop_some) for _ in range(4)]
        for call in calls:
            call.get(60)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    with agent.lock:
        left = list(agent.open.values())
    for job in left:
        assert job.ended.wait(10)
    assert len(agent.jobs) == 160


def test_a_slow_consumer_stalls_its_own_command_alone(session: AgentSession, agent: FakeAgent) -> None:
    slow = session.exec_stream("flood", ["1", "1000000", "65536"])
    job = agent.job()
    assert next(slow).type == "stdout"
    # The agent has sent what it was granted, and no more is queued here than that.
    assert session.exec("flood", ["1", "1000000", "65536"]).stdout_total_bytes == 1_000_000
    assert session.exec_stream("flood", ["2", "1000000", "65536"]).wait().stderr_total_bytes == 1_000_000
    assert not job.ended.is_set()
    assert job.pending
    total = sum(len(event.data) for event in slow if not isinstance(event, ExitEvent))
    assert job.ended.is_set()
    assert slow.result is not None
    assert slow.result.stdout_total_bytes == 1_000_000
    assert total < 1_000_000


def queued(stream: ExecStream) -> list[tuple[Stream, bytearray]]:
    assert stream._run is not None
    assert isinstance(stream._run._sink, Queue)
    return stream._run._sink._chunks


def test_what_waits_for_a_consumer_is_a_window_at_most(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("scripted")
    job = agent.job()
    window = job.credit
    assert window <= 256 * 1024
    job.write(bytes(2 * window))
    session.exec("true")  # all that was granted has come by now
    assert sum(len(chunk) for _, chunk in queued(stream)) == window
    job.exit()
    assert stream.wait().stdout_total_bytes == 2 * window


@pytest.mark.parametrize("streams", [(1,), (1, 2)], ids=["one stream", "streams in turn"])
def test_a_flood_of_single_bytes_costs_no_object_each(
    streams: tuple[int, ...], session: AgentSession, agent: FakeAgent
) -> None:
    stream = session.exec_stream("scripted")
    job = agent.job()
    for number in range(20_000):
        job.write(b"%d" % (number % 10), streams[number % len(streams)])
    session.exec("true")
    assert len(queued(stream)) <= 1024
    job.exit()
    received = {"stdout": b"", "stderr": b""}
    for event in stream:
        if not isinstance(event, ExitEvent):
            received[event.type] += event.data
    sent = b"".join(b"%d" % (number % 10) for number in range(20_000))
    assert [received["stdout"], received["stderr"]] == [
        sent[0 :: len(streams)],
        sent[1::2] if len(streams) > 1 else b"",
    ]


def test_small_reads_give_credit_back_in_few_frames(session: AgentSession, agent: FakeAgent) -> None:
    job_count = 0
    for event in session.exec_stream("flood", ["1", "2000000", "1000"]):
        job_count += event.type == "stdout"
    windows = [frame for frame in agent.frames if frame.kind.name == "WINDOW"]
    assert 2_000_000 // (256 * 1024) <= len(windows) <= 2_000_000 // (64 * 1024)


def test_it_may_be_read_on_another_thread(session: AgentSession) -> None:
    stream = session.exec_stream("flood", ["1", "1000000", "65536"])
    assert Call(stream.wait).get().stdout_total_bytes == 1_000_000
    assert stream.result is not None


def test_closing_it_under_a_thread_that_reads_wakes_that_thread(session: AgentSession, agent: FakeAgent) -> None:
    for _ in range(50):
        stream = session.exec_stream("scripted")
        job = agent.job()
        reading = threading.Event()

        def read(stream: ExecStream = stream, reading: threading.Event = reading) -> list[object]:
            reading.set()
            return list(stream)

        reader = Call(read)
        reading.wait(10)
        stream.close()
        assert job.ended.is_set()
        reader.get()


def test_kill_is_not_the_end_of_reading(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("hello")
    job = agent.job()
    stream.kill(grace=1.5)
    assert [event.type for event in stream] == ["stdout", "exit"]
    assert stream.result is not None
    assert stream.result.aborted
    assert job.kills == [1500]
    stream.kill()
    assert job.kills == [1500]


def test_the_session_s_end_reaches_whoever_reads(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("hello")
    assert next(stream).type == "stdout"
    reader = Call(lambda: next(stream))
    session.destroy()
    with pytest.raises(SessionDestroyedError):
        reader.get()
    assert next(stream, None) is None


def test_output_that_came_before_the_loss_is_given_out(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("hello")
    agent.job()
    session._connection.send(b"")
    agent.hang_up()
    with pytest.raises(SessionLostError):
        session.exec("true")
    session._connection._thread.join(10)
    types: list[str] = []
    with pytest.raises(SessionLostError):
        types.extend(event.type for event in stream)


# Input.


def interactive(session: AgentSession, agent: FakeAgent, name: str = "scripted") -> tuple[ExecStream, Job]:
    return session.exec_stream(name, stdin=True), agent.job()


def test_write_and_close_stdin(session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent, "count")
    assert job.flags == 1
    for data in (b"ab", bytearray(b"cd"), memoryview(b"efgh")[::2], b""):
        stream.write(data)
    stream.close_stdin()
    stream.close_stdin()
    assert stream.wait().stdout == "6"
    assert bytes(job.input) == b"abcdeg"
    with pytest.raises(ProcessError, match=r"write before close_stdin\(\)"):
        stream.write(b"x")
    stream.close_stdin()


def test_a_write_waits_for_credit_as_a_pipe_does(session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent)
    job.granting = False
    stream.write(bytes(65_536))
    writer = Call(lambda: stream.write(b"x" * 100_000))
    session.exec("true")
    assert len(job.input) == 65_536
    with agent.lock:
        job.granting = True
        job.grant(job.input_outstanding)
    writer.get()
    session.exec("true")
    assert len(job.input) == 165_536
    job.exit()
    stream.wait()


def test_writers_do_not_mix(session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent, "count")
    writers = [Call(lambda byte=byte: stream.write(byte * 300_000)) for byte in (b"a", b"b", b"c")]  # type: ignore[misc]
    for writer in writers:
        writer.get()
    stream.close_stdin()
    assert stream.wait().stdout == "900000"
    blocks = [bytes(job.input[at : at + 300_000]) for at in range(0, 900_000, 300_000)]
    assert sorted(blocks) == [b"a" * 300_000, b"b" * 300_000, b"c" * 300_000]


def test_every_waiting_writer_hears_of_the_end(session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent)
    job.granting = False
    writers = [Call(lambda: stream.write(bytes(100_000))) for _ in range(5)]
    while len(job.input) < 65_536:
        session.exec("true")
    job.exit()
    for writer in writers:
        with pytest.raises(ProcessError, match="The command has ended"):
            writer.get()
    with pytest.raises(ProcessError, match="The command has ended"):
        stream.write(b"x")


def test_a_writer_hears_of_the_session_s_end(session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent)
    job.granting = False
    writer = Call(lambda: stream.write(bytes(100_000)))
    agent.hang_up()
    with pytest.raises(SessionLostError):
        writer.get()


def test_writing_without_an_input(session: AgentSession) -> None:
    stream = session.exec_stream("true")
    with pytest.raises(ProcessError, match="start it with stdin=True"):
        stream.write(b"x")
    stream.close_stdin()
    stream.wait()


@pytest.mark.parametrize("data", ["text", 3, None, [b"x"], iter([b"x"])])
def test_only_bytes_can_be_written(data: object, session: AgentSession, agent: FakeAgent) -> None:
    stream, job = interactive(session, agent)
    with pytest.raises(ConfigError, match=r"data is .*accepted: bytes"):
        stream.write(data)  # type: ignore[arg-type]
    stream.close()
    assert not job.input


def test_a_terminal_and_its_size(session: AgentSession, agent: FakeAgent) -> None:
    stream = session.exec_stream("scripted", tty=True, rows=30, columns=100)
    job = agent.job()
    assert (job.flags, job.rows, job.columns) == (2, 30, 100)
    stream.resize(40, 120)
    for rows, columns, field in ((0, 1, "rows"), (1, 65_536, "columns"), (1.5, 1, "rows"), (1, True, "columns")):
        with pytest.raises(ConfigError, match=f"^{field} is "):
            stream.resize(rows, columns)  # type: ignore[arg-type]
    session.exec("true")  # whose frames come after those
    job.exit()
    stream.wait()
    stream.resize(1, 1)
    assert job.sizes == [(40, 120)]
    with pytest.raises(ProcessError, match="start it with tty=True"):
        session.exec_stream("true").resize(1, 1)


# Aborted before it ran.


def test_an_abort_that_is_set_yields_one_exit(session: AgentSession, agent: FakeAgent) -> None:
    signal = AbortSignal()
    signal.set()
    stream = session.exec_stream("true", abort=signal, stdin=True, tty=True)
    assert stream.result is None
    (event,) = stream
    assert isinstance(event, ExitEvent)
    assert (event.result.aborted, event.result.exit_code, event.result.stdout) == (True, None, "")
    assert stream.result is event.result is stream.wait()
    assert not agent.frames
    with pytest.raises(ProcessError, match="aborted before it ran"):
        stream.write(b"x")
    stream.close_stdin()
    stream.resize(1, 1)
    stream.kill()
    stream.close()


def test_a_failing_input_kills_and_propagates(make_session: MakeSession, agent: FakeAgent) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise LookupError("broken source")

    with pytest.raises(LookupError, match="broken source"):
        make_session().exec_stream("count", input=pieces()).wait()
    assert agent.job().kills == [0]
