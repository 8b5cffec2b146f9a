"""Input at random for tunnels: their parsers alone, many and fast, and the whole agent beside a server and clients."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import threading

import pytest

from tests.agent import build, driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import DATA, EOF, EXEC, KILL, WINDOW, encode
from tests.agent.managed import START
from tests.agent.test_fuzz import CALLS, damaged, random_frame
from tests.agent.tunnels import CONNECT, FIRST, LISTEN, connect_payload

ROUNDS = int(os.environ.get("AGENT_FUZZ_ROUNDS", "0"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parsers(seed: int) -> None:
    """Under AddressSanitizer, UBSan and the leak checker."""
    program = build.harness(build.SOURCES / "fuzz" / "fuzz_tunnel.c", "wire.c", "tunnel_wire.c")
    done = subprocess.run([program, str(seed), str(ROUNDS or 100_000)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS or 100_000} inputs\n"


def tunnel_frame(dice: random.Random, channel: int, port: int) -> bytes:
    kind = dice.choice([CONNECT, CONNECT, LISTEN, DATA, DATA, EOF, WINDOW, KILL])
    if kind == CONNECT:
        address = dice.choice([str(port), str(port), "1", "/no/such", "@nobody", "@sandboxkit-agent", "0"])
        return encode(
            channel,
            CONNECT,
            connect_payload(int(address) if address.isdigit() else address, dice.choice([0, 100, 1 << 20])),
        )
    if kind == LISTEN:
        return encode(channel, LISTEN, struct.pack("<HH", dice.choice([0, 0, port]), 0))
    used = dice.choice([dice.randint(1, max(channel, 1)), FIRST + dice.randint(0, 5)])
    if kind in (WINDOW, KILL):
        return encode(used, kind, struct.pack("<I", dice.choice([0, 1, 100_000])))
    return encode(used, kind, dice.randbytes(dice.choice([0, 1, 100, 60_000])) if kind == DATA else b"")


def misbehave(listener: socket.socket) -> None:
    """A server whose every connection does something else."""
    dice = random.Random(7)
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with contextlib.suppress(OSError), sock:
                sock.settimeout(0.05)
                if dice.random() < 0.5:
                    sock.sendall(dice.randbytes(dice.choice([1, 100_000])))
                if dice.random() < 0.5:
                    sock.recv(1000)
                if dice.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("seed", range(ROUNDS or 40))
def test_sessions(start_agent: StartAgent, seed: int) -> None:
    """Frames in any order, some of them damaged: the agent lives on, or ends with 64; and no sanitizer reports."""
    dice = random.Random(seed)
    agent = start_agent(stderr=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=misbehave, args=(listener,), daemon=True)
        thread.start()
        channel, port = 0, listener.getsockname()[1]
        for _ in range(dice.randint(1, 60)):
            ordinary = dice.random() < 0.2
            frame = random_frame(dice, channel + 1) if ordinary else tunnel_frame(dice, channel + 1, port)
            channel += frame[8] in (EXEC, START, CONNECT, LISTEN, *CALLS)
            agent.send_raw(damaged(dice, frame) if dice.random() < 0.02 else frame)
            if dice.random() < 0.3 and not agent._unsent:
                agent._read()
        if dice.random() < 0.7:
            agent.close_input()
            while agent.next_frame() is not None:
                pass
            assert agent.process.wait(driver.DEADLINE) in (0, 64)
        else:
            assert agent.close() in (0, 64)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
