"""Run in the namespaces of a detached agent: sends it a descriptor whose last close sleeps. For test_rights.

    python hostile_greeting.py SIZE FLAGS LINGER

Prints whether the descriptor was `taken` or `refused` and waits for a line; then `answered`, when the next
connection is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys

ADDRESS = "\0sandboxkit-agent"
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def sleeper(linger: int) -> tuple[socket.socket, list[socket.socket]]:
    """A TCP connection full of bytes that nobody reads, whose last close waits for them; and what keeps it so."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(listener.getsockname())
    full, _ = listener.accept()
    full.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            full.send(bytes(65536))
    full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger))
    return full, [peer, listener]


def give(sock: socket.socket, data: bytes, flags: int, full: socket.socket) -> bool:
    """Sends it and lets go of it; False when the other end does not take it, as it should not."""
    try:
        socket.send_fds(sock, [data], [full.fileno()], flags)
    except PermissionError:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    else:
        return True
    finally:
        full.close()


def main() -> None:
    size, flags, linger = map(int, sys.argv[1:])
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    full, kept = sleeper(linger)
    with socket.socket(socket.AF_UNIX) as hostile, socket.socket(socket.AF_UNIX) as other:
        hostile.connect(ADDRESS)
        greeting = struct.pack("<IB3x", 0x43584253, 1) + b"x" * 64
        went = give(hostile, greeting[:size], flags, full)
        other.connect(ADDRESS)
        for sock in (hostile, other):
            sock.shutdown(socket.SHUT_WR)
        print("taken" if went else "refused", flush=True)
        sys.stdin.readline()
        with contextlib.suppress(ConnectionError):
            while other.recv(4096):
                pass
        print("answered", flush=True)
        sys.stdin.readline()
    for sock in kept:
        sock.close()


if __name__ == "__main__":
    if os.environ.get("AS_COMMAND") and os.fork():  # a process whose parent the agent sees
        os.wait()
    else:
        main()
