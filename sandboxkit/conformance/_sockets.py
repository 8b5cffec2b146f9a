"""Plain sockets of this host, and ports for them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["drain", "exactly", "free_port"]


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nothing listens. Whoever names it may; nobody else is given it in this block.

    It is bound and does not listen. So the kernel hands it out to no other socket, connections to it are refused, and
    a server binds it all the same, as both have SO_REUSEADDR.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


def exactly(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer at the end. (MSG_WAITALL does not wait in a socket with a timeout.)"""
    data = b""
    while len(data) < size and (chunk := sock.recv(size - len(data))):
        data += chunk
    return data


def drain(sock: socket.socket) -> None:
    """Until it ends, in order or not."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 20):
            pass
