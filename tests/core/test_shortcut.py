"""The host's side of leaving the engine's stream: what it takes, what it refuses, what it does when it can't."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterator

import pytest

from sandboxkit._channel import Connection
from sandboxkit._frames import HEADER, FrameType, Hello
from sandboxkit._shortcut import Shortcut
from sandboxkit.errors import SessionLostError
from sandboxkit.streams import SocketStream
from tests.support.sockets import exactly

from .background import Call
from .fake_agent import frame, hello

TIMEOUT = 10.0


class Peer:
    """The agent's ends of both streams, spoken by hand."""

    def __init__(self) -> None:
        self.engine, host = socket.socketpair()
        self.own, self.offered = socket.socketpair()
        for sock in (self.engine, self.own):
            sock.settimeout(TIMEOUT)
        self.connection = Connection(SocketStream(host))
        self.connection.start()
        self.engine.sendall(hello(shortcut="1"))
        self.connection.wait_hello(TIMEOUT)

    def offer(self, descriptor: int | None = None, inode: int | None = None) -> None:
        number = self.offered.fileno() if descriptor is None else descriptor
        inode = os.fstat(self.offered.fileno()).st_ino if inode is None else inode
        self.engine.sendall(frame(FrameType.OFFER, 0, struct.pack("<IQ", number, inode)))

    def shorten(self) -> Call[None]:
        return Call(lambda: self.connection.shorten(os.getpid()))

    def shortened(self) -> None:
        work = self.shorten()
        assert received(self.engine) == FrameType.SHORTCUT
        self.offer()
        assert received(self.own) == FrameType.PING
        self.offered.close()
        self.own.sendall(frame(FrameType.PONG, 0))
        work.get()
        assert isinstance(self.connection._stream, Shortcut)

    def close(self) -> None:
        self.connection.close(SessionLostError("over"))
        for sock in (self.engine, self.own, self.offered):
            sock.close()


def received(sock: socket.socket) -> int:
    length, channel, kind, flags, _ = HEADER.unpack(exactly(sock, HEADER.size))
    assert (length, channel, flags) == (0, 0, 0)
    return int(kind)


@pytest.fixture
def peer() -> Iterator[Peer]:
    before = len(os.listdir("/proc/self/fd"))
    peer = Peer()
    yield peer
    peer.close()
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"


def is_lost(peer: Peer, match: str) -> None:
    peer.connection._thread.join(TIMEOUT)
    with pytest.raises(SessionLostError, match=match):
        peer.connection.raise_if_unusable()


def test_frames_travel_on_the_socket_that_was_taken(peer: Peer) -> None:
    peer.shortened()
    peer.connection.send(frame(FrameType.PING, 0))
    assert received(peer.own) == FrameType.PING


@pytest.mark.parametrize("wrong", ["none", "inode", "file", "not open"])
def test_an_offer_that_is_not_the_socket_changes_nothing(peer: Peer, wrong: str) -> None:
    work = peer.shorten()
    assert received(peer.engine) == FrameType.SHORTCUT
    with tempfile.TemporaryFile() as file:
        inode = os.fstat(file.fileno()).st_ino
        arguments = {
            "none": (2**32 - 1, 0),
            "inode": (None, 1),
            "file": (file.fileno(), inode),
            "not open": (99_999, 1),
        }
        peer.offer(*arguments[wrong])
        work.get()
    assert not isinstance(peer.connection._stream, Shortcut)
    peer.connection.send(frame(FrameType.PING, 0))
    assert received(peer.engine) == FrameType.PING


@pytest.mark.parametrize("why", ["an older agent", "variable", "process"])
def test_without_need_the_agent_is_not_asked(peer: Peer, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "variable":
        monkeypatch.setenv("SANDBOXKIT_SHORTCUT", "0")
    elif why == "an older agent":
        assert peer.connection._hello is not None
        peer.connection._hello = Hello({**peer.connection._hello.facts, "shortcut": ""})
    peer.connection.shorten(None if why == "process" else os.getpid())
    peer.connection.send(frame(FrameType.PING, 0))
    assert received(peer.engine) == FrameType.PING


@pytest.mark.parametrize(
    ("sent", "match"),
    [
        (frame(FrameType.OFFER, 0, struct.pack("<IQ", 5, 5)), "nobody asked for"),
        (frame(FrameType.OFFER, 0, b"short"), "an OFFER of 5 bytes"),
        (frame(FrameType.OFFER, 1, struct.pack("<IQ", 5, 5)), "on a command's channel"),
    ],
    ids=["unasked", "short", "on a channel"],
)
def test_a_wrong_offer_is_a_broken_protocol(peer: Peer, sent: bytes, match: str) -> None:
    peer.engine.sendall(sent)
    is_lost(peer, match)


def test_a_second_offer_is_a_broken_protocol(peer: Peer) -> None:
    peer.shortened()
    peer.own.sendall(frame(FrameType.OFFER, 0, struct.pack("<IQ", 5, 5)))
    is_lost(peer, "nobody asked for")


def test_an_offer_that_comes_late_is_a_broken_protocol(peer: Peer) -> None:
    work = peer.shorten()
    assert received(peer.engine) == FrameType.SHORTCUT
    peer.engine.sendall(frame(FrameType.PONG, 0))
    work.get()
    peer.offer()
    is_lost(peer, "nobody asked for")


def test_a_byte_on_the_engines_stream_is_a_broken_protocol(peer: Peer) -> None:
    peer.shortened()
    peer.engine.sendall(b"x")
    is_lost(peer, "after the shortcut was taken")


def test_the_end_of_the_engines_stream_ends_the_session(peer: Peer) -> None:
    peer.shortened()
    peer.engine.close()
    is_lost(peer, "Create a new session")


def test_the_end_of_the_shortcut_ends_the_session(peer: Peer) -> None:
    peer.shortened()
    peer.own.close()
    is_lost(peer, "Create a new session")


def test_an_agent_that_ends_instead_of_answering_is_no_hang(peer: Peer) -> None:
    work = peer.shorten()
    assert received(peer.engine) == FrameType.SHORTCUT
    peer.engine.close()
    with pytest.raises(SessionLostError):
        work.get()


def test_an_agent_that_ends_after_it_was_taken_is_no_hang(peer: Peer) -> None:
    work = peer.shorten()
    assert received(peer.engine) == FrameType.SHORTCUT
    peer.offer()
    assert received(peer.own) == FrameType.PING
    peer.own.close()
    with pytest.raises(SessionLostError):
        work.get()
