"""What the agent costs: descriptors, memory, CPU time, size. And its limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent import build, driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import STDIN, WANT_STARTED, Agent, encode, wait_until

MIB = 1 << 20


def open_files(agent: Agent) -> int:
    """Beside the one for each supervisor, of which a few may be kept."""
    return len(os.listdir(f"/proc/{agent.process.pid}/fd")) - len(driver.children(agent.process.pid))


def rss(agent: Agent) -> int:
    for line in Path(f"/proc/{agent.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def settle(agent: Agent) -> None:
    """Until nothing is left of what has run: a spare and up to four idle supervisors are all there is, and stay."""
    spare = 2

    def steady() -> bool:
        before = driver.descendants(agent.process.pid), open_files(agent)
        agent.ping()
        time.sleep(0.02)
        now = driver.descendants(agent.process.pid), open_files(agent)
        return before == now and spare <= len(now[0]) <= spare + 4

    wait_until(steady, "only the spare is there")


def test_nothing_grows_with_the_number_of_commands(agent: Agent, is_sanitized: bool) -> None:
    rounds = 400 if is_sanitized else 2000
    for _ in range(50):
        agent.run("true")
    settle(agent)
    files, memory = open_files(agent), rss(agent)
    for number in range(rounds):
        if number % 10 == 0:
            agent.run("no-such-command")
            agent.wait_error(agent.start("true", cwd="missing"))
        else:
            agent.run("cat", input=b"hello")
    settle(agent)
    wait_until(lambda: open_files(agent) == files, "descriptors are given back")
    if not is_sanitized:
        assert rss(agent) <= memory + 64 * 1024


def test_nothing_grows_with_traffic(agent: Agent, is_sanitized: bool) -> None:
    def traffic(size: int) -> None:
        command = agent.start("head", "-c", str(size), "/dev/zero", keep=False, window=4 * MIB)
        assert agent.wait(command).exit_code == 0
        command = agent.start("wc", "-c", flags=STDIN)
        agent.feed(command, bytes(size // 8))
        assert agent.wait(command).exit_code == 0

    traffic(64 * MIB)
    settle(agent)
    files, memory = open_files(agent), rss(agent)
    traffic(256 * MIB)
    settle(agent)
    wait_until(lambda: open_files(agent) == files, "descriptors are given back")
    if not is_sanitized:
        assert rss(agent) <= memory + 256 * 1024  # its buffers may not have been used to their end before
        assert rss(agent) < MIB


def test_memory_of_a_great_request_is_given_back(agent: Agent, is_sanitized: bool) -> None:
    agent.run("true")
    settle(agent)
    before = rss(agent)
    for _ in range(3):
        agent.run("true", *["x" * 100_000] * 40)
    settle(agent)
    if not is_sanitized:
        assert rss(agent) <= before + 256 * 1024


def test_idle_memory(agent: Agent, is_sanitized: bool) -> None:
    agent.run("true")
    settle(agent)
    if not is_sanitized:
        assert rss(agent) <= MIB // 2


def test_size_of_the_binaries() -> None:
    for arch in ("x86_64", "aarch64"):
        assert build.release(arch).stat().st_size <= 150_000


def test_the_binary_is_static(binary: Path, is_sanitized: bool) -> None:
    if not is_sanitized:
        assert b"ld-linux" not in binary.read_bytes()


# -- CPU time -------------------------------------------------------------------------------------------------------


def wakeups(pid: int) -> tuple[int, int]:
    """How often it slept, and nanoseconds that it ran."""
    status = Path(f"/proc/{pid}/status").read_text()
    sleeps = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
    return sleeps, int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def idle(agent: Agent) -> None:
    pass


def background(agent: Agent) -> None:
    agent.run("sh", "-c", "sleep 1000 & sleep 1000 >/dev/null 2>&1 &")


def closed_streams(agent: Agent) -> None:
    command = agent.start("sh", "-c", "echo ready; exec >/dev/null 2>&1 </dev/null; exec sleep 1000", flags=STDIN)
    agent.wait_output(command, b"ready\n")


def no_credit(agent: Agent) -> None:
    agent.start("yes", window=0, auto_grant=False)


def ended_without_credit(agent: Agent) -> None:
    agent.start("echo", "hello", window=0, auto_grant=False)


def full_output(agent: Agent) -> None:
    agent.start("yes", window=1 << 30)


def full_input(agent: Agent) -> None:
    command = agent.start("sleep", "1000", flags=STDIN)
    agent.send_raw(encode(command.channel, driver.DATA, b"x" * 65536))


def terminal(agent: Agent) -> None:
    command = agent.start("sh", "-c", "echo ready; exec sleep 1000 </dev/null >/dev/null 2>&1", flags=driver.TTY)
    agent.wait_output(command, b"ready")


def long_grace(agent: Agent) -> None:
    command = agent.start("sh", "-c", "trap '' TERM; echo ready; sleep 1000; sleep 1000", timeout_ms=1_000_000)
    agent.wait_output(command, b"ready\n")
    agent.kill(command, grace_ms=1_000_000)


@pytest.mark.parametrize(
    "situation",
    [idle, background, closed_streams, no_credit, ended_without_credit, full_output, full_input, terminal, long_grace],
)
def test_waiting_costs_nothing(agent: Agent, situation: Callable[[Agent], None]) -> None:
    """Whatever it waits for, it sleeps; so do the supervisors."""
    situation(agent)
    watched = [agent.process.pid]

    def steady() -> bool:
        watched[1:] = driver.supervisors_of(agent)
        try:
            before = [wakeups(pid) for pid in watched]
            time.sleep(0.35)
            return before == [wakeups(pid) for pid in watched]
        except FileNotFoundError:  # the process of a command that had not called execve yet
            return False

    # What has just begun or ended may cost something yet, on a busy machine any time. What polls never rests.
    wait_until(steady, "for a third of a second nothing runs")


# -- limits ---------------------------------------------------------------------------------------------------------


def test_512_commands_at_once(agent: Agent, is_sanitized: bool) -> None:
    commands = [agent.start("cat", flags=STDIN) for _ in range(512)]
    refused = agent.start("true")
    error = agent.wait_error(refused, timeout=60)
    assert (error.code, error.errno) == (driver.BUSY, 0)
    for command in commands:
        agent.send_raw(encode(command.channel, driver.DATA, b"%d" % command.channel))
        agent.send_raw(encode(command.channel, driver.EOF))
    for command in commands:
        assert agent.wait(command).exit_code == 0
        assert bytes(command.stdout) == b"%d" % command.channel
    settle(agent)
    if not is_sanitized:
        assert rss(agent) <= 2 * MIB
    assert agent.run("true")[1].exit_code == 0


def test_commands_in_the_background_do_not_count_as_running(agent: Agent) -> None:
    for _ in range(100):
        _, end = agent.run("sh", "-c", "sleep 1000 &")
        assert len(end.pids) == 1
    assert agent.run("true")[1].exit_code == 0


def test_no_descriptors_left(start_agent: StartAgent) -> None:
    agent = start_agent(prefix=("prlimit", "--nofile=24:24"))
    commands = [agent.start("sleep", "1000", flags=WANT_STARTED) for _ in range(20)]
    outcomes = []
    for command in commands:
        while not command.done and command.pid is None:
            assert agent.step()
        outcomes.append(command.error.code if command.error is not None else 0)
    assert outcomes.count(0) >= 2
    assert outcomes.count(driver.BUSY) >= 10
    assert set(outcomes) == {0, driver.BUSY}
    for command in commands:
        if not command.done:
            agent.kill(command)
            agent.wait(command)
    for _ in range(10):
        assert agent.run("true")[1].exit_code == 0


def test_many_at_once_again_and_again(agent: Agent, is_sanitized: bool) -> None:
    for _ in range(3 if is_sanitized else 10):
        commands = [agent.start("echo", str(number)) for number in range(100)]
        for number, command in enumerate(commands):
            assert agent.wait(command).exit_code == 0
            assert bytes(command.stdout) == b"%d\n" % number
    settle(agent)


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup with 48 MiB, version 1 or 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    v1 = [line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")]
    parent = Path("/sys/fs/cgroup/memory" + v1[0]) if v1 else Path("/sys/fs/cgroup")
    group = parent / f"agent-test-{os.getpid()}"
    try:
        if not v1:
            (parent / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(48 * MIB))
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the cgroup is empty")
    group.rmdir()


def test_out_of_memory_is_reported(memory_cgroup: Path, start_agent: StartAgent) -> None:
    agent = start_agent(prefix=("sh", "-c", f'echo $$ >{memory_cgroup}/cgroup.procs; exec "$@"', "sh"))
    assert agent.hello["memory_max"] == str(48 * MIB)
    _, end = agent.run("sh", "-c", "kill -9 $$")
    assert end.flags == 0
    _, end = agent.run("tail", "/dev/zero")
    assert (end.signal, end.flags) == (9, driver.FLAG_OOM)
    _, end = agent.run("sh", "-c", "tail /dev/zero; exit 137")
    assert (end.exit_code, end.flags) == (137, driver.FLAG_OOM)
    _, end = agent.run("sh", "-c", "tail /dev/zero; exit 3")
    assert (end.exit_code, end.flags) == (3, 0)
    assert agent.run("true")[1].exit_code == 0
