"""Output and input of commands: order, credit, coalescing, endings. PROTOCOL.md sections 4.2 and 5.2."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.agent import driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import DATA, EOF, STDIN, WANT_STARTED, Agent, encode

MIB = 1 << 20


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script]


# -- output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_a_flood_arrives_whole(start_agent: StartAgent, pipes: bool) -> None:
    agent = start_agent(pipes=pipes)
    size = 64 * MIB + 17
    script = (
        "import hashlib, os, sys\n"
        "digest = hashlib.md5()\n"
        f"left = {size}\n"
        "block = os.urandom(1 << 20)\n"
        "while left:\n"
        "    part = block[: min(left, len(block))]\n"
        "    sys.stdout.buffer.write(part)\n"
        "    digest.update(part)\n"
        "    left -= len(part)\n"
        "sys.stderr.write(digest.hexdigest())\n"
    )
    command = agent.start(*python(script))
    end = agent.wait(command)
    assert end.exit_code == 0
    assert len(command.stdout) == size
    assert hashlib.md5(command.stdout).hexdigest().encode() == bytes(command.stderr)


def test_nul_bytes_and_no_newline(agent: Agent) -> None:
    command, _ = agent.run("printf", r"a\0b\377")
    assert bytes(command.stdout) == b"a\0b\xff"


def test_many_small_writes_are_coalesced(agent: Agent) -> None:
    command, end = agent.run("dd", "if=/dev/zero", "bs=1", "count=100000", "status=none")
    assert end.exit_code == 0
    assert len(command.stdout) == 100_000
    assert command.frames < 50_000


def test_small_outputs_of_one_moment_come_in_one_read(agent: Agent) -> None:
    """DATA of both streams and EXIT leave in one write when they are there together."""
    command = agent.start("sh", "-c", "echo out; echo err >&2", window=0, auto_grant=False, flags=WANT_STARTED)
    pid = agent.wait_started(command)
    driver.wait_until(lambda: driver.stat_fields(pid) is None, "it has ended")
    agent.ping()
    agent.grant(command, 100)
    assert select.select([agent._in], [], [], driver.DEADLINE)[0]
    received = os.read(agent._in, 65536)
    assert received.count(b"out\n") == received.count(b"err\n") == 1
    agent._received += received
    agent.wait(command)


def test_output_stays_within_the_credit(agent: Agent) -> None:
    command = agent.start("sh", "-c", "yes | head -c 300000", window=1000, auto_grant=False)
    while command.total < 1000:
        assert agent.step()
    agent.ping()
    assert command.total == 1000
    assert not command.done
    agent.grant(command, 1)
    while command.total < 1001:
        assert agent.step()
    agent.ping()
    assert command.total == 1001
    agent.grant(command, 1 << 20)
    assert agent.wait(command).exit_code == 0
    assert bytes(command.stdout) == (b"y\n" * 150_000)


def test_a_command_without_credit_stalls_nobody(agent: Agent) -> None:
    stalled = [agent.start("yes", window=0, auto_grant=False) for _ in range(5)]
    for number in range(20):
        command, end = agent.run("echo", str(number))
        assert (end.exit_code, bytes(command.stdout)) == (0, b"%d\n" % number)
    for command in stalled:
        assert command.total == 0
        agent.kill(command)
    for command in stalled:
        agent.grant(command, MIB * 2)
        assert agent.wait(command).signal == 9


def test_exit_waits_for_credit(agent: Agent) -> None:
    command = agent.start("printf", "12345", window=2, auto_grant=False)
    while command.total < 2:
        assert agent.step()
    agent.ping()
    assert not command.done
    agent.grant(command, 2)
    while command.total < 4:
        assert agent.step()
    agent.ping()
    assert not command.done
    agent.grant(command, 1)
    agent.wait(command)
    assert bytes(command.stdout) == b"12345"


def test_a_flood_does_not_starve_a_small_command(agent: Agent) -> None:
    flood = agent.start("yes", keep=False, window=8 * MIB)
    while flood.total < 8 * MIB:
        assert agent.step()
    for number in range(10):
        command, _ = agent.run("echo", str(number))
        assert bytes(command.stdout) == b"%d\n" % number
    agent.kill(flood)
    agent.wait(flood)


def test_a_host_that_does_not_read_stops_the_command_and_not_the_input(agent: Agent) -> None:
    """The output stream is full; frames of the host are still consumed, megabytes of them."""
    command = agent.start(*python("import os\nwhile True: os.write(1, b'x' * 65536)"), window=1 << 30)
    driver.wait_until(lambda: queue_is_steady(agent), "the stream is full")
    sink = agent.start("sh", "-c", "cat >/dev/null", flags=STDIN)
    sink.credit -= 65536
    agent.send_raw(encode(sink.channel, DATA, b"z" * 65536))
    for _ in range(50_000):
        agent.send_raw(encode(0, driver.PING, b"12345678"))
    deadline = time.monotonic() + driver.DEADLINE
    while agent._unsent:
        assert time.monotonic() < deadline, "the agent does not read"
        agent._write()
        time.sleep(0.001)
    agent.kill(command)
    agent.kill(sink)
    agent.wait(command)
    agent.wait(sink)
    assert 1 <= len(agent.pongs) < 50_000


def queue_is_steady(agent: Agent) -> bool:
    """Nothing more arrives although nothing is read."""

    def queued() -> int:
        return int(struct.unpack("i", fcntl.ioctl(agent._in, termios.FIONREAD, b"\0" * 4))[0])

    before = queued()
    time.sleep(0.05)
    return before > 0 and queued() == before


def test_closing_stdout_and_running_on(agent: Agent) -> None:
    command = agent.start("sh", "-c", "echo one; exec >&-; echo two >&2; sleep 0.1; echo three >&2; exit 4")
    end = agent.wait(command)
    assert end.exit_code == 4
    assert bytes(command.stdout) == b"one\n"
    assert bytes(command.stderr) == b"two\nthree\n"


def test_output_in_the_pipe_at_the_end_is_sent_before_exit(agent: Agent) -> None:
    for size in (1, 4096, 65536):
        command, end = agent.run("head", "-c", str(size), "/dev/zero")
        assert (end.exit_code, len(command.stdout)) == (0, size)


# -- background processes -------------------------------------------------------------------------------------------


def test_a_background_process_does_not_delay_exit(agent: Agent) -> None:
    begin = time.monotonic()
    command, end = agent.run("sh", "-c", "sleep 100 & echo $!")
    assert time.monotonic() - begin < 10
    assert end.pids == (int(command.stdout),)
    assert driver.is_alive(end.pids[0])
    assert end.flags == 0
    assert agent.close() == 0
    assert not driver.is_alive(end.pids[0])


def test_background_pids_are_the_living_ones_at_most_64(agent: Agent) -> None:
    _, end = agent.run("sh", "-c", "for i in $(seq 64); do sleep 100 & done")
    assert len(end.pids) == 64
    assert end.flags & driver.FLAG_PIDS_CUT == 0
    assert all(driver.is_alive(pid) for pid in end.pids)
    _, end = agent.run("sh", "-c", "for i in $(seq 65); do sleep 100 & done")
    assert len(set(end.pids)) == 64
    assert end.flags == driver.FLAG_PIDS_CUT


def test_background_pids_cover_the_whole_tree(agent: Agent) -> None:
    left = ["sh", "sh", "sleep", "sleep", "sleep"]
    script = "setsid sh -c 'sleep 100 & wait' & sh -c 'sleep 100 & sleep 100' & read line"
    command = agent.start("sh", "-c", script, flags=STDIN)
    driver.wait_until(lambda: names(driver.commands_of(agent)) == sorted(["sh", *left]), "all of them run")
    agent.send_raw(encode(command.channel, EOF))
    assert names(agent.wait(command).pids) == left


def names(pids: Iterable[int]) -> list[str]:
    """Of their programs; the shell's, of one that has not begun another."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return sorted(found)


