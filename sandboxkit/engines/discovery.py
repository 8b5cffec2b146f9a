"""Finding an engine: addresses are tried in order, and what was wrong with each is told when none answers."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import attrs

from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError

__all__ = ["PROBE_TIMEOUT", "Address", "check_url", "first_that_answers", "unavailable"]

PROBE_TIMEOUT = 10.0
"""Seconds that one address gets to answer."""

_FORWARD_ADVICE = (
    "ssh:// is not supported: forward the socket with `ssh -N -L /tmp/engine.sock:REMOTE_SOCKET HOST` and use "
    "unix:///tmp/engine.sock"
)

ApiT = TypeVar("ApiT")


@attrs.frozen
class Address:
    """Where an engine may answer, and who says so (`DOCKER_HOST`, or empty for a place it is usually found at)."""

    url: str
    source: str = ""

    @property
    def socket_path(self) -> str | None:
        """The path of a unix socket; None for another kind of address."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("unix", "http+unix"):
            return None
        # unix://var/run/docker.sock is a common slip that docker-py, too, takes for an absolute path.
        path = urllib.parse.unquote(parts.netloc + parts.path)
        return path if path.startswith("/") else f"/{path}"

    def __str__(self) -> str:
        return f"{self.url} (from {self.source})" if self.source else self.url


def check_url(url: object, schemes: Sequence[str], example: str, field: str = "url") -> str:
    """The url, or ConfigError when it is malformed; ssh:// passes, and is refused with advice when it is tried."""
    accepted = f"an address such as {example!r}; schemes: {', '.join(schemes)}"

    def refuse() -> ConfigError:
        return ConfigError(f"{field} is {str(url)[:200]!r}; accepted: {accepted}", details={"field": field})

    if not isinstance(url, str):
        raise refuse()
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        raise refuse() from None
    if parts.scheme == "ssh":
        return url
    if parts.scheme not in schemes or parts.query or parts.fragment or parts.password is not None:
        raise refuse()
    if parts.scheme.endswith("unix"):
        if not Address(url).socket_path or Address(url).socket_path == "/":
            raise refuse()
    elif not parts.hostname or port is None:
        raise refuse()
    return url


def first_that_answers(addresses: Iterable[Address], probe: Callable[[Address], ApiT], tried: list[str]) -> ApiT | None:
    """What `probe` makes of the first address that answers. The others' reasons are added to `tried`."""
    for address in addresses:
        if urllib.parse.urlsplit(address.url).scheme == "ssh":
            tried.append(f"{address}: {_FORWARD_ADVICE}")
            continue
        try:
            return probe(address)
        except (EngineUnavailableError, EngineError, ConfigError) as error:
            tried.append(f"{address}: {error.details.get('reason', error)}")
    return None


def unavailable(engine: str, tried: Sequence[str], how_to_start: str) -> EngineUnavailableError:
    """The error for when nothing answered."""
    listed = "".join(f"\n  - {line}" for line in tried)
    return EngineUnavailableError(
        f"no {engine} answers. Tried:{listed}\n{how_to_start}",
        details={"tried": list(tried)},
    )
