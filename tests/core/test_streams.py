"""The engines' attach format, however the kernel cuts it, and sockets that end or say something else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import EngineError, SessionLostError
from sandboxkit._channel import Connection
from sandboxkit.streams import MultiplexedStream, SocketStream

from .fake_agent import hello


def headed(stream: int, payload: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(payload)) + payload


class Cut:
    """A socket whose `recv_into` gives the next piece of what was sent, never more."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = [piece for piece in pieces if piece]

    def settimeout(self, timeout: float) -> None:
        pass

    def send(self, data: memoryview) -> int:
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        if not self.pieces:
            return 0
        piece = self.pieces[0][: len(buffer)]
        self.pieces[0] = self.pieces[0][len(piece) :]
        if not self.pieces[0]:
            del self.pieces[0]
        buffer[: len(piece)] = piece
        return len(piece)


def all_of(stream: SocketStream) -> bytes:
    received = bytearray()
    while chunk := stream.receive():
        received += chunk
    return bytes(received)


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 1, 2]), st.binary(max_size=200)), max_size=20),
    places=st.lists(st.integers(0, 5000), max_size=20),
    early=st.integers(0, 5000),
)
def test_any_cut_gives_stdout_whole_and_keeps_stderr(
    frames: list[tuple[int, bytes]], places: list[int], early: int
) -> None:
    data = b"".join(headed(*frame) for frame in frames)
    early %= len(data) + 1
    rest = data[early:]
    edges = [0, *sorted({place % (len(rest) + 1) for place in places}), len(rest)]
    pieces = [rest[start:end] for start, end in pairwise(edges)]
    stream = MultiplexedStream(Cut(pieces), early=data[:early])  # type: ignore[arg-type]
    assert all_of(stream) == b"".join(payload for kind, payload in frames if kind == 1)
    errors = b"".join(payload for kind, payload in frames if kind == 2)
    assert stream.diagnostics() == errors.decode("utf-8", "replace").strip()


@given(st.integers(0, 300), st.binary(min_size=1, max_size=300))
def test_a_payload_larger_than_the_buffer(extra: int, tail: bytes) -> None:
    payload = bytes(range(256)) * 2048 + b"e" * extra
    stream = MultiplexedStream(Cut([headed(1, payload), headed(2, b"oops\n"), headed(1, tail)]))  # type: ignore[arg-type]
    assert all_of(stream) == payload + tail
    assert stream.diagnostics() == "oops"


@given(st.binary(min_size=8, max_size=8).filter(lambda header: header[0] not in (1, 2) or header[1:4] != b"\0\0\0"))
def test_a_header_that_is_none_is_an_oserror(header: bytes) -> None:
    stream = MultiplexedStream(Cut([headed(1, b"good"), header + b"rest"]))  # type: ignore[arg-type]
    assert bytes(stream.receive()) == b"good"
    with pytest.raises(OSError, match="not in its own format"):
        stream.receive()


def test_the_last_8_kib_of_stderr_are_kept() -> None:
    flood = b"".join(headed(2, b"%06d\n" % number) for number in range(10_000))
    stream = MultiplexedStream(Cut([flood]))  # type: ignore[arg-type]
    assert all_of(stream) == b""
    assert len(stream._stderr) == 8192
    assert stream.diagnostics().endswith("009999")


def test_a_stream_that_ends_within_a_header_or_a_payload_just_ends() -> None:
    assert all_of(MultiplexedStream(Cut([headed(1, b"abc")[:-1]]))) == b"ab"  # type: ignore[arg-type]
    assert all_of(MultiplexedStream(Cut([headed(1, b"abc")[:5]]))) == b""  # type: ignore[arg-type]


def test_too_many_early_bytes_are_a_defect_of_the_backend() -> None:
    with pytest.raises(ValueError, match="early"):
        MultiplexedStream(Cut([]), early=bytes(300_000))  # type: ignore[arg-type]


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_another_format_ends_the_session_with_the_reason() -> None:
    with pair() as (ours, theirs):
        connection = Connection(MultiplexedStream(ours))
        connection.start()
        theirs.sendall(headed(2, b"agent: no such file\n") + b"garbage!")
        with pytest.raises(SessionLostError, match=r"not in its own format.*agent: no such file"):
            connection.wait_hello(10)
        connection.close(SessionLostError("over"))


def test_what_the_agent_said_is_told_when_it_ends() -> None:
    with pair() as (ours, theirs):
        connection = Connection(MultiplexedStream(ours))
        connection.start()
        theirs.sendall(headed(1, hello()) + headed(2, b"agent: a system call failed\n"))
        connection.wait_hello(10)
        theirs.shutdown(socket.SHUT_RDWR)
        connection._thread.join(10)
        with pytest.raises(SessionLostError, match="agent: a system call failed"):
            connection.raise_if_unusable()
        connection.close(SessionLostError("over"))


def test_a_receive_that_waits_is_tried_again() -> None:
    with pair() as (ours, theirs):
        connection = Connection(SocketStream(ours, timeout=0.01))
        connection.start()
        with pytest.raises(EngineError, match=r"did not answer within 0\.05 s"):
            connection.wait_hello(0.05)
        theirs.sendall(hello())
        assert connection.wait_hello(10).facts["arch"] == "x86_64"
        connection.close(SessionLostError("over"))


def test_shutdown_wakes_a_receive_and_close_is_idempotent() -> None:
    with pair() as (ours, _):
        stream, woken = SocketStream(ours), threading.Event()

        def receive() -> None:
            assert not stream.receive()
            woken.set()

        thread = threading.Thread(target=receive)
        thread.start()
        stream.shutdown()
        assert woken.wait(10)
        thread.join(10)
        stream.shutdown()
        stream.close()
        stream.close()


def test_a_peer_that_never_reads_ends_the_session_at_the_timeout() -> None:
    with pair() as (ours, theirs):
        connection = Connection(SocketStream(ours, timeout=0.05))
        connection.start()
        theirs.sendall(hello())
        connection.wait_hello(10)
        with pytest.raises(SessionLostError, match="timed out"):
            connection.send(bytes(64 << 20))
        connection.close(SessionLostError("over"))
