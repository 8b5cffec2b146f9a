"""What the sandbox says of managed processes is parsed as an adversary's, and costs no more than it is granted."""

from __future__ import annotations

import contextlib
import gc
import struct
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import SandboxError
from sandboxkit._channel import Channel, Connection
from sandboxkit._frames import ExecFlag, FrameType, ProtocolError, Stream, exec_payload
from sandboxkit._process_calls import Call, LogSink
from sandboxkit._process_frames import Launch, ProcessRecord

from .fake_agent import frame, hello
from .test_decoder import Silent

RECORD = struct.Struct("<IIBBHIQQQBBBBIQQQ")


def record(
    id: int = 1,
    pid: int = 7,
    ended: int = 0,
    flags: int = 0,
    zero: int = 0,
    log: int = 4096,
    started: int = 1_000_000,
    first: int = 0,
    last: int = 0,
    how: int = 0,
    reason: int = 0,
    code: int = 0,
) -> bytes:
    return RECORD.pack(id, pid, ended, flags, zero, log, started, first, last, how, reason, 0, 0, code, 2_000_000, 0, 0)


def launch(**changes: object) -> Launch:
    strings = exec_payload(
        ("sh", "-c", "exit"),
        cwd="a/b",
        env={"A": "1", "B": ""},
        flags=ExecFlag.STDIN,
        window=0,
        timeout_ms=0,
        grace_ms=0,
    )
    made = Launch(command="sh", args=("-c", "exit"), cwd="a/b", name="né", stdin=True, log_bytes=4096, request=strings)
    return attrs.evolve(made, **changes)  # type: ignore[arg-type]


@attrs.frozen
class Host:
    """A connection with a call on channel 1 and whatever else a test opens."""

    connection: Connection
    call: Call
    sink: LogSink

    @classmethod
    def make(cls, *, window: int = 1000, process: int | None = 1) -> Host:
        connection = Connection(Silent())
        sink = LogSink()
        call = Call(connection, sink, window=window, process=process)
        connection.request(call, FrameType.VIEW, b"")
        host = cls(connection, call, sink)
        host.feed(hello())
        return host

    def feed(self, *frames: bytes) -> None:
        self.connection._decoder.feed(memoryview(b"".join(frames)))

    def says(self, kind: FrameType, payload: bytes, flags: int = 0) -> None:
        self.feed(frame(kind, 1, payload, flags))

    def cursor(self, value: int) -> None:
        self.says(FrameType.CURSOR, struct.pack("<Q", value))

    def data(self, payload: bytes, stream: int = 1) -> None:
        self.says(FrameType.DATA, payload, stream)


def test_a_record_comes_back() -> None:
    (found,) = ProcessRecord.parse_all(record(3, 9, 1, 2, first=10, last=4106, how=1, reason=2, code=9))
    assert (found.id, found.pid, found.started_at, found.others_live, found.input_open) == (3, 9, 1.0, True, False)
    assert (found.first, found.last, found.log_bytes, found.duration) == (10, 4106, 4096, 2.0)
    assert found.exit is not None
    assert (found.exit.signal, found.exit.reason) == (9, 2)
    (running,) = ProcessRecord.parse_all(record(flags=1))
    assert (running.exit, running.input_open) == (None, True)
    assert ProcessRecord.parse_all(b"") == ()
    assert [one.id for one in ProcessRecord.parse_all(record(2) + record(1))] == [1, 2]


@pytest.mark.parametrize(
    "payload",
    [
        b"x",
        record()[:-1],
        record() * 2,
        b"".join(record(number) for number in range(1, 130)),
        record(id=0),
        record(ended=2),
        record(flags=4),
        record(zero=1),
        record(first=1),
        record(last=4097),
        record(ended=1, how=2),
        record(ended=1, how=1, code=0),
        record(ended=1, code=256),
        record(ended=1, reason=3),
    ],
)
def test_a_record_out_of_range_breaks_the_protocol(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        ProcessRecord.parse_all(payload)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    parsers: tuple[Callable[[bytes], object], ...] = (ProcessRecord.parse_all, Launch.parse)
    for parse in parsers:
        with contextlib.suppress(ProtocolError):
            parse(data)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 200))