def test_a_background_process_found_in_any_thread(agent: Agent) -> None:
    """Children belong to the thread that forked them."""
    script = (
        "import os, subprocess, sys, threading, time\n"
        "if os.fork() == 0:\n"
        "    def run():\n"
        "        p = subprocess.Popen(['sleep', '100'])\n"
        "        os.write(1, b'%d' % p.pid)\n"
        "        os.close(1)\n"
        "        time.sleep(100)\n"
        "    threading.Thread(target=run).start()\n"
        "    time.sleep(100)\n"
        "else:\n"
        "    r = os.read(0, 1)\n"
    )
    command = agent.start(*python(script), flags=STDIN)
    while not command.stdout:
        assert agent.step()
    agent.send_raw(encode(command.channel, EOF))
    end = agent.wait(command)
    assert int(command.stdout) in end.pids
    assert len(end.pids) == 2


def test_what_a_background_process_writes_is_dropped_and_never_blocks_it(agent: Agent, workspace: Path) -> None:
    script = "(read x <go; head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo > done) & echo started"
    os.mkfifo(workspace / "go")
    command, end = agent.run("sh", "-c", script)
    assert bytes(command.stdout) == b"started\n"
    assert end.pids
    (workspace / "go").write_text("\n")
    driver.wait_until((workspace / "done").exists, "it has written it all")
    agent.ping()


