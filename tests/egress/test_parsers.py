"""What a sandbox sends is parsed as what it is: bytes of an adversary. No input or output."""

from __future__ import annotations

import ipaddress
import itertools
import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import Network
from sandboxkit._addresses import why_refused
from sandboxkit.egress._http import (
    HEAD_MAX,
    HttpError,
    error_response,
    find_head,
    parse_head,
    request_headers,
    response_headers,
)
from sandboxkit.egress._policy import Meter, Policy, Target
from sandboxkit.egress._socks import SocksError, SocksParser


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places) if a != b]


CUTS = st.lists(st.integers(0, 400), max_size=6)


# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "192.0.1.1",
        "172.15.255.255",
        "172.32.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
        "100.63.0.1",
    ],
)
def test_public_addresses(address: str) -> None:
    assert why_refused(address, private=False) is None
    assert why_refused(address, private=True) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"]
)
def test_private_addresses(address: str) -> None:
    assert why_refused(address, private=False)
    assert why_refused(address, private=True) is None
    assert why_refused(f"::ffff:{address}", private=True), "an embedded address is never reached"


def test_private_addresses_of_ipv6() -> None:
    for address in ("::1", "fd12:3456::1", "fc00::1"):
        assert why_refused(address, private=False)
        assert why_refused(address, private=True) is None


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "239.1.1.1", "240.0.0.1", "169.254.169.254"),
        *("169.254.1.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
        *("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
        *(
            "::",
            "::127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
        ),
        *("2001::1", "2001:db8::1", "3fff::1", "fe80::1", "fec0::1", "ff02::1", "4000::1", "100::1"),
    ],
)
def test_addresses_that_are_never_reached(address: str) -> None:
    assert why_refused(address, private=False)
    assert why_refused(address, private=True)


@given(
    st.one_of(
        st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address), st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)
    )
)
def test_what_python_knows_as_special_is_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    special = address.is_multicast or address.is_loopback or address.is_link_local or address.is_unspecified
    if special or address.is_private or address.is_reserved:
        assert why_refused(str(address), private=False)


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_refused_in_every_form(number: int) -> None:
    for form in (number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert why_refused(str(ipaddress.IPv6Address(form)), private=True) or form == 1  # ::1 is itself


def test_no_address() -> None:
    for text in ("", "example.com", "1.2.3", "1.2.3.4.5", "fe80::1%eth0x/"):
        with pytest.raises(ValueError, match=r"."):
            why_refused(text, private=True)


# The list.


def test_decisions() -> None:
    policy = Policy(Network.allow(["a.test", "*.b.test:8443", "9.9.9.9"], private=["c.test:1"]))

    def decided(host: str, port: int) -> tuple[bool, bool]:
        decision = policy.decide(Target("connect", host, port))
        return not decision.refusal, decision.private

    assert decided("a.test", 443) == (True, False)
    assert decided("a.test", 8443) == (False, False)
    assert decided("x.b.test", 8443) == (True, False)
    assert decided("b.test", 8443) == (False, False)
    assert decided("c.test", 1) == (True, True)
    assert decided("9.9.9.9", 80) == (True, False)


def test_credentials_are_for_their_host_and_port() -> None:
    headers = {"Authorization": "x"}
    policy = Policy(Network.allow(["a.test", "b.test:8443"], credentials={"a.test": headers, "b.test:8443": headers}))
    assert policy.credentials("a.test", 80) == (443, headers)
    assert policy.credentials("a.test", 443) == (443, headers)
    assert policy.credentials("a.test", 8080) is None
    assert policy.credentials("b.test", 8443) == (8443, headers)
    assert policy.credentials("b.test", 80) is None
    assert policy.credentials("x.a.test", 80) is None


def test_credentials_that_are_not_there_are_missed() -> None:
    made = Network.allow(["a.test"], credentials={"a.test": {"Authorization": "x"}})
    attached = Policy(attrs.evolve(made, credentials={}))
    assert "give" in attached.decide(Target("http", "a.test", 80)).refusal
    assert not attached.decide(Target("connect", "a.test", 443)).refusal
    assert not Policy(made).decide(Target("https", "a.test", 443)).refusal


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100), st.integers(1, 100))
def test_a_meter_gives_what_there_is(sizes: list[int], own: int, shared: int) -> None:
    total = Meter(shared)
    meter = Meter(own, total)
    granted = [meter.spend(size) for size in sizes]
    assert sum(granted) == min(sum(sizes), own, shared)
    assert meter.is_spent == (sum(granted) == min(own, shared))
    assert Meter(None).spend(10**12) == 10**12


