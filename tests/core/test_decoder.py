"""Decoding: the same calls however the stream is cut, and nothing but ProtocolError from whatever a container sends."""

from __future__ import annotations

import struct
import threading
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import SessionLostError
from sandboxkit._channel import Channel, Connection
from sandboxkit._frames import HEADER, MAX_PAYLOAD, Exit, FrameType, ProtocolError, Refusal, Stream
from sandboxkit._session import AgentSession
from sandboxkit.streams import SocketStream

from .fake_agent import FakeAgent, frame, hello

WINDOW = 100_000
CHANNELS = (1, 2, 3)
END = struct.pack("<BBBBIQQQH", 0, 0, 0, 0, 3, 0, 0, 0, 0)


class Silent:
    """A stream on which nothing comes and to which anything can be sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.ended = threading.Event()

    def send(self, data: memoryview) -> int:
        self.sent += data
        return len(data)

    def receive(self) -> memoryview:
        self.ended.wait()
        return memoryview(b"")

    def diagnostics(self) -> str:
        return ""

    def shutdown(self) -> None:
        self.ended.set()

    def close(self) -> None:
        self.ended.set()


class Recorder:
    """A sink that keeps all, and gives credit back only by hand."""

    def __init__(self) -> None:
        self.received = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}

    def feed(self, stream: Stream, chunk: memoryview) -> bool:
        self.received[stream] += chunk
        return False


@attrs.frozen
class Host:
    """A connection that a test feeds, with some open channels."""

    connection: Connection
    channels: Sequence[Channel]
    sinks: Sequence[Recorder]

    @classmethod
    def make(cls) -> Host:
        connection = Connection(Silent())
        sinks = [Recorder() for _ in CHANNELS]
        channels = [Channel(connection, sink, WINDOW) for sink in sinks]
        for channel in channels:
            assert connection.open(channel, b"", limit=10)
        return cls(connection, channels, sinks)

    def feed(self, data: bytes) -> None:
        self.connection._decoder.feed(memoryview(data))

    def seen(self) -> object:
        """All that frames can change."""
        return (
            None if self.connection._hello is None else dict(self.connection._hello.facts),
            [{stream: bytes(data) for stream, data in sink.received.items()} for sink in self.sinks],
            [(channel.pid, channel.outcome, channel.input_credit, channel.granted) for channel in self.channels],
            sorted(self.connection._channels),
        )


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Frames that an honest agent may send to the open channels."""
    frames = [hello()]
    for number in CHANNELS:
        for kind in draw(st.lists(st.sampled_from(["data", "started", "window", "pong"]), max_size=6)):
            if kind == "data":
                payload = draw(st.binary(max_size=300))
                frames.append(frame(FrameType.DATA, number, payload, draw(st.sampled_from([1, 2]))))
            elif kind == "started":
                frames.append(frame(FrameType.STARTED, number, struct.pack("<I", draw(st.integers(0, 2**32 - 1)))))
            elif kind == "window":
                frames.append(frame(FrameType.WINDOW, number, struct.pack("<I", draw(st.integers(0, 65536)))))
            else:
                frames.append(frame(FrameType.PONG, 0, draw(st.binary(max_size=8))))
    frames[1:] = draw(st.permutations(frames[1:]))
    for number in CHANNELS:
        last = draw(st.sampled_from(["exit", "error", "open"]))
        if last == "exit":
            frames.append(frame(FrameType.EXIT, number, END))
        elif last == "error":
            frames.append(frame(FrameType.ERROR, number, struct.pack("<HH", 2, 22) + b"no"))
    return frames


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(conversations(), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cut_of_the_stream_means_the_same(frames: list[bytes], places: list[int]) -> None:
    whole, pieces, bytewise = Host.make(), Host.make(), Host.make()
    data = b"".join(frames)
    whole.feed(data)
    for piece in cut(data, places):
        pieces.feed(piece)
    for index in range(len(data)):
        bytewise.feed(data[index : index + 1])
    assert whole.seen() == pieces.seen() == bytewise.seen()


@given(
    conversations(),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=16), st.integers(0, 16)), min_size=1, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=10),
)
def test_any_damage_is_noticed_or_harmless(
    frames: list[bytes], damage: list[tuple[int, bytes, int]], places: list[int]
) -> None:
    data = bytearray(b"".join(frames))
    for place, inserted, removed in damage:
        at = place % (len(data) + 1)
        data[at : at + removed] = inserted
    survives(bytes(data), places)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=10), st.booleans())