def test_a_background_process_without_pipes(agent: Agent) -> None:
    _, end = agent.run("sh", "-c", "sleep 100 >/dev/null 2>&1 </dev/null &")
    assert len(end.pids) == 1


def test_a_daemon_writing_while_its_parent_ends(agent: Agent) -> None:
    """What is in the pipe at the end comes before EXIT although a process goes on writing; and not more for ever."""
    command = agent.start("sh", "-c", "yes & cat >/dev/null", keep=False, flags=STDIN)
    while command.total == 0:
        assert agent.step()
    agent.send_raw(encode(command.channel, EOF))
    end = agent.wait(command)
    assert end.exit_code == 0
    assert len(end.pids) == 1
    os.kill(end.pids[0], 9)


# -- input ----------------------------------------------------------------------------------------------------------


def test_input(agent: Agent) -> None:
    command, end = agent.run("cat", input=b"hello \0\xff")
    assert (end.exit_code, bytes(command.stdout)) == (0, b"hello \0\xff")
    command, end = agent.run("cat", input=b"")
    assert (end.exit_code, bytes(command.stdout)) == (0, b"")


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_a_hundred_megabytes_through_a_command(start_agent: StartAgent, pipes: bool) -> None:
    agent = start_agent(pipes=pipes)
    block = os.urandom(MIB)
    size = 100 * MIB
    command = agent.start("md5sum", flags=STDIN)
    agent.feed(command, block * 100)
    agent.wait(command)
    digest = hashlib.md5(block * 100).hexdigest()
    assert bytes(command.stdout).decode().split()[0] == digest
    command = agent.start("wc", "-c", flags=STDIN)
    agent.feed(command, bytes(size))
    agent.wait(command)
    assert int(command.stdout) == size


def test_an_echo_of_everything(agent: Agent) -> None:
    data = os.urandom(8 * MIB)
    command, end = agent.run("cat", input=data)
    assert end.exit_code == 0
    assert bytes(command.stdout) == data


def test_interactive(agent: Agent) -> None:
    command = agent.start("cat", flags=STDIN)
    for number in range(50):
        line = b"line %d\n" % number
        agent.send_raw(encode(command.channel, DATA, line))
        agent.wait_output(command, line)
    assert command.windows == 0, "no grants for a few bytes"
    agent.send_raw(encode(command.channel, EOF))
    assert agent.wait(command).exit_code == 0


