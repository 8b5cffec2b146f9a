"""Tunnels against published ports: 256 MiB each way, and one small request.

    python -m benchmarks.tunnel [--mib 256] [--runs 3] [--requests 200]

The same server runs in a session without any network, reached by `session.ports.forward`, and in a container of the
engine's own with its port published on 127.0.0.1, reached there. A small request is one connection with a few bytes
each way; what a tunnel adds to it is counted in warm execs of `true`. Needs `make images`.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from sandboxkit import Limits, Sandbox, StdoutEvent

from .competitors.base import Engine
from .machine import engines
from .operations import timed

IMAGE = "sandboxkit-test/python"
MIB = 1 << 20
PORT = 8000

# One line says what is wanted: `get N` so many bytes, `put N` a line after so many bytes.
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
    block = bytes(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"put %d\n" % size)
        for _ in range(size // MIB):
            connection.sendall(block)
        assert connection.recv(16) == b"done\n"


def interleaved(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The median seconds of each call, so many times by turns; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs + 1):
        for name, call in calls.items():
            seconds = timed(call)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


@contextmanager
def published(engine: Engine) -> Iterator[int]:
    """The server in a container of the engine's own; gives the port on this host."""
    publish = f"127.0.0.1::{PORT}"
    limits = (
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=4096:4096",
    )  # where the engine asks for more than the host allows
    command = ("python3", "-c", SERVER, "0.0.0.0", str(PORT))
    options = ("--detach", "--rm", "--publish", publish, *limits)

    def client(*arguments: str) -> str:
        done = subprocess.run(engine.cli(*arguments), check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    container = client("run", *options, IMAGE, *command)
    try:
        port = int(client("port", container, str(PORT)).splitlines()[0].rpartition(":")[2])
        deadline = time.monotonic() + 20
        while True:
            try:
                get(port, 1)
                break
            except (OSError, AssertionError):  # a proxy of the engine's accepts before the server does
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        client("rm", "--force", container)


@contextmanager
def forwarded(engine: Engine) -> Iterator[tuple[int, Callable[[], object]]]:
    """The server in a session without a network; gives the port on this host, and a warm exec."""
    limits = Limits(allow_unenforced=True, timeout=3600)
    sandbox = Sandbox(IMAGE, engine.backend, engine.url, limits=limits, pull="never")
    with sandbox.create_session() as session:
        server = session.exec_stream("python3", ["-c", SERVER, "127.0.0.1", str(PORT)])
        first = next(server)
        assert isinstance(first, StdoutEvent), first
        with session.ports.forward(PORT) as url:
            yield int(url.rpartition(":")[2]), lambda: session.exec("true")


def measure(engine: Engine, mib: int, runs: int, requests: int) -> None:
    """One engine: rates and times of each, then the ratios."""
    size = mib * MIB
    print(engine.name)
    with published(engine) as direct, forwarded(engine) as (tunnel, warm_exec):
        for verb, transfer in (("from", get), ("to", put)):
            calls: dict[str, Callable[[], object]] = {
                "tunnel": partial(transfer, tunnel, size),
                "published port": partial(transfer, direct, size),
            }
            rates = {name: mib / seconds for name, seconds in interleaved(calls, runs).items()}
            for name, rate in rates.items():
                print(f"  {mib} MiB {verb:4} the sandbox, {name:14} {rate:8.1f} MiB/s")
            print(f"  tunnel / published port: {rates['tunnel'] / rates['published port']:.2f} (must be at least 0.4)")
        calls = {
            "tunnel": partial(get, tunnel, 10),
            "published port": partial(get, direct, 10),
            "exec of true": warm_exec,
        }
        small = interleaved(calls, requests)
    for name, seconds in small.items():
        print(f"  small request, {name:14} {seconds * 1000:8.2f} ms")
    added = (small["tunnel"] - small["published port"]) / small["exec of true"]
    print(f"  a tunnel adds {added:.2f} warm execs (must be at most 2)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description="Tunnels and published ports.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--engine", default="", help="only those whose name holds this")
    options = parser.parse_args()
    for engine in engines():
        if engine.backend != "host" and options.engine in engine.name:
            measure(engine, options.mib, options.runs, options.requests)


if __name__ == "__main__":
    main()
