"""What a sandbox can reach and by what it can be reached."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from . import _validate as check
from ._addresses import why_refused
from ._hosts import Destination, is_address, parse_destination
from .errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["PROXY_PORT", "Lookup", "Network", "NetworkMode", "proxy_environment"]

Lookup = Callable[[str, int], Sequence[str]]
Credentials = Mapping[str, Mapping[str, str]]

PROXY_PORT = 43_128
"""Where the proxy of a list of destinations listens in the sandbox, if nobody else does."""
MAX_PORTS = 128
MAX_DESTINATIONS = 1000

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# What says where a message ends or goes: not a credential's to set.
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection"}
    | {"te", "trailer", "upgrade", "expect"}
)
_DESTINATION = "'example.com', '*.example.com' or an address, perhaps with ':port'; "
_NOT_IN_LABELS = {"label": False}


class NetworkMode(str, enum.Enum):
    """What the container is connected to."""

    NONE = "none"
    BRIDGE = "bridge"


def _no_credentials() -> Credentials:
    return MappingProxyType({})


@attrs.frozen(repr=False)
class Network:
    """What a sandbox can reach, and which of its ports this host can. Made by the class methods.

    For an engine there are two modes alone: a sandbox with an `allowed` list has no network, and a way out that is
    not the engine's. What a list can't be without (`credentials`, `audit`, `resolver`, `ssl_context`) is in no label
    and no repr.
    """

    mode: NetworkMode = NetworkMode.NONE
    ports: tuple[int, ...] = attrs.field(default=(), kw_only=True)
    allowed: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    private: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    max_connection_bytes: int | None = attrs.field(default=None, kw_only=True)
    max_total_bytes: int | None = attrs.field(default=None, kw_only=True)
    connect_timeout: float = attrs.field(default=10.0, kw_only=True)
    credential_hosts: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    credentials: Credentials = attrs.field(factory=_no_credentials, kw_only=True, eq=False, metadata=_NOT_IN_LABELS)
    audit: Callable[[Any], object] | None = attrs.field(default=None, kw_only=True, eq=False, metadata=_NOT_IN_LABELS)
    resolver: Lookup | None = attrs.field(default=None, kw_only=True, eq=False, metadata=_NOT_IN_LABELS)
    ssl_context: SSLContext | None = attrs.field(default=None, kw_only=True, eq=False, metadata=_NOT_IN_LABELS)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.mode, NetworkMode):
            check.fail("network", self.mode, "Network.none(), Network.bridge() or Network.allow([...])")
        if self.mode is NetworkMode.BRIDGE and self.is_guarded:
            check.fail("network", self.mode, "a list of destinations with no network beside it")

    @classmethod
    def none(cls) -> Network:
        """Loopback alone: the default."""
        return cls(NetworkMode.NONE)

    @classmethod
    def bridge(cls, ports: Sequence[int] = ()) -> Network:
        """The engine's default network: everything the host can reach, the sandbox can reach.

        - `ports`: TCP ports of the sandbox that the engine publishes at 127.0.0.1 of its own host, each at a port that
          is free there: `session.ports.published` tells which. A server has to listen on 0.0.0.0 to be reached so.
          UnsupportedError, at `create_session`, where the backend publishes none.
        """
        return cls(NetworkMode.BRIDGE, ports=_ports(ports))

    @classmethod
    def allow(
        cls,
        destinations: Sequence[str],
        *,
        private: Sequence[str] = (),
        credentials: Credentials | None = None,
        audit: Callable[[Any], object] | None = None,
        max_connection_bytes: int | None = None,
        max_total_bytes: int | None = None,
        connect_timeout: float = 10.0,
        resolver: Lookup | None = None,
        ssl_context: SSLContext | None = None,
    ) -> Network:
        """No network, and a proxy for exactly these destinations, through this process. It needs no engine's network.

        Each is a name, `*.` and a name (any subdomain, not the name itself), or an address; with `:port` for that port
        alone, without for 80 and 443. A name is resolved here, and what it resolves to has to be public.

        - `private`: further destinations, in the same form, that may also be at private or loopback addresses, as this
          process sees them. Link-local addresses, where clouds keep their metadata, are reached by no list.
        - `credentials`: by host (with `:port` where its port is not 443), headers for its requests. The sandbox asks
          for `http://host/...`; TLS is made here and the headers are put in here, so that it never holds them.
        - `audit`: called once for every connection or request, when it ends, with an `EgressEvent`; on a thread of the
          session's, so it should not block.
        - `max_connection_bytes`, `max_total_bytes`: of both directions together, for one connection and for the
          session's all; then they are cut off.
        - `connect_timeout`: seconds for a name to resolve and a connection to be made.
        - `resolver`: called with a name and a port in the place of the system's, on a thread of its own; gives
          addresses, OSError when there are none.
        - `ssl_context`: for the connections with credentials; without it the system's authorities are trusted.

        `credentials` and what can be called are nobody's but this object's: whoever resumes or attaches to a session
        passes them again, `attach(id, network=...)`.
        """
        allowed = _destinations("destinations", destinations, set())
        known = {(item.host, port) for item in allowed for port in item.ports}
        inside = _destinations("private", private, known)
        if not allowed and not inside:
            check.fail("destinations", destinations, f"{_DESTINATION}at least one, or Network.none()")
        for name, limit in (("max_connection_bytes", max_connection_bytes), ("max_total_bytes", max_total_bytes)):
            check.integer(f"network.{name}", limit, minimum=1, maximum=1 << 62, optional=True)
        check.number("network.connect_timeout", connect_timeout)
        for name, function in (("audit", audit), ("resolver", resolver)):
            if function is not None and not callable(function):
                check.fail(f"network.{name}", function, "something that can be called, or None")
        if ssl_context is not None and not _is_context(ssl_context):
            check.fail("network.ssl_context", ssl_context, "an ssl.SSLContext or None")
        checked = _credentials(credentials, (*allowed, *inside))
        return cls(
            NetworkMode.NONE,
            allowed=tuple(map(str, allowed)),
            private=tuple(map(str, inside)),
            max_connection_bytes=max_connection_bytes,
            max_total_bytes=max_total_bytes,
            connect_timeout=float(connect_timeout),
            credential_hosts=tuple(checked),
            credentials=checked,
            audit=audit,
            resolver=resolver,
            ssl_context=ssl_context,
        )

    @property
    def is_guarded(self) -> bool:
        """Whether it has a list of destinations."""
        return bool(self.allowed or self.private)

    def __repr__(self) -> str:
        if self.mode is NetworkMode.BRIDGE:
            return f"Network.bridge(ports={list(self.ports)})" if self.ports else "Network.bridge()"
        if not self.is_guarded:
            return "Network.none()"
        private = f", private={list(self.private)}" if self.private else ""
        secret = f", credentials for {', '.join(self.credentials)}" if self.credentials else ""
        return f"Network.allow({list(self.allowed)}{private}{secret})"


def proxy_environment(port: int) -> dict[str, str]:
    """What tells programs of a proxy on the sandbox's loopback. ALL_PROXY by HTTP: few know `socks5h` without more."""
    url = f"http://127.0.0.1:{port}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    return {**dict.fromkeys(names, url), **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")}