def test_input_that_is_ignored(agent: Agent) -> None:
    """More than the pipe and the credit hold: no deadlock, no error."""
    command = agent.start("sh", "-c", "sleep 0.2; exit 3", flags=STDIN)
    agent.feed(command, bytes(4 * MIB))
    assert agent.wait(command).exit_code == 3


def test_input_for_a_command_that_closed_it_is_dropped_and_granted(agent: Agent) -> None:
    command = agent.start("sh", "-c", "exec <&-; echo closed; exec sleep 100", flags=STDIN)
    agent.wait_output(command, b"closed\n")
    agent.feed(command, bytes(MIB))
    agent.ping()
    assert not command.done
    agent.kill(command)
    agent.wait(command)


def test_input_that_waits_when_the_command_closes_it(agent: Agent) -> None:
    command = agent.start("sh", "-c", "read x; exec <&-; echo closed; exec sleep 100", flags=STDIN | WANT_STARTED)
    agent.feed(command, b"\n" + bytes(4 * MIB))
    agent.wait_output(command, b"closed\n")
    agent.kill(command)
    agent.wait(command)


def test_input_that_nobody_announced_is_dropped(agent: Agent) -> None:
    command = agent.start("sh", "-c", "cat; exec sleep 100")
    for _ in range(6):
        command.credit -= 10_000
        agent.send_raw(encode(command.channel, DATA, b"x" * 10_000))
    agent.send_raw(encode(command.channel, EOF))
    agent.ping()
    while command.windows < 1:
        assert agent.step()
    assert bytes(command.stdout) == b""
    agent.kill(command)
    agent.wait(command)


def test_input_after_end_of_file_is_dropped(agent: Agent) -> None:
    command = agent.start("sh", "-c", "cat; exec sleep 100", flags=STDIN)
    agent.send_raw(encode(command.channel, DATA, b"before\n") + encode(command.channel, EOF))
    agent.send_raw(encode(command.channel, DATA, b"after\n") + encode(command.channel, EOF))
    agent.wait_output(command, b"before\n")
    agent.ping()
    assert bytes(command.stdout) == b"before\n"
    agent.kill(command)
    agent.wait(command)


def test_end_of_file_waits_for_the_input_before_it(agent: Agent) -> None:
    command = agent.start("sh", "-c", "sleep 0.1; wc -c", flags=STDIN)
    credit = b"".join(encode(command.channel, DATA, b"x" * 16384) for _ in range(4))
    agent.send_raw(credit + encode(command.channel, EOF))
    command.credit -= 65536
    agent.wait(command)
    assert int(command.stdout) == 65536


def test_more_input_than_granted_breaks_the_session(start_agent: StartAgent) -> None:
    agent = start_agent(stderr=subprocess.DEVNULL)
    command = agent.start("sleep", "100", flags=STDIN)
    for _ in range(3):
        command.credit -= 65536
        agent.send_raw(encode(command.channel, DATA, b"x" * 65536))
    assert agent.wait_end() == 64


def test_input_by_credit_never_stalls(agent: Agent) -> None:
    """One command that does not read holds up neither the input of another nor anything else."""
    asleep = agent.start("sleep", "100", flags=STDIN)
    for _ in range(4):
        asleep.credit -= 16384
        agent.send_raw(encode(asleep.channel, DATA, b"x" * 16384))
    command, end = agent.run("wc", "-c", input=bytes(3 * MIB))
    assert (end.exit_code, int(command.stdout)) == (0, 3 * MIB)
    agent.kill(asleep)
    agent.wait(asleep)


def test_a_socket_pair_with_tiny_buffers(start_agent: StartAgent) -> None:
    agent = start_agent()
    assert agent._socket is not None
    agent._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    agent._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    data = os.urandom(MIB)
    command, _ = agent.run("cat", input=data)
    assert bytes(command.stdout) == data
