"""Commands on a terminal: EXEC with TTY, and RESIZE."""

from __future__ import annotations

import struct
import sys

import pytest

from tests.agent import driver
from tests.agent.driver import DATA, EOF, RESIZE, STDIN, TTY, Agent, encode


def test_all_three_are_one_terminal(any_agent: Agent) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && tty && echo err >&2"
    command = any_agent.start("sh", "-c", script, flags=TTY, rows=24, columns=80)
    assert any_agent.wait(command).exit_code == 0
    lines = bytes(command.stdout).splitlines()
    assert lines[0].startswith(b"/dev/pts/")
    assert lines[1] == b"err"
    assert bytes(command.stderr) == b""


def test_it_is_the_controlling_terminal(agent: Agent) -> None:
    command = agent.start("sh", "-c", "echo hello >/dev/tty", flags=TTY)
    assert agent.wait(command).exit_code == 0
    assert bytes(command.stdout) == b"hello\r\n"


def test_size_and_resize(agent: Agent) -> None:
    script = "stty size; trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.01; done"
    command = agent.start("sh", "-c", script, flags=TTY, rows=33, columns=121)
    agent.wait_output(command, b"ready")
    agent.send_raw(encode(command.channel, RESIZE, struct.pack("<HH", 50, 60)))
    assert agent.wait(command).exit_code == 3
    assert bytes(command.stdout).split() == [b"33", b"121", b"ready", b"50", b"60"]


def test_resize_without_a_terminal_is_ignored(agent: Agent) -> None:
    command = agent.start("cat", flags=STDIN)
    agent.send_raw(encode(command.channel, RESIZE, struct.pack("<HH", 50, 60)) + encode(command.channel, EOF))
    assert agent.wait(command).exit_code == 0


def test_no_input_is_end_of_file(agent: Agent) -> None:
    command = agent.start("cat", flags=TTY)
    assert agent.wait(command).exit_code == 0


def test_input_and_its_end(agent: Agent) -> None:
    command = agent.start("sh", "-c", "stty -echo; echo ready; cat", flags=TTY | STDIN)
    agent.wait_output(command, b"ready")
    agent.feed(command, b"one\ntwo\n")
    assert agent.wait(command).exit_code == 0
    assert bytes(command.stdout) == b"ready\r\none\r\ntwo\r\n"


def test_interrupt(agent: Agent) -> None:
    command = agent.start("sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.01; done", flags=TTY | STDIN)
    agent.wait_output(command, b"ready")
    agent.send_raw(encode(command.channel, DATA, b"\x03"))
    assert agent.wait(command).exit_code == 9


def test_much_output(agent: Agent) -> None:
    command = agent.start("sh", "-c", "stty -opost; seq 200000", flags=TTY)
    assert agent.wait(command).exit_code == 0
    assert bytes(command.stdout) == b"".join(b"%d\n" % number for number in range(1, 200_001))


def test_output_at_the_end_is_complete(agent: Agent) -> None:
    """The kernel hands a terminal's bytes over late: none may be missing."""
    for number in range(100):
        command = agent.start("echo", str(number), flags=TTY)
        agent.wait(command)
        assert bytes(command.stdout) == b"%d\r\n" % number


def test_much_input(agent: Agent) -> None:
    """A terminal takes little at once: the rest waits for it."""
    script = """
import sys, tty
tty.setraw(0)
print("ready", flush=True)
left = 500000
while left:
    left -= len(sys.stdin.buffer.read1(left))
"""
    command = agent.start(sys.executable, "-I", "-S", "-c", script, flags=TTY | STDIN)
    agent.wait_output(command, b"ready")
    agent.feed(command, b"x" * 500_000)
    assert agent.wait(command).exit_code == 0


def test_a_background_process_on_the_terminal(agent: Agent) -> None:
    script = "trap '' HUP; (trap '' HUP; while :; do echo noise; sleep 0.001; done) & echo $!"
    command = agent.start("sh", "-c", script, flags=TTY)
    end = agent.wait(command)
    (pid,) = (int(word) for word in command.stdout.split() if word.isdigit())
    assert pid in end.pids
    assert driver.is_alive(pid)
    agent.ping()
    assert agent.close() == 0
    assert not driver.is_alive(pid)


def test_kill(any_agent: Agent) -> None:
    command = any_agent.start("sh", "-c", "echo ready; sleep 1000", flags=TTY)
    any_agent.wait_output(command, b"ready")
    any_agent.kill(command)
    assert any_agent.wait(command).signal == 9


def test_why_it_cannot_run(agent: Agent) -> None:
    command = agent.start("nonsense", flags=TTY)
    end = agent.wait(command)
    assert (end.code, end.flags) == (127, driver.FLAG_NOT_RUN)
    assert b"nonsense: command not found" in command.stdout


@pytest.mark.parametrize("count", [40])
def test_terminals_are_given_back(agent: Agent, count: int) -> None:
    numbers = []
    for _ in range(count):
        command = agent.start("tty", flags=TTY)
        agent.wait(command)
        numbers.append(int(bytes(command.stdout).rsplit(b"/", 1)[1]))
    assert numbers[-1] < count
