"""Connections on this host, and ports for them."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

MIB = 1 << 20


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


def read(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer at the end. (MSG_WAITALL does not wait in a socket with a timeout.)"""
    data = b""
    while len(data) < size and (chunk := sock.recv(size - len(data))):
        data += chunk
    return data


def read_all(sock: socket.socket) -> bytes:
    """Up to its end."""
    data = bytearray()
    while chunk := sock.recv(MIB):
        data += chunk
    return bytes(data)


def drain(sock: socket.socket) -> None:
    """Until it ends, in order or not."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(MIB):
            pass


def reset(sock: socket.socket) -> None:
    """Close it so that the other end is told of a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