# SOCKS.


@given(st.binary(max_size=600), CUTS)
def test_any_bytes_are_a_socks_request_or_an_error(data: bytes, cuts: list[int]) -> None:
    parser = SocksParser()
    try:
        for piece in pieces(data, cuts):
            answer, asked = parser.feed(piece)
            assert len(answer) <= 2
            if asked is not None:
                host, port = asked
                assert host.isascii()
                assert 1 <= port <= 65535
                return
    except SocksError as error:
        refused = error
    else:
        return
    assert len(refused.answer) in (0, 2, 10)


@given(
    st.sampled_from(["example.com", "EXAMPLE.com.", "1.2.3.4", "2001:db8::1"]),
    st.integers(1, 65535),
    st.binary(max_size=50),
    CUTS,
)
def test_a_socks_request_in_any_pieces(host: str, port: int, rest: bytes, cuts: list[int]) -> None:
    name = host.encode()
    data = b"\5\2\0\2" + b"\5\1\0\3" + bytes([len(name)]) + name + struct.pack(">H", port) + rest
    parser, answers = SocksParser(), b""
    found = None
    parts = pieces(data, cuts)
    while found is None:
        answer, found = parser.feed(parts.pop(0))
        answers += answer
    assert found == (host.lower().rstrip("."), port)
    assert answers == b"\5\0"
    assert parser.rest + b"".join(parts) == rest


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\4\1\0\x50\1\2\3\4\0", b""),
        (b"\5\1\2", b"\5\xff"),
        (b"\5\0", b"\5\xff"),
        (b"\5\1\0\4\1\0\1", b""),
        (b"\5\1\0\5\2\0\1\1\2\3\4\0\x50", b"\5\7\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\3\0\1\1\2\3\4\0\x50", b"\5\7\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\1\0\2\1\2\3\4\0\x50", b"\5\x08\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\1\0\1\1\2\3\4\0\0", b"\5\x08\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\1\0\3\1\xff\0\x50", b"\5\x08\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\1\0\3\0\0\x50", b"\5\x08\0\1\0\0\0\0\0\0"),
        (b"\5\1\0\5\1\0\3\4a\0.b\0\x50", b"\5\x08\0\1\0\0\0\0\0\0"),
    ],
)
def test_what_is_no_socks_request(data: bytes, answer: bytes) -> None:
    parser = SocksParser()
    with pytest.raises(SocksError) as caught:
        parser.feed(data)
    assert caught.value.answer == answer


def test_addresses_in_socks() -> None:
    for kind, raw, host in ((1, bytes([9, 8, 7, 6]), "9.8.7.6"), (4, bytes(15) + b"\1", "::1")):
        _, asked = SocksParser().feed(b"\5\1\0\5\1\0" + bytes([kind]) + raw + b"\1\2")
        assert asked == (host, 258)


# HTTP.


def head_of(data: bytes, cuts: list[int]) -> tuple[bytes, bytes] | None:
    buffer = bytearray()
    parts = pieces(data, cuts)
    for index, piece in enumerate(parts, 1):
        scanned = len(buffer)
        buffer += piece
        end = find_head(buffer, scanned)
        if end >= 0:
            return bytes(buffer[:end]), b"".join((buffer[end:], *parts[index:]))
    return None


def assert_answered(error: HttpError) -> None:
    answer = error_response(error.status, str(error))
    assert answer.startswith(b"HTTP/1.1 4")
    assert str(error).endswith(".")


REQUESTISH = st.lists(
    st.sampled_from(
        [
            b"GET ",
            b"CONNECT ",
            b"http://a.test",
            b"a.test:443",
            b"/",
            b" HTTP/1.1",
            b"\r\n",
            b"\n",
            b"\r",
            b"Host: a",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            b"\r\n\r\n",
            b"\x00",
            b" ",
            b"\t",
            b"@",
            b"[::1]",
            b":80",
        ]
    ),
    max_size=20,
).map(b"".join)


@given(st.one_of(st.binary(max_size=300), REQUESTISH), CUTS)
def test_any_bytes_are_a_request_with_one_meaning_or_an_error(data: bytes, cuts: list[int]) -> None:
    try:
        found = head_of(data, cuts)
        if found is None:
            return
        head = parse_head(found[0])
    except HttpError as error:
        assert_answered(error)
        return
    assert head.host.isascii()
    assert 1 <= head.port <= 65535
    assert head.is_connect or head.path.startswith(b"/")
    assert found[0].count(b"\n") == found[0].count(b"\r") == found[0].count(b"\r\n")
    names = [name for name, _ in request_headers(head, head.host, {})]
    assert len(names) == len(set(names)) or not {b"host", b"content-length", b"transfer-encoding"} & {
        name for name in names if names.count(name) > 1
    }