def _is_context(value: object) -> bool:
    import ssl  # takes as long as half of the package

    return isinstance(value, ssl.SSLContext)


def _ports(ports: object) -> tuple[int, ...]:
    if isinstance(ports, (str, bytes)) or not isinstance(ports, Sequence):
        check.fail("ports", ports, "a list of ports, such as [8000]")
    found = tuple(ports)
    for index, port in enumerate(found):
        check.port(f"ports[{index}]", port)
        if port in found[:index]:
            check.fail(f"ports[{index}]", port, "each port once")
    if len(found) > MAX_PORTS:
        check.fail("ports", ports, f"at most {MAX_PORTS} ports")
    return found


def _destinations(field: str, given: object, known: set[tuple[str, int]]) -> list[Destination]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        check.fail(field, given, "a list of destinations, such as ['example.com']")
    if len(given) > MAX_DESTINATIONS:
        check.fail(field, f"{len(given)} destinations", f"at most {MAX_DESTINATIONS}")
    found = []
    for index, item in enumerate(given):
        text = check.text(f"{field}[{index}]", item, accepted=f"{_DESTINATION}not empty")
        try:
            destination = parse_destination(text)
        except ValueError as error:
            reason = "it is no host name" if isinstance(error, UnicodeError) else str(error)
            check.fail(f"{field}[{index}]", text, f"{_DESTINATION}{reason}")
        if field == "destinations" and is_address(destination.host):
            kind = why_refused(destination.host, private=False)
            if kind is not None:
                check.fail(f"{field}[{index}]", text, f"a public address (this one is {kind}); see private=[...]")
        for port in destination.ports:
            if (destination.host, port) in known:
                check.fail(f"{field}[{index}]", text, f"each once; {destination.host} with port {port} is listed above")
            known.add((destination.host, port))
        found.append(destination)
    return found


def _credentials(given: object, destinations: Sequence[Destination]) -> Credentials:
    if given is None:
        return _no_credentials()
    if not isinstance(given, Mapping):
        _refuse("credentials", f"a {type(given).__name__}", "a mapping of hosts to mappings of headers")
    found: dict[str, Mapping[str, str]] = {}
    for host, headers in given.items():
        field = "credentials host"
        text = check.text(field, host, accepted="a host of the list, perhaps with ':port'")
        try:
            destination = parse_destination(text)
        except ValueError as error:
            check.fail(field, text, f"a host of the list: {error}")
        port = destination.ports[-1]  # 443 where none is named
        if destination.host.startswith("*."):
            check.fail(field, text, "a name without '*'")
        if not any(item.matches(destination.host, port) for item in destinations):
            check.fail(field, text, f"a host whose port {port} is among the destinations")
        key = f"{destination.host}:{port}"
        if key in found:
            check.fail(field, text, "each host once")
        found[key] = MappingProxyType(_headers(f"credentials[{text!r}]", headers))
    return MappingProxyType(found)


def _headers(field: str, given: object) -> dict[str, str]:
    # A value is never shown, not even a wrong one.
    if not isinstance(given, Mapping) or not given:
        _refuse(field, f"a {type(given).__name__}", "a mapping of header names to values, not empty")
    found: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            _refuse(f"{field} name", "not shown", "the name of an HTTP header")
        if name.lower() in _FRAMING or name.lower() in map(str.lower, found):
            check.fail(f"{field} name", name, "each header once, and none that frames the message")
        if not isinstance(value, str) or len(value) > 16_384 or not _VALUE.fullmatch(value):
            _refuse(f"{field}[{name!r}]", "not shown", "printable ASCII without line ends, not empty")
        found[name] = value
    return found


def _refuse(field: str, shown: str, accepted: str) -> NoReturn:
    raise ConfigError(f"{field} is {shown}; accepted: {accepted}", details={"field": field})
