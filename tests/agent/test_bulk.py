"""Large DATA frames go on to a command before they are whole, by splice(2) where that goes: agent/input.c."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess

import pytest

from tests.agent import managed
from tests.agent.conftest import StartAgent
from tests.agent.driver import DATA, DEADLINE, EOF, STDIN, Agent, Command, encode

FRAME = 65536
HEAD = 12


@pytest.fixture(params=["socket", "pipes"])
def agent(start_agent: StartAgent, request: pytest.FixtureRequest) -> Agent:
    return start_agent(pipes=request.param == "pipes")


def spend(command: Command, data: bytes) -> bytes:
    command.credit -= len(data)
    return encode(command.channel, DATA, data)


def echo(agent: Agent) -> Command:
    """A `cat` that has had one large frame: the agent expects more of them."""
    command = agent.start("cat", flags=STDIN)
    agent.send_raw(spend(command, b"x" * FRAME))
    agent.wait_output(command, b"x" * FRAME)
    command.stdout.clear()
    while command.credit < FRAME:
        assert agent.step()
    return command


def fill(agent: Agent, command: Command) -> int:
    """As much as goes in; returns how much that is."""
    sent = 0
    while command.credit == FRAME:
        agent.send_raw(spend(command, bytes(FRAME)))
        agent.ping()
        agent.ping()  # a WINDOW comes behind the answer to the first one
        sent += FRAME
    return sent


def works(agent: Agent) -> bool:
    return bytes(agent.run("echo", "works")[0].stdout) == b"works\n"


@pytest.mark.parametrize("cut", [HEAD, HEAD + 1, 5000, FRAME - 16384 + HEAD])
def test_a_command_gets_what_is_here_of_a_frame(agent: Agent, cut: int) -> None:
    command = echo(agent)
    data = os.urandom(FRAME)
    frame = spend(command, data)
    agent.send_raw(frame[:cut])
    agent.wait_output(command, data[: cut - HEAD])
    agent.send_raw(frame[cut : cut + 1000])
    agent.wait_output(command, data[: cut - HEAD + 1000])
    agent.send_raw(frame[cut + 1000 :])
    agent.wait_output(command, data)
    agent.send_raw(encode(command.channel, EOF))
    assert agent.wait(command).exit_code == 0


@pytest.mark.parametrize("cut", [1, HEAD - 1, FRAME - 16384 + HEAD + 1, FRAME, FRAME + HEAD - 1])
def test_a_frame_cut_elsewhere_arrives_whole(agent: Agent, cut: int) -> None:
    command = echo(agent)
    data = os.urandom(FRAME)
    frame = spend(command, data)
    agent.send_raw(frame[:cut])
    agent.flush()
    agent.send_raw(frame[cut:] + encode(command.channel, EOF))
    agent.wait_output(command, data)
    assert agent.wait(command).exit_code == 0


def test_small_frames_behind_large_ones(agent: Agent) -> None:
    command = echo(agent)
    agent.send_raw(spend(command, b"y" * (FRAME - 1)) + encode(0, 0x03, b"ping") + spend(command, b"z"))
    agent.wait_output(command, b"y" * (FRAME - 1) + b"z")
    assert works(agent)
    agent.send_raw(encode(command.channel, EOF))
    assert agent.wait(command).exit_code == 0
    assert agent.pongs == [b"ping"]


def test_a_command_that_ends_in_the_middle(agent: Agent) -> None:
    command = agent.start("sh", "-c", f"head -c {FRAME + 1000} > /dev/null; exit 7", flags=STDIN)
    agent.send_raw(spend(command, b"x" * FRAME))
    while command.credit < FRAME:
        assert agent.step()
    frame = spend(command, b"x" * FRAME)
    agent.send_raw(frame[:10_000])
    assert agent.wait(command).exit_code == 7
    agent.send_raw(frame[10_000:])  # it crossed with the EXIT
    assert works(agent)


def test_a_command_that_closes_its_input_in_the_middle(agent: Agent) -> None:
    script = f"head -c {FRAME + 1000} > /dev/null; exec <&-; echo closed; exec sleep 100"
    command = agent.start("sh", "-c", script, flags=STDIN)
    agent.send_raw(spend(command, b"x" * FRAME))
    while command.credit < FRAME:
        assert agent.step()
    frame = spend(command, b"x" * FRAME)
    agent.send_raw(frame[:10_000])
    agent.wait_output(command, b"closed\n")
    agent.send_raw(frame[10_000:])
    agent.feed(command, bytes(4 * FRAME))
    assert works(agent)
    agent.kill(command)
    assert agent.wait(command).signal == 9


def test_a_command_that_reads_nothing_holds_up_nobody(agent: Agent) -> None:
    command = agent.start("sleep", "100", flags=STDIN)
    assert fill(agent, command) <= 2 << 20, "what nobody reads is kept without bound"
    assert works(agent)
    agent.kill(command)
    assert agent.wait(command).signal == 9
    assert works(agent)


def test_a_reader_that_wakes_gets_all_of_it_in_order(agent: Agent) -> None:
    """Spliced, read and kept for later by turns."""
    agent.run("mkfifo", "go")
    script = "exec 3<&0; while IFS= read -r line; do head -c 300000 <&3; done < go"
    command = agent.start("sh", "-c", script, flags=STDIN)
    wake = agent.start("sh", "-c", "cat > go", flags=STDIN)
    data = random.Random(1).randbytes(3_000_000)
    received, at = 0, 0
    for _ in range(10):
        while at < len(data) and command.credit > 0:
            size = min(command.credit, FRAME, len(data) - at)
            agent.send_raw(spend(command, data[at : at + size]))
            at += size
            agent.ping()
        agent.send_raw(spend(wake, b"\n"))
        received += 300_000
        while command.total < received:
            if at < len(data) and command.credit > 0:
                size = min(command.credit, FRAME, len(data) - at)
                agent.send_raw(spend(command, data[at : at + size]))
                at += size
            assert agent.step()
    assert hashlib.sha256(command.stdout).digest() == hashlib.sha256(data).digest()
    for each in (wake, command):
        agent.send_raw(encode(each.channel, EOF))
        assert agent.wait(each).exit_code == 0


@pytest.mark.parametrize("seed", range(3))
def test_frames_of_many_commands_cut_at_random(agent: Agent, seed: int) -> None:
    source = random.Random(seed)
    data = [source.randbytes(source.randrange(100_000, 700_000)) for _ in range(6)]
    commands = [agent.start("sha256sum", flags=STDIN) for _ in data]
    sent = [0] * len(data)
    while sent != [len(each) for each in data]:
        number = source.choice([i for i, each in enumerate(data) if sent[i] < len(each)])
        command = commands[number]
        size = min(command.credit, source.choice([1, 100, 20_000, FRAME, FRAME]), len(data[number]) - sent[number])
        if not size:
            assert agent.step()
            continue
        frame = spend(command, data[number][sent[number] : sent[number] + size])
        sent[number] += size
        while frame:
            cut = source.randrange(1, len(frame) + 1)
            agent.send_raw(frame[:cut])
            agent.flush()
            frame = frame[cut:]
    for each, command in zip(data, commands, strict=True):
        agent.send_raw(encode(command.channel, EOF))
        assert agent.wait(command).exit_code == 0
        assert bytes(command.stdout).split()[0].decode() == hashlib.sha256(each).hexdigest()


def test_the_host_s_end_in_the_middle_is_the_session_s(agent: Agent) -> None:
    command = echo(agent)
    agent.send_raw(spend(command, b"x" * FRAME)[:1000])
    agent.wait_output(command, b"x" * (1000 - HEAD))
    assert agent.close() == 0


def test_more_than_was_granted_breaks_the_session(start_agent: StartAgent) -> None:
    agent = start_agent(stderr=subprocess.DEVNULL)
    command = agent.start("sleep", "100", flags=STDIN)
    fill(agent, command)
    agent.send_raw(encode(command.channel, DATA, bytes(FRAME)))
    assert agent.wait_end() == 64


@pytest.mark.parametrize("cut", [20_000, FRAME + HEAD])
def test_no_managed_process_gets_what_is_sent_to_channel_0(start_agent: StartAgent, cut: int) -> None:
    """It has no channel number, so that of the session is its."""
    agent = start_agent(stderr=subprocess.DEVNULL)
    managed.start(agent, "cat", flags=STDIN)
    agent.send_raw(encode(0, DATA, bytes(FRAME))[:cut])
    agent.send_raw(bytes(FRAME + HEAD - cut))
    assert agent.process.wait(DEADLINE) == 64
