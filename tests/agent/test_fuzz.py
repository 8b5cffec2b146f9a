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
from tests.agent.managed import INPUT, LIST, START, STOP, VIEW, start_payload, view_payload

CALLS = [VIEW, VIEW, INPUT, STOP, LIST]
ROUNDS = int(os.environ.get("AGENT_FUZZ_ROUNDS", "0"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parsers(seed: int) -> None:
    """Under AddressSanitizer, UBSan and the leak checker."""
    program = build.harness(build.SOURCES / "fuzz" / "fuzz_input.c", "wire.c", "request.c")
    done = subprocess.run([program, str(seed), str(ROUNDS or 100_000)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS or 100_000} inputs\n"


@pytest.mark.parametrize("seed", [1, 2])
def test_logs(seed: int) -> None:
    """The ring of a process's log, against a model that forgets nothing."""
    program = build.harness(build.SOURCES / "fuzz" / "fuzz_journal.c", "journal.c", "wire.c")
    done = subprocess.run([program, str(seed), str(ROUNDS or 5_000)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS or 5_000} logs\n"


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
    kind = dice.choice([EXEC] * 6 + [DATA] * 4 + [EOF, WINDOW, WINDOW, KILL, KILL, PING, RESIZE] + [START] * 2 + CALLS)
    if kind == START:
        name = dice.randbytes(dice.choice([0, 5]))
        command, size = dice.choice(COMMANDS), dice.choice([0, 4096, 100_000])
        payload = start_payload(*command, name=name, log_size=size, most=4, flags=dice.choice([0, 1, 1, 2]))
        return encode(channel, START, payload)
    if kind in CALLS:
        return encode(channel, kind, random_call(dice, kind))
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


def random_call(dice: random.Random, kind: int) -> bytes:
    id = dice.randint(0, 3)
    if kind == VIEW:
        flags, window = dice.randint(0, 16), dice.choice([0, 10, 100_000])
        return view_payload(id, flags, window, dice.choice([0, 3, 1 << 40]), dice.choice([0, 1, 1000]))
    if kind == INPUT:
        return struct.pack("<II", id, dice.randint(0, 2)) + dice.randbytes(dice.choice([0, 1, 5000]))
    return struct.pack("<II", id, dice.choice([0, 5]))[: 8 if kind == STOP else 4]


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
        channel += frame[8] in (EXEC, START, *CALLS)
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