def test_damaged_requests_are_refused_or_parsed(damage: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(launch().payload(16))
    for place, value in damage:
        data[place % len(data)] = value
    for damaged in (bytes(data), bytes(data[:cut])):
        try:
            found = Launch.parse(damaged)
        except ProtocolError:
            continue
        assert 4096 <= found.log_bytes <= 16 << 20


@pytest.mark.parametrize("name", [None, "né", "\udcff"])
def test_what_a_process_was_started_with_comes_back(name: str | None) -> None:
    made = launch(name=name)
    assert Launch.parse(made.payload(16)) == made


def test_an_answer_ends_the_call() -> None:
    host = Host.make()
    host.cursor(5)
    host.data(b"abc")
    host.says(FrameType.PROCESS, record())
    assert isinstance(host.call.outcome, tuple)
    assert host.sink.start == 5
    assert [bytes(piece.data) for piece in host.sink.take()] == [b"abc"]
    assert host.connection._channels == {}


def test_gaps_are_counted() -> None:
    host = Host.make()
    host.cursor(5)
    host.data(b"abc")
    host.cursor(20)
    host.data(b"d", 2)
    host.cursor(22)
    pieces = [(piece.stream, bytes(piece.data), piece.lost) for piece in host.sink.take()]
    assert pieces == [(Stream.STDOUT, b"abc", 0), (None, b"", 12), (Stream.STDERR, b"d", 0), (None, b"", 1)]


@pytest.mark.parametrize(
    "say",
    [
        lambda host: host.data(b"x"),
        lambda host: host.says(FrameType.CURSOR, b"1234567"),
        lambda host: (host.cursor(5), host.cursor(5)),
        lambda host: (host.cursor(5), host.data(b"abc"), host.cursor(8)),
        lambda host: (host.cursor(5), host.cursor(4)),
        lambda host: (host.cursor(0), host.data(b"x" * 1001)),
        lambda host: host.says(FrameType.EXIT, struct.pack("<BBBBIQQQH", 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        lambda host: host.says(FrameType.PROCESS, b""),
        lambda host: host.says(FrameType.PROCESS, record(1) + record(2)),
        lambda host: host.says(FrameType.PROCESS, record(2)),
        lambda host: (host.says(FrameType.PROCESS, record()), host.says(FrameType.PROCESS, record())),
        lambda host: host.feed(frame(FrameType.PROCESS, 9, record())),
        lambda host: host.feed(frame(FrameType.CURSOR, 9, bytes(8))),
    ],
)
def test_what_breaks_a_rule_is_noticed(say: Callable[[Host], object]) -> None:
    with pytest.raises(ProtocolError):
        say(Host.make())


def test_a_command_s_channel_takes_neither_records_nor_cursors(make_command: Callable[[Host], int]) -> None:
    for kind, payload in ((FrameType.PROCESS, record()), (FrameType.CURSOR, bytes(8))):
        host = Host.make()
        number = make_command(host)
        with pytest.raises(ProtocolError):
            host.feed(frame(kind, number, payload))


@pytest.fixture
def make_command() -> Callable[[Host], int]:
    """Opens a command beside the call; its number."""

    def make(host: Host) -> int:
        channel = Channel(host.connection, host.sink, 1000)
        assert host.connection.open(channel, b"", limit=1), "a call takes no command's turn"
        assert not host.connection.open(Channel(host.connection, host.sink, 1000), b"", limit=1)
        return channel.id

    return make


def test_calls_are_no_commands(make_command: Callable[[Host], int]) -> None:
    host = Host.make()
    number = make_command(host)
    assert [channel.id for channel in host.connection.open_channels] == [number]


def test_a_flood_of_small_pieces_costs_no_object_each() -> None:
    host = Host.make(window=100_000)
    position = 0
    for _ in range(20_000):
        host.cursor(position)
        host.data(b"x", 1)
        host.data(b"y", 2)
        position += 4
    pieces = host.sink.take()
    assert len(pieces) < 1100
    assert sum(len(piece.data) for piece in pieces) == 40_000
    assert sum(piece.lost for piece in pieces) == 2 * 19_999


def test_the_end_of_the_session_ends_a_call() -> None:
    host = Host.make()
    host.connection.fail(SandboxError.__new__(SandboxError, "gone"))
    assert isinstance(host.call.outcome, SandboxError)
    gc.collect()
