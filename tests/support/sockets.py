"""Connections on this host, and ports for them."""

from __future__ import annotations

import socket
import struct

from sandboxkit.conformance._sockets import drain, exactly, free_port

__all__ = ["MIB", "drain", "exactly", "free_port", "read_all", "reset"]

MIB = 1 << 20


def read_all(sock: socket.socket) -> bytes:
    """Up to its end."""
    data = bytearray()
    while chunk := sock.recv(MIB):
        data += chunk
    return bytes(data)


def reset(sock: socket.socket) -> None:
    """Close it so that the other end is told of a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
