"""Input at random: for the parsers alone, many and fast, and for the whole agent.

A failure names its seed. More of it: `build/agent/fuzz_input-* SEED ROUNDS`, or AGENT_FUZZ_ROUNDS=1000000 for both.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess

import pytest

from tests.agent import build, driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import CONFIGURE, DATA, EOF, EXEC, HEADER, KILL, PING, RESIZE, WINDOW, encode, exec_payload

ROUNDS = int(os.environ.get("AGENT_FUZZ_ROUNDS", "0"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parsers(seed: int) -> None:
    """Under AddressSanitizer, UBSan and the leak checker."""
    program = build.harness(build.SOURCES / "fuzz" / "fuzz_input.c", "wire.c", "request.c")
    done = subprocess.run([program, str(seed), str(ROUNDS or 100_000)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS or 100_000} inputs\n"


COMMANDS = [
    ["true"],
    ["cat"],
    ["sh", "-c", "echo out; echo err >&2; exit 3"],
    ["no-such-command"],
    ["sleep", "1000"],
    ["head", "-c", "200000", "/dev/zero"],
    ["sh", "-c", "sleep 1000 & echo hi"],
]


def random_frame(dice: random.Random, channel: int) -> bytes:
    kind = dice.choice([EXEC] * 6 + [DATA] * 4 + [EOF, WINDOW, WINDOW, KILL, KILL, PING, RESIZE])
    if kind == EXEC:
        flags = dice.choice([0, 0, 1, 1, 4, 5, 2, 3])
        timeout, grace = dice.choice([(0, 0), (0, 0), (1, 0), (20, 5)])
        cwd = dice.choice([".", ".", ".", "missing", ".."])
        window = dice.choice([0, 10, 100_000])
        payload = exec_payload(
            dice.choice(COMMANDS), cwd=cwd, flags=flags, window=window, timeout_ms=timeout, grace_ms=grace
        )
        if dice.random() < 0.1:
            payload = payload[: dice.randrange(len(payload))]
        return encode(channel, EXEC, payload)
    used = dice.randint(1, max(channel, 1))
    if kind == PING:
        return encode(0, PING, dice.randbytes(dice.randint(0, 8)))
    if kind in (KILL, WINDOW, RESIZE):
        return encode(used, kind, struct.pack("<I", dice.choice([0, 1, 50, 100_000])))
    return encode(used, kind, dice.randbytes(dice.choice([0, 1, 100, 20_000])) if kind == DATA else b"")


def damaged(dice: random.Random, frame: bytes) -> bytes:
    broken = bytearray(frame)
    for _ in range(dice.randint(1, 3)):
        broken[dice.randrange(min(len(broken), HEADER.size + 30))] ^= 1 << dice.randrange(8)
    return bytes(broken)


@pytest.mark.parametrize("seed", range(ROUNDS or 60))
def test_sessions(start_agent: StartAgent, seed: int) -> None:
    """Frames in any order, some of them damaged: the agent lives on, or ends with 64; and no sanitizer reports."""
    dice = random.Random(seed)
    agent = start_agent(stderr=subprocess.DEVNULL)
    stream = encode(0, CONFIGURE, struct.pack("<HH", 1, 0)) if dice.random() < 0.2 else b""
    channel = 0
    for _ in range(dice.randint(1, 40)):
        frame = random_frame(dice, channel + 1)
        channel += frame[8] == EXEC
        stream += damaged(dice, frame) if dice.random() < 0.02 else frame
    while stream:
        size = dice.choice([1, 7, 100, 5000, 100_000])
        agent.send_raw(stream[:size])
        stream = stream[size:]
        if dice.random() < 0.3 and not agent._unsent:
            agent._read()
    agent.close_input()
    while agent.next_frame() is not None:
        pass
    assert agent.process.wait(driver.DEADLINE) in (0, 64)
