"""Which addresses a way out may lead to: those of the public internet, and private ones where a list says so."""

from __future__ import annotations

import ipaddress
from typing import Final

__all__ = ["why_refused"]

# IANA's special-purpose registries. Written out: what `ipaddress` calls global changes with Python's version.
_PRIVATE: Final = {
    "127.0.0.0/8": "loopback",
    "::1/128": "loopback",
    "10.0.0.0/8": "private",
    "172.16.0.0/12": "private",
    "192.168.0.0/16": "private",
    "100.64.0.0/10": "private (shared)",
    "fc00::/7": "private",
}
_NEVER: Final = {
    "0.0.0.0/8": "unspecified",
    "::/128": "unspecified",
    "169.254.0.0/16": "link-local",
    "fe80::/10": "link-local",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "of 6to4",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved or broadcast",
    "ff00::/8": "multicast",
    # Inside these is an IPv4 address, which would be reached unseen.
    "::/96": "IPv4 in IPv6",
    "::ffff:0:0/96": "IPv4 in IPv6",
    "64:ff9b::/96": "IPv4 in IPv6 (NAT64)",
    "64:ff9b:1::/48": "IPv4 in IPv6 (NAT64)",
    "2001::/32": "IPv4 in IPv6 (Teredo)",
    "2002::/16": "IPv4 in IPv6 (6to4)",
    "2001::/23": "reserved",
    "2001:db8::/32": "for documentation",
    "3fff::/20": "for documentation",
}
# Clouds answer here with the machine's secrets; those that are link-local are above.
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"))
)
_PUBLIC6: Final = ipaddress.ip_network("2000::/3")

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(table: dict[str, str]) -> list[tuple[_Network, str]]:
    return [(ipaddress.ip_network(network), kind) for network, kind in table.items()]


_PRIVATE_NETWORKS: Final = _networks(_PRIVATE)
_NEVER_NETWORKS: Final = _networks(_NEVER)


def why_refused(address: str, *, private: bool) -> str | None:
    """What kind of address it is that may not be connected to; None when it may. ValueError for no address at all."""
    found = ipaddress.ip_address(address)
    if found in _METADATA:
        return "a cloud's metadata"
    for network, kind in _PRIVATE_NETWORKS:
        if found in network:
            return None if private else kind
    for network, kind in _NEVER_NETWORKS:
        if found in network:
            return kind
    if found.version == 6 and found not in _PUBLIC6:
        return "reserved"
    return None
