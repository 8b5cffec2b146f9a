"""The relay by itself: moments at which the reader thread, a closed socket or the end of descriptors comes between."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxkit import SandboxError, SessionLostError, _relay
from sandboxkit._pump import Pump
from sandboxkit._relay import Conduit, Relay, Watch


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Nobody holds it, so nothing runs but what a test runs."""
    made = Relay(SimpleNamespace(raise_if_unusable=lambda: None))  # type: ignore[arg-type]
    yield made
    made._close()


class LateTunnel:
    """One whose credit comes right behind the look that found none."""

    def __init__(self) -> None:
        self.ended = False
        self.resets = 0
        self.sink: Any = None
        self._credit = 0

    @property
    def credit(self) -> int:
        found, self._credit = self._credit, 1000
        if not found:
            self.sink.credited()
        return found

    def accept(self, sink: Any) -> None:
        self.sink = sink

    def send(self, data: memoryview) -> int:
        return min(len(data), self.credit)

    def consumed(self, size: int) -> None:
        pass

    def reset(self) -> None:
        self.resets += 1


class Handler:
    def received(self, data: bytes) -> None:
        raise ValueError(data)

    def received_eof(self) -> None: ...
    def writable(self) -> None: ...
    def closed(self, end: object) -> None: ...


class Holder:
    def __init__(self) -> None:
        self.told: list[SandboxError | None] = []

    def end(self, error: SandboxError | None) -> None:
        self.told.append(error)


def test_credit_that_comes_behind_the_look_wakes_a_pump(relay: Relay) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        tunnel: Any = LateTunnel()
        pump = tunnel.sink = Pump(relay, ours, lambda pump: None)
        pump.start(tunnel)
        assert relay._posted, "it waits for ever"


def test_credit_that_comes_behind_the_look_is_used_by_a_conduit(relay: Relay) -> None:
    tunnel: Any = LateTunnel()
    conduit = Conduit(relay, tunnel, Handler())
    assert conduit.send(b"x" * 10) == 10


def test_a_handler_that_raises_leaves_no_connection_open(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    tunnel: Any = LateTunnel()
    conduit = Conduit(relay, tunnel, Handler())
    conduit.received(memoryview(b"x"))
    relay._run_posted()
    assert [hook.exc_type for hook in raised] == [ValueError]
    assert tunnel.resets == 1


def test_a_new_socket_hears_nothing_of_one_whose_number_it_got(relay: Relay) -> None:
    relay._open()
    pairs = [socket.socketpair() for _ in range(3)]
    watches: list[Watch] = []
    called: list[object] = []

    def replace_the_other(mine: int) -> None:
        called.append(mine)
        other = watches[1 - mine]
        number = other.sock.fileno()
        other.close()
        other.sock.close()
        fresh = socket.socket(fileno=os.dup2(pairs[2][0].fileno(), number))
        watches.append(relay.watch(fresh, lambda readable, writable: called.append("fresh")))
        watches[-1].want(read=True)

    for mine, (ours, theirs) in enumerate(pairs[:2]):
        theirs.send(b"x")
        watches.append(relay.watch(ours, lambda readable, writable, mine=mine: replace_the_other(mine)))  # type: ignore[misc]
        watches[-1].want(read=True)
    relay._turn()
    assert called in ([0], [1])
    for sock in (*(end for pair in pairs for end in pair), watches[-1].sock):
        sock.close()


def test_a_forked_child_lets_go_of_sockets_that_wait_for_nothing(relay: Relay) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        relay._open()
        watch = relay.watch(ours, lambda readable, writable: None)
        watch.want(read=True)
        watch.want(errors=False)
        relay.forget()
        assert ours.fileno() == -1


@pytest.mark.filterwarnings("error")
def test_without_descriptors_it_begins_later(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, epoll = iter(range(10)), select.epoll

    def scarce() -> select.epoll:
        if next(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return epoll()

    monkeypatch.setattr(_relay.select, "epoll", scarce)  # type: ignore[attr-defined]
    holder, ran = Holder(), threading.Event()
    relay.hold(holder)
    relay.post(ran.set)
    assert ran.wait(20)
    lost = SessionLostError("over")
    relay.session_ended(lost)
    relay.join(20)
    assert holder.told == [lost]


def test_the_end_is_told_also_without_descriptors(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce() -> select.epoll:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(_relay.select, "epoll", scarce)  # type: ignore[attr-defined]
    holder, lost = Holder(), SessionLostError("over")
    relay.hold(holder)
    relay.session_ended(lost)
    relay.join(20)
    assert holder.told == [lost]


def test_who_gets_no_thread_holds_nothing(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    holder = Holder()
    with pytest.raises(RuntimeError):
        relay.hold(holder)
    assert not relay.owns(holder)
    relay.session_ended(SessionLostError("over"))
