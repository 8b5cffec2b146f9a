"""KILL and timeouts: the whole tree goes, however it tries to stay. PROTOCOL.md section 5.4.

Every test first sees the processes alive.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.agent import build, driver
from tests.agent.conftest import UID, StartAgent
from tests.agent.driver import BY_ITSELF, BY_KILL, STDIN, TIMEOUT, WANT_STARTED, Agent, commands_of
from tests.support.waiting import MARGIN, wait_until

T = TypeVar("T")

SOON = 2.5 * MARGIN  # seconds; in truth milliseconds


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script]


DEEP = """
import os, time
depth = 0
while depth < 100 and os.fork() == 0:
    depth += 1
if depth == 100:
    os.write(1, b"ready")
time.sleep(1000)
"""
THREADS = """
import subprocess, threading, time
def run(last):
    subprocess.Popen(["sleep", "1000"])
    if last:
        print("ready", flush=True)
    time.sleep(1000)
for i in range(20):
    threading.Thread(target=run, args=(i == 19,)).start()
"""
SUBREAPER = """
import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"ready")
    else:
        os._exit(0)
time.sleep(1000)
"""
# A sibling of its parent: a direct child of the supervisor.
CLONE_PARENT = """
import ctypes, os, time
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0:
    os.setsid()
    os.write(1, b"ready")
