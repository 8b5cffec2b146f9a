"""Sockets of engines: connecting, who listens there, and taking one over from an HTTP response."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Any, cast

from sandboxkit.streams import MultiplexedStream

from .tls import TlsSocket

__all__ = ["connect_unix", "listener_pid", "stream_of", "unix_problem"]


def connect_unix(path: str, timeout: float | None) -> socket.socket:
    """A connected socket. Nothing is left open on failure, as it is in both SDKs' own ways to connect."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def unix_problem(path: str, timeout: float) -> str | None:
    """Why nothing can be reached at this socket, for a person to read; None when something accepts connections."""
    try:
        connect_unix(path, timeout).close()
    except FileNotFoundError:
        return "no such file"
    except PermissionError:
        return "permission denied for this user"
    except ConnectionRefusedError:
        return "nothing listens there (left over from a service that ended)"
    except TimeoutError:
        return f"no connection within {timeout:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None


def listener_pid(path: str, timeout: float) -> int | None:
    """The process that listens at this socket; None when it is outside this process's PID namespace, or gone."""
    with contextlib.suppress(OSError), connect_unix(path, timeout) as sock:
        # For a connecting socket these are the credentials at the time of the peer's listen() (unix(7)).
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid or None
    return None


def stream_of(response: Any) -> MultiplexedStream:
    """The stream of an attach call, out of a `requests` response (asked for with `stream=True` and an Upgrade header).

    `http.client` reads headers through a buffer, which may hold the first bytes of the stream already: reading from
    the socket beneath it loses them (docker-py#2466). They are handed on.
    """
    reader = response.raw._fp.fp
    sock: socket.socket = reader.raw._sock
    sock.setblocking(False)
    early = b""
    with contextlib.suppress(OSError):  # SSLWantReadError: nothing there
        early = reader.peek() or b""
    if isinstance(sock, ssl.SSLSocket):
        # A TLS session can't be duplicated: the response, which would close it, goes with the stream.
        return MultiplexedStream(cast("socket.socket", TlsSocket(sock, response)), early=early)
    own = socket.socket(fileno=os.dup(sock.fileno()))
    try:
        stream = MultiplexedStream(own, early=early)
    except BaseException:
        own.close()
        raise
    # The descriptor of our own lives on; the client's goes, and with it the connection's place in the client's pool.
    response.close()
    return stream


def hard_limit(pid: int, resource_name: str) -> int | None:
    """A hard limit of another process, from /proc/PID/limits; None when unlimited. OSError when it can't be read."""
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith(resource_name):
            hard = line[len(resource_name) :].split()[1]
            return None if hard == "unlimited" else int(hard)
    raise OSError(f"/proc/{pid}/limits has no {resource_name!r}")