def test_garbage(data: bytes, places: list[int], after_hello: bool) -> None:
    survives((hello() if after_hello else b"") + data, places)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 40), st.sampled_from([MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**31, 2**32 - 1])),
            st.one_of(st.integers(0, 4), st.sampled_from([2**31, 2**32 - 1])),
            st.one_of(st.sampled_from([*FrameType]), st.integers(0, 255)),
            st.integers(0, 3),
            st.sampled_from([0, 0, 0, 1]),
        ),
        max_size=20,
    ),
    st.binary(min_size=40, max_size=40),
)
def test_well_formed_headers_of_nonsense(headers: list[tuple[int, int, int, int, int]], filling: bytes) -> None:
    survives(hello() + b"".join(HEADER.pack(*header) + filling[: header[0]] for header in headers), [])


def survives(data: bytes, places: list[int]) -> None:
    host = Host.make()
    decoder = host.connection._decoder
    try:
        for piece in cut(data, places):
            host.feed(piece)
    except ProtocolError:
        pass
    assert len(decoder._payload) <= MAX_PAYLOAD
    assert len(decoder._header) <= HEADER.size
    for channel, sink in zip(host.channels, host.sinks, strict=True):
        assert sum(map(len, sink.received.values())) <= channel.window


HOSTILE = {
    "a frame of 4 GiB": (HEADER.pack(2**32 - 1, 1, FrameType.EXIT, 0, 0), "a frame of 4294967295 bytes"),
    "DATA a byte too long": (HEADER.pack(MAX_PAYLOAD + 1, 1, FrameType.DATA, 1, 0), "a frame of 65537 bytes"),
    "reserved bits": (HEADER.pack(0, 1, FrameType.EXIT, 0, 1), "reserved bits"),
    "an unknown type": (frame(0x7F, 1), "unknown type 0x7f"),
    "type 0": (frame(0, 1), "unknown type 0x00"),
    "a type of the host's": (frame(FrameType.EXEC, 4), "unknown type 0x10"),
    "EOF": (frame(FrameType.EOF, 1, flags=1), "for channel 1, which is none"),
    "a second HELLO": (hello(), "a second HELLO"),
    "HELLO on a channel": (frame(FrameType.HELLO, 1, hello()[12:]), "a second HELLO"),
    "DATA for a channel that is not open": (frame(FrameType.DATA, 4, b"x", 1), "channel 4, which is not open"),
    "DATA on the session's channel": (frame(FrameType.DATA, 0, b"x", 1), "channel 0, which is not open"),
    "DATA on a channel of the agent's": (frame(FrameType.DATA, 2**31, b"x", 1), "which is not open"),
    "DATA on stdin": (frame(FrameType.DATA, 1, b"x", 0), "output on stream 0"),
    "DATA on stream 3": (frame(FrameType.DATA, 1, b"x", 3), "output on stream 3"),
    "EXIT for a channel that is not open": (frame(FrameType.EXIT, 4, END), "channel 4, which is not open"),
    "a second EXIT": (frame(FrameType.EXIT, 1, END) * 2, "channel 1, which is not open"),
    "DATA after EXIT": (frame(FrameType.EXIT, 1, END) + frame(FrameType.DATA, 1, b"x", 1), "channel 1, which is not"),
    "ERROR for a channel that is not open": (frame(FrameType.ERROR, 4, b"\1\0\0\0"), "which is not open"),
    "ERROR too short": (frame(FrameType.ERROR, 1, b"\1\0\0"), "an ERROR of 3 bytes"),
    "STARTED too long": (frame(FrameType.STARTED, 1, bytes(5)), "a number of 5 bytes"),
    "STARTED for nobody": (frame(FrameType.STARTED, 9, bytes(4)), "channel 9, which is not open"),
    "WINDOW too short": (frame(FrameType.WINDOW, 1, b""), "a number of 0 bytes"),
    "WINDOW beyond 2^31": (frame(FrameType.WINDOW, 1, struct.pack("<I", 2**31 - 1)), "more credit than"),
    "WINDOW of all ones": (frame(FrameType.WINDOW, 1, b"\xff" * 4), "more credit than"),
    "PONG on a channel": (frame(FrameType.PONG, 1), "a malformed PONG"),
    "PONG of 9 bytes": (frame(FrameType.PONG, 0, bytes(9)), "a malformed PONG"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_forbidden(name: str) -> None:
    data, message = HOSTILE[name]
    host = Host.make()
    host.feed(hello())
    with pytest.raises(ProtocolError) as caught:
        host.feed(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in FrameType if kind is not FrameType.HELLO])
def test_nothing_may_come_before_hello(kind: FrameType) -> None:
    with pytest.raises(ProtocolError, match="before HELLO"):
        Host.make().feed(frame(kind, 1, b""))


def test_credit_is_exact() -> None:
    host = Host.make()
    host.feed(hello() + frame(FrameType.DATA, 1, bytes(60_000), 1) + frame(FrameType.DATA, 1, bytes(40_000), 2))
    host.feed(frame(FrameType.DATA, 1, b"", 1))
    host.channels[0].grant(30_000)
    host.feed(frame(FrameType.DATA, 1, bytes(30_000), 1))
    with pytest.raises(ProtocolError, match="more output than it was granted"):
        host.feed(frame(FrameType.DATA, 1, b"x", 1))


def test_each_channel_has_its_own_credit() -> None:
    host = Host.make()
    host.feed(hello() + frame(FrameType.DATA, 1, bytes(60_000), 1) + frame(FrameType.DATA, 1, bytes(40_000), 1))
    host.feed(frame(FrameType.DATA, 2, bytes(60_000), 1) + frame(FrameType.DATA, 2, bytes(40_000), 1))


def test_credit_is_judged_by_the_header_alone() -> None:
    host = Host.make()
    host.feed(hello())
    with pytest.raises(ProtocolError, match="more output than it was granted"):
        host.feed(frame(FrameType.DATA, 1, bytes(65_536), 1) + HEADER.pack(65_536, 1, FrameType.DATA, 1, 0))


def test_announced_lengths_allocate_nothing() -> None:
    tracemalloc.start()
    try:
        host = Host.make()
        host.feed(hello())
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        host.feed(HEADER.pack(MAX_PAYLOAD, 1, FrameType.EXIT, 0, 0))
        with pytest.raises(ProtocolError):
            Host.make().feed(hello() + HEADER.pack(2**32 - 1, 1, FrameType.DATA, 1, 0))
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_agent_ends_the_session(name: str, session: AgentSession, agent: FakeAgent) -> None:
    # Channels 1 to 3 run when the frame comes: those end that it does not end itself, and so does whatever comes later.
    lost: list[SessionLostError] = []

    def run() -> None:
        try:
            session.exec("scripted")
        except SessionLostError as error:
            lost.append(error)

    threads = [threading.Thread(target=run) for _ in CHANNELS]
    for thread in threads:
        thread.start()
    for _ in threads:
        agent.job()
    agent.send(HOSTILE[name][0])
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(lost) >= 2
    assert len({id(error) for error in lost}) == len(lost), "each thread gets an error, and a traceback, of its own"
    with pytest.raises(SessionLostError, match=r"broke the agent's protocol .*Create a new session"):
        session.exec("true")
    assert session.state.value == "lost"


def test_an_agent_that_is_none_says_so() -> None:
    agent = FakeAgent(b"HTTP/1.1 400 Bad Request\r\n")
    connection = Connection(SocketStream(agent.host))
    connection.start()
    began = time.monotonic()
    with pytest.raises(SessionLostError, match="broke the agent's protocol"):
        connection.wait_hello(30)
    assert time.monotonic() - began < 10
    connection.close(SessionLostError("over"))
    agent.close()


def test_a_failure_of_our_own_wakes_every_caller(
    session: AgentSession, connection: Connection, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(chunk: memoryview) -> None:
        raise ZeroDivisionError("a defect")

    stream = session.exec_stream("scripted")
    monkeypatch.setattr(stream._run._sink, "feed", lambda stream, chunk: fail(chunk))  # type: ignore[union-attr]
    agent.job().write(b"x")
    with pytest.raises(SessionLostError, match="a defect"):
        stream.wait()


def test_outcomes_are_the_agent_s(session: AgentSession, agent: FakeAgent) -> None:
    host = Host.make()
    host.feed(hello() + frame(FrameType.EXIT, 1, END) + frame(FrameType.ERROR, 2, b"\2\0\0\0bad"))
    assert isinstance(host.channels[0].outcome, Exit)
    assert isinstance(host.channels[1].outcome, Refusal)
    assert host.channels[2].outcome is None
    assert list(host.connection._channels) == [3]