time.sleep(1000)
"""
TREES = {
    "one process": (1, ["sh", "-c", "echo ready; exec sleep 1000"]),
    "a pipeline": (3, ["sh", "-c", "sleep 1000 | sleep 1000 & echo ready; wait"]),
    "another session": (2, ["sh", "-c", "setsid sleep 1000 & echo ready; wait"]),
    "daemons": (4, ["sh", "-c", "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 0.1; echo ready; sleep 1000"]),
    "a stopped child": (2, ["sh", "-c", "sleep 1000 & kill -STOP $!; echo ready; wait"]),
    "a stopped command": (1, ["sh", "-c", "echo ready; kill -STOP $$"]),
    "ignored signals": (2, ["sh", "-c", "trap '' TERM HUP INT QUIT; sleep 1000 & echo ready; wait; sleep 1000"]),
    "a wide tree": (201, ["sh", "-c", "for i in $(seq 200); do sleep 1000 & done; echo ready; wait"]),
    "a deep tree": (101, python(DEEP)),
    "children of threads": (21, python(THREADS)),
    "a subreaper of its own": (2, python(SUBREAPER)),
    "a sibling of its parent": (2, python(CLONE_PARENT)),
    "a command that is a zombie": (
        1,
        ["sh", "-c", "sh -c 'sleep 0.05; echo ready; exec sleep 1000' & exec sleep 1000"],
    ),
}


def start_tree(agent: Agent, name: str, timeout_ms: int = 0, grace_ms: int = 0) -> driver.Command:
    least, argv = TREES[name]
    command = agent.start(*argv, timeout_ms=timeout_ms, grace_ms=grace_ms)
    agent.wait_output(command, b"ready")
    wait_until(lambda: len(commands_of(agent)) >= least, f"{least} processes")
    return command


def in_time(attempt: Callable[[int], T | None]) -> T:
    """What `attempt` makes of a timeout in milliseconds; of a longer one when a loaded machine was too slow for it."""
    for timeout_ms in (300, 1200, 4800, 19200):
        if (made := attempt(timeout_ms)) is not None:
            return made
    raise AssertionError("this machine is too slow for any timeout")


@pytest.mark.parametrize("name", TREES)
def test_kill_at_once(any_agent: Agent, name: str) -> None:
    command = start_tree(any_agent, name)
    begin = time.monotonic()
    any_agent.kill(command)
    end = any_agent.wait(command)
    assert time.monotonic() - begin < SOON
    assert commands_of(any_agent) == []
    assert (end.how, end.signal, end.reason, end.pids) == (1, signal.SIGKILL, BY_KILL, ())
    _, end = any_agent.run("true")
    assert end.exit_code == 0


@pytest.mark.parametrize("name", TREES)
def test_kill_with_a_grace(any_agent: Agent, name: str) -> None:
    command = start_tree(any_agent, name)
    any_agent.kill(command, grace_ms=300)
    begin = time.monotonic()
    end = any_agent.wait(command)
    took = time.monotonic() - begin
    assert commands_of(any_agent) == []
    assert end.reason == BY_KILL
    stubborn = name == "ignored signals"
    assert (end.how, end.signal) == (1, signal.SIGKILL if stubborn else signal.SIGTERM)
    assert (0.25 < took < SOON) if stubborn else (took < SOON)


@pytest.mark.parametrize("name", ["one process", "daemons", "ignored signals"])
@pytest.mark.parametrize("grace_ms", [0, 200])
def test_timeout(agent: Agent, name: str, grace_ms: int) -> None:
    def attempt(timeout_ms: int) -> tuple[driver.Command, float, int] | None:
        begin = time.monotonic()
        command = agent.start(*TREES[name][1], timeout_ms=timeout_ms, grace_ms=grace_ms)
        while not command.done and b"ready" not in command.stdout:
            assert agent.step()
        if not command.done and len(commands_of(agent)) >= TREES[name][0]:
            return command, begin, timeout_ms
        agent.wait(command)
        return None

    command, begin, timeout_ms = in_time(attempt)
    end = agent.wait(command)
    took = time.monotonic() - begin
    assert commands_of(agent) == []
    stubborn = name == "ignored signals"
    assert (end.how, end.signal) == (1, signal.SIGTERM if grace_ms and not stubborn else signal.SIGKILL)
    assert (end.reason, end.pids) == (TIMEOUT, ())
    least = (timeout_ms + (grace_ms if stubborn else 0)) / 1000
    assert least <= took < least + SOON


def test_timeouts_are_precise(agent: Agent) -> None:
    """Never early; and the best of some not late: a busy machine may come to each of them when it likes."""
    for milliseconds in (1, 5, 20, 50):
        late = []
        for _ in range(5):
            commands = [agent.start("sleep", "1000", timeout_ms=milliseconds) for _ in range(3)]
            for command in commands:
                end = agent.wait(command)
                assert end.reason == TIMEOUT
                late.append(end.wall - milliseconds * 1000)
        assert 0 <= min(late) < 200_000, late
        assert max(late) < SOON * 1_000_000


def test_a_timeout_that_is_not_reached(agent: Agent) -> None:
    _, end = agent.run("sh", "-c", "exit 3", timeout_ms=60_000, grace_ms=1000)
    assert (end.exit_code, end.reason) == (3, BY_ITSELF)


def test_output_so_far_is_kept(agent: Agent, workspace: Path) -> None:
    def attempt(timeout_ms: int) -> driver.Command | None:
        script = "printf out; printf err >&2; touch said; sleep 1000"
        command, end = agent.run("sh", "-c", script, timeout_ms=timeout_ms)
        assert end.reason == TIMEOUT
        return command if (workspace / "said").exists() else None

    command = in_time(attempt)
    assert (bytes(command.stdout), bytes(command.stderr)) == (b"out", b"err")


def test_a_command_may_use_its_grace(agent: Agent) -> None:
    script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    command = agent.start("sh", "-c", script)
    agent.wait_output(command, b"ready\n")
    agent.kill(command, grace_ms=20_000)
    end = agent.wait(command)
    assert bytes(command.stdout) == b"ready\nbye\n"
    assert (end.exit_code, end.reason) == (5, BY_KILL)


def test_a_stopped_command_gets_its_grace(agent: Agent) -> None:
    command = agent.start("sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; kill -STOP $$; sleep 1000")
    agent.wait_output(command, b"ready\n")
    wait_until(lambda: any(is_stopped(pid) for pid in commands_of(agent)), "it is stopped")
    agent.kill(command, grace_ms=20_000)
    assert agent.wait(command).exit_code == 5


def is_stopped(pid: int) -> bool:
    fields = driver.stat_fields(pid)
    return fields is not None and fields[0] == "T"


def test_the_grace_is_for_the_whole_tree(agent: Agent) -> None:
    """The command itself goes at the first signal, a child of it does not."""
    script = "trap 'exit 0' TERM; (trap '' TERM; echo ready; sleep 1000; sleep 1000) & while :; do sleep 0.01; done"
    command = agent.start("sh", "-c", script)
    agent.wait_output(command, b"ready\n")
    begin = time.monotonic()
    agent.kill(command, grace_ms=300)
    end = agent.wait(command)
    assert 0.25 < time.monotonic() - begin < SOON
    assert (end.exit_code, end.reason, end.pids) == (0, BY_KILL, ())
    assert commands_of(agent) == []


def test_a_second_kill_shortens_the_grace(agent: Agent) -> None:
    for second in (0, 100):
        command = start_tree(agent, "ignored signals")
        agent.kill(command, grace_ms=1_000_000)
        agent.ping()
        agent.kill(command, grace_ms=second)
        begin = time.monotonic()
        assert agent.wait(command).signal == signal.SIGKILL
        assert time.monotonic() - begin < SOON


def test_a_second_kill_never_lengthens_the_grace(agent: Agent) -> None:
    command = start_tree(agent, "ignored signals")
    begin = time.monotonic()
    agent.kill(command, grace_ms=200)
    agent.kill(command, grace_ms=1_000_000)
    agent.wait(command)
    assert time.monotonic() - begin < SOON


def test_a_kill_shortens_the_grace_of_a_timeout(agent: Agent) -> None:
    """It has timed out when it says that SIGTERM has come."""

    def attempt(timeout_ms: int) -> driver.Command | None:
        script = "trap 'echo told' TERM; while :; do sleep 0.01; done"
        command = agent.start("sh", "-c", script, timeout_ms=timeout_ms, grace_ms=1_000_000)
        while not command.done and b"told" not in command.stdout:
            assert agent.step()
        if not command.done:
            return command
        agent.wait(command)  # there was no trap yet
        return None

    command = in_time(attempt)
    begin = time.monotonic()
    agent.kill(command)
    end = agent.wait(command)
    assert time.monotonic() - begin < SOON
    assert (end.signal, end.reason) == (signal.SIGKILL, TIMEOUT)


def test_a_timeout_is_off_once_the_command_is_being_killed(agent: Agent) -> None:
    def attempt(timeout_ms: int) -> driver.Exit | None:
        script = f"trap 'sleep {timeout_ms / 1000 + 0.2}; exit 6' TERM; echo ready; while :; do sleep 0.01; done"
        begin = time.monotonic()
        command = agent.start("sh", "-c", script, timeout_ms=timeout_ms, grace_ms=60_000)
        while not command.done and b"ready\n" not in command.stdout:
            assert agent.step()
        if not command.done:
            agent.kill(command, grace_ms=60_000)
            agent.ping()
        is_in_time = time.monotonic() - begin < timeout_ms / 1000
        end = agent.wait(command)
        return end if is_in_time else None

    end = in_time(attempt)
    assert (end.exit_code, end.reason) == (6, BY_KILL)


def test_kill_before_the_command_has_begun(any_agent: Agent) -> None:
    for _ in range(50):
        command = any_agent.start("sleep", "1000")
        any_agent.kill(command)
        end = any_agent.wait(command)
        assert (end.how, end.signal, end.reason) == (1, signal.SIGKILL, BY_KILL)
    assert commands_of(any_agent) == []


def test_kill_crossing_with_the_end(any_agent: Agent) -> None:
    """Whoever wins, there is one EXIT, and its reason is true."""
    for number in range(100):
        command = any_agent.start("true")
        if number % 2:
            any_agent.ping()
        any_agent.kill(command, grace_ms=number % 3)
        end = any_agent.wait(command)
        if end.reason == BY_ITSELF:
            assert end.exit_code == 0
        else:
            assert end.reason == BY_KILL


def test_kill_of_a_command_that_ended_but_waits_for_credit(agent: Agent) -> None:
    command = agent.start("printf", "12345", window=0, auto_grant=False, flags=WANT_STARTED)
    pid = agent.wait_started(command)
    wait_until(lambda: driver.stat_fields(pid) is None, "it has ended")
    agent.ping()
    agent.kill(command)
    agent.grant(command, 100)
    end = agent.wait(command)
    assert bytes(command.stdout) == b"12345"
    assert (end.exit_code, end.reason) == (0, BY_ITSELF)


def test_kill_reaches_the_background_while_exit_waits_for_credit(agent: Agent) -> None:
    command = agent.start("sh", "-c", "sleep 1000 & echo hi", window=0, auto_grant=False, flags=WANT_STARTED)
    pid = agent.wait_started(command)
    wait_until(lambda: driver.stat_fields(pid) is None, "it has ended")
    agent.ping()
    assert len(commands_of(agent)) == 1
    agent.kill(command)
    agent.grant(command, 100)
    end = agent.wait(command)
    assert (end.exit_code, end.reason, end.pids) == (0, BY_KILL, ())
    assert commands_of(agent) == []


def test_kill_of_a_command_without_credit(agent: Agent) -> None:
    command = agent.start("yes", window=10, auto_grant=False)
    while command.total < 10:
        assert agent.step()
    agent.kill(command)
    wait_until(lambda: commands_of(agent) == [], "it is dead")
    agent.grant(command, 1 << 20)
    assert agent.wait(command).signal == signal.SIGKILL


def test_kill_of_a_command_that_does_not_read(agent: Agent) -> None:
    command = agent.start("sleep", "1000", flags=STDIN)
    command.credit -= 65536
    agent.send_raw(driver.encode(command.channel, driver.DATA, b"x" * 65536))
    agent.kill(command)
    assert agent.wait(command).signal == signal.SIGKILL


def test_a_hundred_kills_at_once(agent: Agent) -> None:
    commands = [agent.start("sh", "-c", "sleep 1000 & echo ready; wait") for _ in range(100)]
    for command in commands:
        agent.wait_output(command, b"ready\n")
    assert len(commands_of(agent)) == 200
    begin = time.monotonic()
    for command in commands:
        agent.kill(command)
    for command in commands:
        assert agent.wait(command).signal == signal.SIGKILL
    assert time.monotonic() - begin < SOON
    assert commands_of(agent) == []


# -- processes that multiply ----------------------------------------------------------------------------------------

# Forks and ends, for ever: always another number. Each leaves a byte in a file.
COMET = """
import os, time
if os.fork() == 0:
    os.setsid()
    beat = os.open("beat", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        os.write(beat, b"x")
        if os.fork():
            os._exit(0)
time.sleep(1000)
"""
# Each killed child is replaced, by a parent that looks out for it.
HYDRA = """
import os, time
def grow(depth):
    while True:
        pid = os.fork()
        if pid == 0:
            grow(depth + 1) if depth < 3 else time.sleep(1000)
        if depth == 0:
            os.write(1, b"ready")
        os.waitpid(pid, 0)
for _ in range(10):
    if os.fork() == 0:
        grow(1)
grow(0)
"""


def beats(workspace: Path) -> int:
    file = workspace / "beat"
    return file.stat().st_size if file.exists() else 0


def test_a_comet_dies(any_agent: Agent, workspace: Path) -> None:
    command = any_agent.start(*python(COMET))
    wait_until(lambda: beats(workspace) > 20, "it flies")
    begin = time.monotonic()
    any_agent.kill(command)
    end = any_agent.wait(command)
    assert time.monotonic() - begin < SOON
    assert (end.signal, end.reason) == (signal.SIGKILL, BY_KILL)
    before = beats(workspace)
    time.sleep(0.1)  # for it to show that it lives
    assert beats(workspace) == before
    assert commands_of(any_agent) == []


def test_a_hydra_dies(any_agent: Agent) -> None:
    command = any_agent.start(*python(HYDRA))
    any_agent.wait_output(command, b"ready")
    wait_until(lambda: len(commands_of(any_agent)) >= 20, "it has grown")
    begin = time.monotonic()
    any_agent.kill(command)
    end = any_agent.wait(command)
    assert time.monotonic() - begin < SOON
    assert (end.signal, end.reason) == (signal.SIGKILL, BY_KILL)
    assert commands_of(any_agent) == []


def limited(start_agent: StartAgent, binary: Path, folder: Path, processes: int) -> Agent:
    """An agent of a user of its own, with so many processes."""
    if os.geteuid() != 0:
        pytest.skip("needs a user without other processes")
    prefix = (f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "prlimit", f"--nproc={processes}")
    return start_agent(binary=shutil.copy2(binary, folder / "agent"), prefix=("setpriv", *prefix))


def test_a_fork_bomb_dies(start_agent: StartAgent, binary: Path, public_folder: Path) -> None:
    agent = limited(start_agent, binary, public_folder, 200)
    bomb = shutil.copy2(build.tool("bomb"), public_folder / "bomb")
    for _ in range(2):
        command = agent.start(str(bomb), keep=False)
        wait_until(lambda: len(commands_of(agent)) > 150, "it is full")
        error_or_exit = agent.start("true")  # by the spare, or not at all
        begin = time.monotonic()
        agent.kill(command)
        end = agent.wait(command)
        assert time.monotonic() - begin < SOON
        assert (end.signal, end.reason) == (signal.SIGKILL, BY_KILL)
        while not error_or_exit.done:
            assert agent.step()
        wait_until(lambda: commands_of(agent) == [], "they are all gone")
    assert agent.run("true")[1].exit_code == 0


def test_no_process_left_but_the_spare(start_agent: StartAgent, binary: Path, public_folder: Path) -> None:
    """The agent and its spare are all that the limit allows: the spare runs a command, and the next is told why not."""
    agent = limited(start_agent, binary, public_folder, 3)
    wait_until(lambda: len(driver.supervisors_of(agent)) == 2, "the spare is there")
    command = agent.start("sleep", "1000", flags=WANT_STARTED)
    agent.wait_started(command)
    for _ in range(3):
        error = agent.wait_error(agent.start("true"))
        assert (error.code, error.errno) == (driver.BUSY, errno.EAGAIN)
    agent.kill(command)
    assert agent.wait(command).signal == signal.SIGKILL
    for _ in range(20):
        wait_until(lambda: len(driver.supervisors_of(agent)) == 2, "there is room")
        assert agent.run("true")[1].exit_code == 0


def test_room_for_a_supervisor_and_no_command(start_agent: StartAgent, binary: Path, public_folder: Path) -> None:
    agent = limited(start_agent, binary, public_folder, 4)
    wait_until(lambda: len(driver.supervisors_of(agent)) == 2, "the spare is there")
    command = agent.start("sleep", "1000", flags=WANT_STARTED)
    agent.wait_started(command)
    for _ in range(3):
        error = agent.wait_error(agent.start("true"))
        assert (error.code, error.errno) == (driver.BUSY, errno.EAGAIN)
    agent.kill(command)
    assert agent.wait(command).signal == signal.SIGKILL