@given(st.one_of(st.binary(max_size=200), REQUESTISH), CUTS)
def test_pieces_make_no_difference(data: bytes, cuts: list[int]) -> None:
    def outcome(these: list[int]) -> object:
        try:
            found = head_of(data, these)
        except HttpError:
            return "refused"
        return found

    whole, parts = outcome([]), outcome(cuts)
    # What is refused whole may have been refused earlier in pieces; what comes behind a head is nobody's fault.
    assert parts == whole


def test_a_head_is_bounded() -> None:
    with pytest.raises(HttpError) as caught:
        head_of(b"GET http://a.test/ HTTP/1.1\r\nA: " + b"b" * HEAD_MAX, [])
    assert caught.value.status == 431


@pytest.mark.parametrize(
    ("line", "host", "port", "path"),
    [
        ("GET http://a.test/x?y=z", "a.test", 80, b"/x?y=z"),
        ("GET HTTP://A.Test.:8080", "a.test", 8080, b"/"),
        ("GET http://a.test?q", "a.test", 80, b"/?q"),
        ("GET http://[2001:DB8::1]:81/x", "2001:db8::1", 81, b"/x"),
        ("CONNECT a.test:443", "a.test", 443, b""),
        ("CONNECT [::1]:443", "::1", 443, b""),
    ],
)
def test_a_request(line: str, host: str, port: int, path: bytes) -> None:
    head = parse_head(f"{line} HTTP/1.1\r\nHost: other.test\r\n\r\n".encode())
    assert (head.host, head.port, head.path) == (host, port, path)


@pytest.mark.parametrize(
    "line",
    [
        *("GET /", "GET *", "OPTIONS *", "GET a.test", "GET https://a.test/", "GET ftp://a.test/", "GET http:///x"),
        *("GET http://u@a.test/", "GET http://a.test:0/", "GET http://a.test:65536/", "GET http://a.test:/"),
        *("GET http://a.test/#f", "GET http://a..test/", "GET http://127.1/", "GET http://[::1/", "GET http://[a]/"),
        *("GET http://[fe80::1%25eth0]/", "CONNECT a.test", "CONNECT a.test:", "CONNECT a.test:443/", "CONNECT :443"),
        *("CONNECT http://a.test:443", "CONNECT u@a.test:443", "CONNECT a.test:99999", "CONNECT a_b c:1", "GET"),
    ],
)
def test_a_request_that_is_none(line: str) -> None:
    with pytest.raises(HttpError):
        parse_head(f"{line} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 1", "Content-Length: 2"],
        ["Content-Length: 1, 2"],
        ["Content-Length: -1"],
        ["Content-Length: +1"],
        ["Content-Length: 0x1"],
        ["Transfer-Encoding: chunked", "Content-Length: 1"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, gzip"],
        ["Transfer-Encoding : chunked"],
        ["Content-Length : 5"],
        [": x"],
        ["no colon"],
        ["Host: b.test"],
    ],
)
def test_headers_of_two_meanings(headers: list[str]) -> None:
    lines = ["POST http://a.test/ HTTP/1.1", "Host: a.test", *headers, "", ""]
    with pytest.raises(HttpError):
        parse_head("\r\n".join(lines).encode())


def test_chunks_of_http_1_0() -> None:
    with pytest.raises(HttpError):
        parse_head(b"POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_what_is_sent_on() -> None:
    lines = [
        *("POST http://a.test/ HTTP/1.1", "Host: b.test", "Connection: X-Hop, Content-Length", "X-Hop: 1"),
        *(
            "authorization: theirs",
            "AUTHORIZATION: again",
            "Proxy-Authorization: p",
            "Content-Length: 3",
            "A: b",
            "",
            "",
        ),
    ]
    head = parse_head("\r\n".join(lines).encode())
    assert request_headers(head, "a.test", {"Authorization": "ours"}) == [
        (b"host", b"a.test"),
        (b"content-length", b"3"),
        (b"a", b"b"),
        (b"Authorization", b"ours"),
        (b"connection", b"close"),
    ]


def test_what_is_passed_back() -> None:
    headers = [
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"3"),
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
    ]
    assert response_headers([*headers, (b"a", b"b")]) == [(b"a", b"b")]
    assert response_headers([(b"content-length", b"3")]) == [(b"content-length", b"3")]
