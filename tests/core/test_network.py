"""Network: what is accepted, what is refused by name, and that two spellings of one host are one."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import ConfigError, Network, UnsupportedError
from sandboxkit._hosts import Destination, is_address, normalised_host, parse_destination
from sandboxkit._way_out import chosen_network
from sandboxkit.backend import Feature
from sandboxkit.config import NetworkMode
from sandboxkit.sandbox import Sandbox

from .fake_backend import FakeBackend


def refused(field: str, call: Callable[[], object], reason: str = ".") -> None:
    with pytest.raises(ConfigError, match=rf"^{field} is .*; accepted: .*{reason}") as caught:
        call()
    assert len(str(caught.value)) < 500
    assert caught.value.details["field"]


@pytest.mark.parametrize("port", [0, -1, 65536, "80", 80.0, None, True])
def test_a_port_that_is_none(port: Any) -> None:
    refused(r"ports\[0\]", lambda: Network.bridge(ports=[port]), "from 1 to 65535")


def test_ports_that_are_no_list_of_different_ones() -> None:
    refused(r"ports\[1\]", lambda: Network.bridge(ports=[80, 80]), "each port once")
    refused("ports", lambda: Network.bridge(ports="80"))  # type: ignore[arg-type]
    refused("ports", lambda: Network.bridge(ports={80}))  # type: ignore[arg-type]
    refused("ports", lambda: Network.bridge(ports=8000))  # type: ignore[arg-type]
    refused("ports", lambda: Network.bridge(ports=range(1, 200)))
    assert Network.bridge(ports=[1, 65535]).ports == (1, 65535)
    assert Network.bridge().ports == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://example.com", "scheme"),
        ("example.com/path", "path"),
        ("example.com/", "path"),
        ("exa mple.com", "no host name"),
        (" example.com", "no host name"),
        ("example.com\n", "no host name"),
        ("*", "'\\*' alone"),
        ("*:443", "'\\*' alone"),
        ("*.", "no host name"),
        ("*.*.com", "no host name"),
        ("ex*mple.com", "no host name"),
        ("example.*", "no host name"),
        ("", "not empty"),
        (":80", "no host name"),
        ("example.com:", "port"),
        ("example.com:0", "port"),
        ("example.com:65536", "port"),
        ("example.com:80x", "port"),
        ("example.com:-1", "port"),
        ("example.com:http", "port"),
        ("example.com:٣", "port"),
        ("example..com", "no host name"),
        ("user@example.com", "no host name"),
        ("a" * 64 + ".com", "no host name"),
        ("a." * 130 + "com", "no host name"),
        ("127.1", "."),
        ("2130706433", "."),
        ("0x7f.0.0.1", "."),
        ("0177.0.0.1", "."),
        ("1.2.3.4.5", "."),
        ("*.1.2.3.4", "address"),
        ("[::1", "brackets"),
        ("[::1]80", "brackets"),
        ("[1.2.3.4]:80", "brackets"),
        ("fe80::1%eth0", "zone"),
        ("a\0b", "."),
        (3, "."),
        (None, "."),
        (b"example.com", "."),
    ],
)
def test_a_destination_that_is_none(text: Any, reason: str) -> None:
    refused(r"destinations\[1\]", lambda: Network.allow(["example.org", text]), reason)
    refused(r"private\[0\]", lambda: Network.allow(["example.org"], private=[text]), reason)


def test_a_destination_twice() -> None:
    for other in ("EXAMPLE.com", "example.com.", "example.com:443", "example.com:80"):
        refused(r"destinations\[1\]", lambda other=other: Network.allow(["example.com", other]), "each once")  # type: ignore[misc]
        refused(r"private\[0\]", lambda other=other: Network.allow(["example.com"], private=[other]), "each once")  # type: ignore[misc]
    assert Network.allow(["example.com:80", "example.com:443"]).allowed == ("example.com:80", "example.com:443")


def test_lists_that_are_none() -> None:
    refused("destinations", lambda: Network.allow([]), "at least one")
    for wrong in ("example.com", None, 3, {"example.com"}):
        refused("destinations", lambda wrong=wrong: Network.allow(wrong))  # type: ignore[misc]
    refused("destinations", lambda: Network.allow([f"a{i}.com" for i in range(1001)]), "at most 1000")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_connection_bytes": 0}, r"network\.max_connection_bytes"),
        ({"max_connection_bytes": 1.5}, r"network\.max_connection_bytes"),
        ({"max_total_bytes": -1}, r"network\.max_total_bytes"),
        ({"max_total_bytes": True}, r"network\.max_total_bytes"),
        ({"connect_timeout": 0}, r"network\.connect_timeout"),
        ({"connect_timeout": None}, r"network\.connect_timeout"),
        ({"connect_timeout": float("inf")}, r"network\.connect_timeout"),
        ({"audit": 3}, r"network\.audit"),
        ({"resolver": "8.8.8.8"}, r"network\.resolver"),
        ({"ssl_context": True}, r"network\.ssl_context"),
        ({"credentials": 3}, "credentials"),
        ({"credentials": {"example.org": {"A": "b"}}}, "credentials host"),
        ({"credentials": {"*.example.com": {"A": "b"}}}, "credentials host"),
        ({"credentials": {"example.com:22": {"A": "b"}}}, "credentials host"),
        ({"credentials": {3: {"A": "b"}}}, "credentials host"),
        ({"credentials": {"example.com": {"A": "b"}, "EXAMPLE.COM": {"A": "b"}}}, "credentials host"),
        ({"credentials": {"example.com": {}}}, r"credentials\['example.com'\]"),
        ({"credentials": {"example.com": "s3cret"}}, r"credentials\['example.com'\]"),
        ({"credentials": {"example.com": {"A b": "s3cret"}}}, r"credentials\['example.com'\] name"),
        ({"credentials": {"example.com": {"Host": "s3cret"}}}, r"credentials\['example.com'\] name"),
        ({"credentials": {"example.com": {"a": "x", "A": "s3cret"}}}, r"credentials\['example.com'\] name"),
        ({"credentials": {"example.com": {"A": "s3cret\r\nB: c"}}}, r"credentials\['example.com'\]\['A'\]"),
        ({"credentials": {"example.com": {"A": ""}}}, r"credentials\['example.com'\]\['A'\]"),
        ({"credentials": {"example.com": {"A": "s3cretü"}}}, r"credentials\['example.com'\]\['A'\]"),
        ({"credentials": {"example.com": {"A": b"s3cret"}}}, r"credentials\['example.com'\]\['A'\]"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} is ") as caught:
        Network.allow(["example.com"], **options)
    assert "s3cret" not in str(caught.value)
    assert "accepted: " in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1:80", "[::1]:80", "169.254.169.254", "203.0.113.5"])
def test_an_address_that_is_not_public_is_listed_as_private(address: str) -> None:
    refused(r"destinations\[0\]", lambda: Network.allow([address]), r"see private=")
    assert Network.allow(["8.8.8.8"], private=[address]).private


def test_a_secret_is_not_shown() -> None:
    network = Network.allow(
        ["api.example.com", "*.example.org:8443"],
        private=["10.0.0.1:5432"],
        credentials={"API.example.com.": {"Authorization": "Bearer s3cret"}},
        audit=print,
        ssl_context=ssl.create_default_context(),
    )
    for text in (repr(network), str(network), repr(Sandbox("image", FakeBackend(), network=network))):
        assert "s3cret" not in text
    assert repr(network) == (
        "Network.allow(['api.example.com', '*.example.org:8443'], private=['10.0.0.1:5432'], "
        "credentials for api.example.com:443)"
    )
    assert dict(network.credentials["api.example.com:443"]) == {"Authorization": "Bearer s3cret"}
    assert repr(Network.none()) == "Network.none()"
    assert repr(Network.bridge(ports=[80])) == "Network.bridge(ports=[80])"


def test_for_an_engine_a_list_is_no_network() -> None:
    assert Network.allow(["example.com"]).mode is NetworkMode.NONE
    assert Network.allow(["example.com"]).is_guarded
    assert not Network.none().is_guarded
    with pytest.raises(ConfigError):
        Network(NetworkMode.BRIDGE, allowed=("example.com",))


def test_ports_are_refused_where_none_are_published() -> None:
    backend = FakeBackend(features=frozenset({Feature.BRIDGE}))
    with pytest.raises(UnsupportedError, match=r"The backend fake has no Network\.bridge\(ports=\.\.\.\)"):
        Sandbox("image", backend, network=Network.bridge(ports=[80])).create_session()
    assert not backend.calls


@pytest.mark.parametrize(
    ("text", "host", "ports"),
    [
        ("example.com", "example.com", (80, 443)),
        ("Example.COM.:8080", "example.com", (8080,)),
        ("*.example.com", "*.example.com", (80, 443)),
        ("bücher.example", "xn--bcher-kva.example", (80, 443)),
        ("*.bücher.example:1", "*.xn--bcher-kva.example", (1,)),
        ("203.0.113.5", "203.0.113.5", (80, 443)),
        ("203.0.113.5:22", "203.0.113.5", (22,)),
        ("2001:DB8:0::1", "2001:db8::1", (80, 443)),
        ("[2001:db8::1]:22", "2001:db8::1", (22,)),
        ("localhost:3000", "localhost", (3000,)),
        ("_dmarc.a-b.example", "_dmarc.a-b.example", (80, 443)),
    ],
)
def test_a_destination(text: str, host: str, ports: tuple[int, ...]) -> None:
    destination = parse_destination(text)
    assert destination == Destination(host, ports)
    assert parse_destination(str(destination)) == destination


def test_a_wildcard_is_for_subdomains_alone() -> None:
    wildcard = parse_destination("*.example.com")
    for host in ("a.example.com", "a.b.example.com"):
        assert wildcard.matches(host, 443)
    for host in ("example.com", "badexample.com", "example.com.evil.org", ".example.com", "example.org", "1.2.3.4"):
        assert not wildcard.matches(host, 443)
    assert not wildcard.matches("a.example.com", 8080)


@given(st.text(max_size=80))
def test_any_text_is_a_host_in_one_spelling_or_none(text: str) -> None:
    try:
        host = normalised_host(text)
    except ValueError:
        return
    assert host.isascii()
    assert host == host.lower()
    assert normalised_host(host) == host
    assert not set(host) & set(" /\\@?#\r\n\t\0%*")
    assert is_address(host) or not host.rpartition(".")[2].isdigit()


@given(st.text(alphabet="0123456789.xabcdef:[]-*", max_size=30))
def test_what_looks_like_an_address_is_one_or_refused(text: str) -> None:
    try:
        destination = parse_destination(text)
    except ValueError:
        return
    assert parse_destination(str(destination)) == destination


def test_without_the_extra_a_list_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    backend = FakeBackend()
    with pytest.raises(UnsupportedError, match=r"pip install 'sandboxkit\[egress\]'"):
        Sandbox("image", backend, network=Network.allow(["example.com"])).create_session()
    assert not backend.calls


def test_who_attaches_gives_a_list_or_nothing() -> None:
    made, given = Network.allow(["example.com"]), Network.allow(["example.org"])
    assert chosen_network(made, None) is made
    assert chosen_network(made, given) is given
    assert chosen_network(Network.none(), given) is given
    for wrong in (Network.bridge(), "example.com", 3):
        refused("network", lambda wrong=wrong: chosen_network(made, wrong))  # type: ignore[misc]
    refused("network", lambda: chosen_network(Network.bridge(), given), "made with a network of the engine's")
