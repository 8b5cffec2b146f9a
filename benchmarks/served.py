"""A server for a sandbox, and what the host asks of it: how fast the ways to it are, not how fast it is."""

from __future__ import annotations

import socket

MIB = 1 << 20
# One line says what is wanted: `get N` so many bytes, `put N` a line after so many bytes. Arguments: address and port.
SERVER = r"""
import socket, sys, threading

def serve(connection):
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = b""
        while not line.endswith(b"\n"):
            line += connection.recv(1)
        verb, size = line.split()
        left, block = int(size), bytearray(1 << 20)
        view = memoryview(block)
        if verb == b"get":
            while left:
                left -= connection.send(view[:left])
        else:
            while left:
                left -= connection.recv_into(view[:left])
            connection.sendall(b"done\n")

listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def get(port: int, size: int) -> None:
    """One connection that fetches so many bytes."""
    block = bytearray(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"get %d\n" % size)
        left = size
        while count := connection.recv_into(block):
            left -= count
    assert left == 0, f"{left} bytes of {size} are missing"


def put(port: int, size: int) -> None:
    """One connection that sends so many bytes."""
    block = memoryview(bytes(MIB))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"put %d\n" % size)
        for start in range(0, size, MIB):
            connection.sendall(block[: size - start])
        assert connection.recv(16) == b"done\n"
