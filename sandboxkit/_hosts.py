"""Names and addresses of the network, in one spelling: what a list allows is compared with what a sandbox asks for.

Two spellings of one destination must never compare as different, and nothing that a resolver would take for an address
may pass as a name: so a name is ASCII, lower-case and without the last dot, and `127.1` or `0x7f000001` is none.
"""

from __future__ import annotations

import ipaddress
import re

import attrs

__all__ = ["Destination", "is_address", "normalised_host", "parse_destination"]

DEFAULT_PORTS = (80, 443)
"""Of a destination that names none."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # what inet_aton(3) would read as an address's last part
_LONGEST = 253


@attrs.frozen
class Destination:
    """A host and the ports of it. `host` is a name, `*.` and a name (its subdomains, not itself), or an address."""

    host: str
    ports: tuple[int, ...] = DEFAULT_PORTS

    def matches(self, host: str, port: int) -> bool:
        """`host` as `normalised_host` gives it."""
        if port not in self.ports:
            return False
        if self.host.startswith("*."):
            return not is_address(host) and host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
        return host == self.host

    def __str__(self) -> str:
        if self.ports == DEFAULT_PORTS:
            return self.host
        return f"[{self.host}]:{self.ports[0]}" if ":" in self.host else f"{self.host}:{self.ports[0]}"


def is_address(host: str) -> bool:
    """Whether a normalised host is an address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def normalised_host(host: str) -> str:
    """A name or an address (IPv6 without brackets) in its one spelling; ValueError, one phrase, for what is neither."""
    if not host.isascii():
        raise ValueError("its name is not ASCII: use the xn-- form")
    if ":" in host:
        if "%" in host:
            raise ValueError("an address with a zone is none that can be reached from here")
        return str(ipaddress.IPv6Address(host))
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(name))
    if len(name) > _LONGEST or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("it is no host name")
    return name


def parse_destination(text: str) -> Destination:
    """`name`, `*.name` or an address, and perhaps `:port` (`[address]:port` for IPv6); ValueError, one phrase."""
    if "://" in text:
        raise ValueError("without a scheme")
    if "/" in text:
        raise ValueError("without a path")
    host, port = _split(text)
    ports = DEFAULT_PORTS if port is None else (_port(port),)
    if host == "*":
        raise ValueError("no '*' alone: Network.bridge() is the network without a list")
    wildcard = host.startswith("*.")
    name = host[2:] if wildcard else host
    if not name.isascii():
        name = name.encode("idna").decode("ascii")  # UnicodeError is a ValueError
    normalised = normalised_host(name)
    if wildcard and is_address(normalised):
        raise ValueError("no '*' before an address")
    return Destination("*." + normalised if wildcard else normalised, ports)


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address in brackets, then perhaps ':' and a port")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise ValueError("a port from 1 to 65535")
    return int(text)
