"""A connection of the sandbox to its proxy, from its first byte to its end, without sockets: every order is tried."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxkit import Network
from sandboxkit._tunnels import Closed
from sandboxkit.egress._client import Client

from .fakes import FakeLine, FakeWay

GET = b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST http://a.test/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST http://a.test/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
CONNECT = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
SOCKS = b"\5\1\0\5\1\0\3\6a.test\1\xbb"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def opened(
    network: Network | None = None, *, room: int = 10**9, takes: bool = True
) -> tuple[FakeWay, FakeLine, Client]:
    way, line = FakeWay(network, takes=takes), FakeLine(room)
    client = Client(way)
    client.start(line)
    return way, line, client


def test_a_request_and_the_next_one_on_the_same_connection() -> None:
    way, line, client = opened()
    for number in (1, 2):
        client.received(GET)
        assert line.paused
        upstream = way.upstreams[-1]
        upstream.connect()
        assert bytes(upstream.sent) == b"GET /x HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n"
        upstream.answer(OK)
        assert line.data.endswith(b"\r\n\r\nhi")
        assert line.data.count(b"HTTP/1.1 200 ") == number
        assert upstream.is_over
        assert not line.eof
        assert not line.paused
    assert [event.verdict for event in way.events] == ["allowed", "allowed"]


@pytest.mark.parametrize("request_bytes", [POST, CHUNKED])
def test_a_body_goes_out_as_it_comes(request_bytes: bytes) -> None:
    way, line, client = opened()
    for byte in request_bytes[:-1]:
        client.received(bytes([byte]))
    client.received(request_bytes[-1:])
    way.upstreams[0].connect()
    assert b"hello" in way.upstreams[0].sent
    way.upstreams[0].answer(OK)
    assert line.data.endswith(b"hi")


@pytest.mark.parametrize(
    ("asked", "granted"), [(CONNECT, b"HTTP/1.1 200 Connection established\r\n\r\n"), (SOCKS, b"")]
)
def test_bytes_both_ways_and_half_closes(asked: bytes, granted: bytes) -> None:
    way, line, client = opened()
    client.received(asked + b"early")
    (upstream,) = way.upstreams
    assert str(upstream.target) == "a.test:443"
    assert not upstream.sent
    upstream.connect()
    assert bytes(upstream.sent) == b"early"
    assert line.data.endswith(granted)
    client.received_eof()
    assert upstream.eof
    upstream.answer(b"late")
    assert line.data.endswith(b"late")
    assert not upstream.is_over
    upstream.end()
    assert line.eof
    assert upstream.is_over
    assert [(event.verdict, event.reason, event.bytes_out, event.bytes_in) for event in way.events] == [
        ("allowed", "", 5, 4)
    ]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (CONNECT.replace(b"a.test", b"no.test"), b"HTTP/1.1 403 "),
        (GET.replace(b"a.test", b"no.test"), b"HTTP/1.1 403 "),
        (SOCKS.replace(b"a.test", b"c.test"), b"\5\0\5\2"),
    ],
)
def test_a_denial(asked: bytes, answer: bytes) -> None:
    way, line, client = opened()
    client.received(asked)
    assert line.data.startswith(answer)
    assert line.eof
    assert not way.upstreams
    assert [event.verdict for event in way.events] == ["denied"]
    client.received(b"more of it" * 1000)
    client.received_eof()
    assert way.went == [client]


@pytest.mark.parametrize(
    ("asked", "answer"), [(CONNECT, b"HTTP/1.1 504 "), (GET, b"HTTP/1.1 504 "), (SOCKS, b"\5\0\5\6")]
)
def test_what_is_not_reached(asked: bytes, answer: bytes) -> None:
    way, line, client = opened()
    client.received(asked)
    way.upstreams[0].fail()
    assert line.data.startswith(answer)
    assert [(event.verdict, event.reason) for event in way.events] == [("failed", "no answer")]


@pytest.mark.parametrize("first", [b"", b"G", b"GET http://a.test/ HT", b"\5", b"\5\1\0\5\1"])
def test_who_is_slow_to_ask_is_cut_off(first: bytes) -> None:
    way, line, client = opened()
    if first:
        client.received(first)
    way.pass_time()
    assert line.was_reset
    assert [(event.verdict, event.reason) for event in way.events] == [("failed", "it took too long to ask")]


def test_an_idle_connection_is_cut_off_and_not_told_about_again() -> None:
    way, line, client = opened()
    client.received(GET)
    way.upstreams[0].connect()
    way.upstreams[0].answer(OK)
    way.pass_time()
    assert line.was_reset
    assert len(way.events) == 1


def test_a_client_that_does_not_close_is_cut_off() -> None:
    way, line, client = opened()
    client.received(b"no request at all\r\n\r\n")
    assert line.eof
    assert not line.was_reset
    way.pass_time()
    assert line.was_reset
    assert way.went == [client]


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000,
    ],
)
def test_an_outside_that_answers_nonsense(answer: bytes) -> None:
    way, line, client = opened()
    client.received(GET)
    way.upstreams[0].connect()
    way.upstreams[0].answer(answer)
    assert line.data.startswith(b"HTTP/1.1 502 ")
    assert [event.verdict for event in way.events] == ["failed"]
    assert way.upstreams[0].is_over


def test_a_response_that_is_cut_short_is_seen_so() -> None:
    way, line, client = opened()
    client.received(GET)
    way.upstreams[0].connect()
    way.upstreams[0].answer(OK[:-1])
    way.upstreams[0].end()
    assert line.was_reset
    assert [event.verdict for event in way.events] == ["failed"]


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    way, line, client = opened()
    client.received(GET)
    way.upstreams[0].connect()
    way.upstreams[0].answer(b"HTTP/1.0 200 OK\r\n\r\nabc")
    way.upstreams[0].end()
    assert bytes(line.data).endswith(b"3\r\nabc\r\n0\r\n\r\n")
    assert [event.verdict for event in way.events] == ["allowed"]


def test_an_early_answer_ends_the_connection() -> None:
    way, line, client = opened()
    client.received(POST[:-3])
    way.upstreams[0].connect()
    way.upstreams[0].answer(OK)
    assert line.data.endswith(b"hi")
    assert line.eof
    client.received(b"llo" + GET)
    assert len(way.upstreams) == 1


def test_an_interim_answer_is_passed_on() -> None:
    way, line, client = opened()
    client.received(POST.replace(b"Content-Length", b"Expect: 100-continue\r\nContent-Length")[:-5])
    way.upstreams[0].connect()
    assert b"expect: 100-continue" in way.upstreams[0].sent
    way.upstreams[0].answer(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert line.data.startswith(b"HTTP/1.1 100 ")
    client.received(b"hello")
    way.upstreams[0].answer(OK)
    assert line.data.endswith(b"hi")


def test_credentials_are_put_in_and_theirs_taken_out() -> None:
    network = Network.allow(["a.test"], credentials={"a.test": {"Authorization": "s3cret"}})
    way, line, client = opened(network)
    client.received(GET.replace(b"\r\n\r\n", b"\r\nAuthorization: mine\r\n\r\n"))
    (upstream,) = way.upstreams
    assert (upstream.target.protocol, upstream.target.port) == ("https", 443)
    upstream.connect()
    assert b"s3cret" in upstream.sent
    assert b"mine" not in upstream.sent
    assert b"host: a.test\r\n" in upstream.sent
    upstream.answer(OK)
    assert b"s3cret" not in line.data
    assert "s3cret" not in repr(way.events)


def test_a_sandbox_that_does_not_read_is_not_read_for() -> None:
    way, line, client = opened(room=0)
    client.received(CONNECT)
    way.upstreams[0].connect()
    for _ in range(1000):
        way.upstreams[0].answer(bytes(65536))
    assert client.waiting < 400_000
    assert way.upstreams[0].paused
    line.room = 10**9
    client.writable()
    assert not way.upstreams[0].paused
    assert client.waiting == 0


@pytest.mark.parametrize("asked", [CONNECT, POST.replace(b": 5", b": 99999999")])
def test_an_outside_that_does_not_read_is_not_read_for(asked: bytes) -> None:
    way, line, client = opened(takes=False)
    client.received(asked)
    way.upstreams[0].connect()
    while not line.paused:
        client.received(bytes(65536))
    assert len(way.upstreams[0].sent) < 400_000


ACTIONS = st.one_of(
    st.tuples(st.just("feed"), st.sampled_from([GET, POST, CHUNKED, CONNECT, SOCKS, b"\5", b"\0", b"\r\n", b"G"])),
    st.tuples(st.just("feed"), st.binary(min_size=1, max_size=100)),
    st.tuples(st.sampled_from(["feed_part"]), st.sampled_from([GET, POST, CHUNKED, CONNECT, SOCKS])),
    st.tuples(
        st.just("answer"), st.sampled_from([OK, OK[:20], b"HTTP/1.1 ", b"\r\n\r\n", b"0\r\n\r\n", bytes(70_000)])
    ),
    st.tuples(
        st.sampled_from(["sandbox_eof", "connect", "end", "fail", "writable", "room", "time", "closed"]), st.just(b"")
    ),
)


class Play:
    """Does to a connection what can be done to it at the moment."""

    def __init__(self, way: FakeWay, line: FakeLine, client: Client) -> None:
        self._way = way
        self._line = line
        self._client = client
        self._eof = False
        self.is_over = False

    def act(self, action: str, data: bytes) -> None:
        getattr(self, f"_{action}", self._of_outside)(action, data)
        self.is_over = self.is_over or self._line.was_reset

    def _feed(self, action: str, data: bytes, size: int = 1000) -> None:
        for start in range(0, len(data), size):
            if not self._eof and not self._line.paused:
                self._client.received(data[start : start + size])

    def _feed_part(self, action: str, data: bytes) -> None:
        self._feed(action, data, 7)

    def _sandbox_eof(self, action: str, data: bytes) -> None:
        if not self._eof and not self._line.paused:
            self._eof = True
            self._client.received_eof()

    def _writable(self, action: str, data: bytes) -> None:
        self._client.writable()

    def _room(self, action: str, data: bytes) -> None:
        self._line.room = 10**9
        self._client.writable()

    def _time(self, action: str, data: bytes) -> None:
        self._way.pass_time()

    def _closed(self, action: str, data: bytes) -> None:
        self.is_over = True
        self._client.closed(Closed(0))

    def _of_outside(self, action: str, data: bytes) -> None:
        if self._way.upstreams:
            upstream = self._way.upstreams[-1]
            getattr(upstream, action)(*((data,) if action == "answer" else ()))


@settings(max_examples=500, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.sampled_from([0, 10, 10**9]), st.booleans(), st.sampled_from([None, 1, 100]))
def test_whatever_comes_nothing_is_raised_and_each_is_told_once(
    actions: list[tuple[str, bytes]], room: int, takes: bool, most: Any
) -> None:
    network = Network.allow(["a.test", "*.b.test:8443"], max_connection_bytes=most)
    way, line, client = opened(network, room=room, takes=takes)
    play = Play(way, line, client)
    for action, data in actions:
        if not play.is_over:
            play.act(action, data)
        assert client.waiting < 600_000
    client.end()
    assert way.went == [client]
    assert len(way.events) == client.asked >= 1
    assert all(upstream.is_over for upstream in way.upstreams)
