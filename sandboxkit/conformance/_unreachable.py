"""With the network off nothing beside the sandbox itself can be reached, tried in every way that a program has."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from sandboxkit import Network, Session
from sandboxkit.backend import Feature

from ._ports import host_addresses
from ._suite import Suite, needs

# Each way is one line of Python, which has to raise an OSError at once: a time-out may be a packet that went out.
_TRY = """
import os, socket, sys
socket.setdefaulttimeout(3)
def tcp(address, port, family=socket.AF_INET):
    with socket.socket(family) as s: s.connect((address, port))
def udp(address, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s: s.sendto(b"x", (address, port))
def icmp(address):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s: s.sendto(bytes(8), (address, 0))
def ping(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as s:
        s.sendto(b"\\x08" + bytes(7), (address, 0))
def abstract(name):
    with socket.socket(socket.AF_UNIX) as s: s.connect("\\0" + name)
try:
    eval(sys.argv[1])
except TimeoutError:
    print("silence")
except OSError as error:
    print("refused")
else:
    print("reached")
"""
_WAYS = {
    "TCP": "tcp('1.1.1.1', 80)",
    "TCP to a port of DNS": "tcp('8.8.8.8', 53)",
    "UDP": "udp('1.1.1.1', 123)",
    "UDP to a port of DNS": "udp('8.8.8.8', 53)",
    "a name": "socket.getaddrinfo('example.com', 80)",
    "ICMP": "icmp('1.1.1.1')",
    "a ping": "ping('1.1.1.1')",
    "IPv6 TCP": "tcp('2606:4700:4700::1111', 80, socket.AF_INET6)",
    "IPv6 UDP": "udp('2001:4860:4860::8888', 53, socket.AF_INET6)",
    "IPv6 neighbours": "udp('ff02::1', 9, socket.AF_INET6)",
    "multicast": "udp('224.0.0.251', 5353)",
    "broadcast": "udp('255.255.255.255', 9)",
    "the metadata of clouds": "tcp('169.254.169.254', 80)",
    "the metadata of clouds by IPv6": "tcp('fd00:ec2::254', 80, socket.AF_INET6)",
    "a gateway of Docker": "tcp('172.17.0.1', 80)",
    "a gateway of Podman": "tcp('10.88.0.1', 80)",
    "a gateway of slirp4netns": "tcp('10.0.2.2', 80)",
    "the name of the host": "tcp('host.containers.internal', 80)",
    "the name of the host at Docker": "tcp('host.docker.internal', 80)",
}


@contextlib.contextmanager
def host_service() -> Iterator[int]:
    """A TCP and UDP port that every address of this host takes connections at, and an abstract socket of that name."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.socket())
        tcp.bind(("0.0.0.0", 0))
        tcp.listen()
        port = int(tcp.getsockname()[1])
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("0.0.0.0", port))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"\0sandboxkit-test-{port}")
        unix.listen()
        yield port


def tried(session: Session, way: str) -> str:
    """`refused`, `silence` or `reached`."""
    return session.exec("python3", ["-c", _TRY, way]).check().stdout.strip()


class Unreachable(Suite):
    """Network none, and none with a list, from inside."""

    @needs(Feature.ISOLATION)
    @pytest.mark.parametrize("way", _WAYS)
    def test_nothing_is_reached(self, python_session: Session, way: str) -> None:
        """Refused by the sandbox's own kernel: no packet leaves."""
        assert tried(python_session, _WAYS[way]) == "refused"

    @needs(Feature.ISOLATION)
    def test_no_service_of_the_host_is_reached(self, python_session: Session) -> None:
        """Neither by one of its addresses, nor by its loopback, nor by the sockets that are no files."""
        with host_service() as port:
            assert tried(python_session, f"abstract('sandboxkit-test-{port}')") == "refused"
            for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0", *host_addresses()):
                assert tried(python_session, f"tcp({address!r}, {port})") == "refused", address
                if not address.startswith(("127.", "0.")):  # a loopback of its own takes any datagram
                    assert tried(python_session, f"udp({address!r}, {port})") == "refused", address

    @needs(Feature.BRIDGE)
    def test_the_same_tries_reach_the_host_where_there_is_a_network(self) -> None:
        """So that a try that never works does not count as one that was refused."""
        with self.create("python", network=Network.bridge()) as session, host_service() as port:
            reached = [
                address for address in host_addresses() if tried(session, f"tcp({address!r}, {port})") == "reached"
            ]
            assert reached
            assert tried(session, f"udp({reached[0]!r}, {port})") == "reached"
