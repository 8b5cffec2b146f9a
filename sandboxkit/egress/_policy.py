"""The list, as decisions: may this host and port be asked for, which of its addresses connected to, how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import attrs

from sandboxkit._addresses import why_refused
from sandboxkit._hosts import is_address, parse_destination
from sandboxkit._network import Network

__all__ = ["Decision", "Meter", "Policy", "Target"]

Protocol = Literal["connect", "http", "https", "socks"]


@attrs.frozen
class Target:
    """What a sandbox asked for. `host` is normalised; `port` is the one that is connected to."""

    protocol: Protocol
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Decision:
    """`refusal`: a sentence for the sandbox, empty when it may. `private`: where it may be."""

    refusal: str = ""
    private: bool = False


class Policy:
    """Of one Network.allow."""

    def __init__(self, network: Network) -> None:
        self._allowed = [parse_destination(text) for text in network.allowed]
        self._private = [parse_destination(text) for text in network.private]
        self._credentials = network.credentials
        self._secured = frozenset(network.credential_hosts)

    def decide(self, target: Target) -> Decision:
        """Whether the list has it."""
        if target.protocol == "http" and self._key(target) in self._secured:
            return Decision(
                f"The credentials for {target.host} are not there: who attaches to a session gives them again."
            )
        if any(item.matches(target.host, target.port) for item in self._private):
            return Decision(private=True)
        if any(item.matches(target.host, target.port) for item in self._allowed):
            return Decision()
        return Decision(f'{target} is not on this sandbox\'s list: Network.allow(["{target}"]) would allow it.')

    def credentials(self, host: str, port: int) -> tuple[int, Mapping[str, str]] | None:
        """For a request of plain HTTP: the port where it goes by TLS, and what its headers become.

        Without them it is not sent on in the clear where the session was made with them: see `decide`.
        """
        for tls_port in (port, 443) if port == 80 else (port,):
            found = self._credentials.get(f"{host}:{tls_port}")
            if found is not None:
                return tls_port, found
        return None

    def _key(self, target: Target) -> str:
        port = 443 if target.port == 80 and f"{target.host}:80" not in self._secured else target.port
        return f"{target.host}:{port}"

    @staticmethod
    def reachable(target: Target, addresses: Iterable[str], *, private: bool) -> tuple[list[str], str, str]:
        """Of the addresses that a host has those that may be connected to; when there are none, why: a sentence for
        the sandbox, which tells no address, and a phrase for the audit.
        """
        found, kinds, refused = [], [], []
        for address in addresses:
            try:
                why = why_refused(address, private=private)
            except ValueError:
                why = "none at all"
            if why is None:
                found.append(address)
            else:
                kinds.append(why)
                refused.append(f"{address} is {why}")
        if found:
            return found, "", ""
        if not refused:
            return [], f"{target.host} has no address.", "it has no address"
        hint = "" if private else f'; Network.allow(..., private=["{target}"]) would allow a private one'
        what = "That address" if is_address(target.host) else f"{target.host} leads to an address that"
        return [], f"{what} is not public ({kinds[0]}){hint}.", ", ".join(refused[:4])


class Meter:
    """Counts bytes against a bound, and against a `shared` meter's."""

    def __init__(self, limit: int | None, shared: Meter | None = None) -> None:
        self._left = limit
        self._shared = shared

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be carried."""
        return self._left == 0 or (self._shared is not None and self._shared.is_spent)

    def spend(self, size: int) -> int:
        """Take up to so many bytes and return how many there were."""
        if self._left is not None:
            size = min(size, self._left)
        if self._shared is not None:
            size = self._shared.spend(size)
        if self._left is not None:
            self._left -= size
        return size
