"""Commands that attack the agent's own processes: they gain nothing, results stay true, the session goes on.

As PID 1 in a namespace of its own, because these commands kill whatever they can reach.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.agent import driver
from tests.agent.conftest import NAMESPACE, StartAgent
from tests.agent.driver import BY_ITSELF, BY_KILL, INTERNAL, WANT_STARTED, Agent, commands_of
from tests.support.waiting import MARGIN, wait_until

SOON = 2.5 * MARGIN


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script]


def works(agent: Agent, times: int = 5) -> None:
    for number in range(times):
        command, end = agent.run("echo", str(number))
        assert (end.exit_code, bytes(command.stdout)) == (0, b"%d\n" % number)


@pytest.fixture(params=["local", "pid1"])
def victim(request: pytest.FixtureRequest, start_agent: StartAgent) -> Agent:
    """For attacks on the command's own supervisor only, which harm nobody else."""
    return start_agent(prefix=NAMESPACE if request.param == "pid1" else ())


def test_killing_the_supervisor(victim: Agent) -> None:
    """The command becomes an escapee, and dies."""
    command = victim.start("sh", "-c", "setsid sleep 1000 & sleep 1000 & kill -9 $PPID; echo done; sleep 1000")
    end = victim.wait(command, SOON)
    assert (end.how, end.signal, end.reason, end.pids) == (1, signal.SIGKILL, BY_ITSELF, ())
    assert commands_of(victim) == []
    works(victim)


def test_killing_the_supervisor_and_ending(victim: Agent) -> None:
    """The end is the command's own or the agent's, depending on who was faster: both are true."""
    seen = set()
    for _ in range(30):
        _, end = victim.run("sh", "-c", "kill -9 $PPID; exit 7")
        assert (end.reason, end.pids) == (BY_ITSELF, ())
        seen.add((end.how, end.code))
    assert seen <= {(0, 7), (1, signal.SIGKILL)}
    works(victim)


def test_killing_the_supervisor_of_a_background_process(victim: Agent, workspace: Path) -> None:
    killer = "until test -e go; do sleep 0.01; done; kill -9 $supervisor; sleep 1000"
    _, end = victim.run("sh", "-c", f"supervisor=$PPID; ({killer}) & sleep 1000 &")
    assert len(end.pids) >= 2
    (workspace / "go").touch()
    wait_until(lambda: commands_of(victim) == [], "they are dead")
    works(victim)


def test_killing_the_supervisor_during_the_grace(victim: Agent) -> None:
    command = victim.start("sh", "-c", "trap 'kill -9 $PPID' TERM; echo ready; while :; do sleep 0.01; done")
    victim.wait_output(command, b"ready\n")
    victim.kill(command, grace_ms=100_000)
    end = victim.wait(command, SOON)
    assert (end.signal, end.reason) == (signal.SIGKILL, BY_KILL)
    assert commands_of(victim) == []
    works(victim)


def test_stopping_the_supervisor(victim: Agent) -> None:
    for _ in range(20):
        command, end = victim.run("sh", "-c", "kill -STOP $PPID; echo out; exit 3")
        assert (end.exit_code, end.reason, bytes(command.stdout)) == (3, BY_ITSELF, b"out\n")
    works(victim)


def test_signals_to_the_supervisor_do_nothing(victim: Agent) -> None:
    script = "for s in $(seq 64); do case $s in 9|19) ;; *) kill -$s $PPID 2>/dev/null;; esac; done; exit 4"
    _, end = victim.run("sh", "-c", script)
    assert (end.exit_code, end.reason) == (4, BY_ITSELF)
    works(victim)


def test_a_supervisor_that_is_stopped_all_the_time_does_not_save_the_tree(victim: Agent) -> None:
    script = "import os\nos.write(1, b'ready')\nwhile True: os.kill(os.getppid(), 19)"
    command = victim.start("sh", "-c", 'setsid "$0" "$@" & "$0" "$@" & wait', *python(script))
    victim.wait_output(command, b"readyready")
    assert len(commands_of(victim)) >= 3
    begin = time.monotonic()
    victim.kill(command)
    end = victim.wait(command)
    assert time.monotonic() - begin < SOON
    assert (end.signal, end.reason) == (signal.SIGKILL, BY_KILL)
    assert commands_of(victim) == []
    works(victim)


# -- as PID 1 only: these hit everything ----------------------------------------------------------------------------


def test_kill_everything(pid1: Agent) -> None:
    bystander = pid1.start("sleep", "1000", flags=WANT_STARTED)
    pid1.wait_started(bystander)
    command = pid1.start("sh", "-c", "sleep 1000 & kill -9 -1; sleep 1000")
    end = pid1.wait(command, SOON)
    assert (end.how, end.signal, end.reason, end.pids) == (1, signal.SIGKILL, BY_ITSELF, ())
    end = pid1.wait(bystander, SOON)
    assert (end.how, end.signal, end.reason) == (1, signal.SIGKILL, BY_ITSELF)
    assert commands_of(pid1) == []
    works(pid1)


def test_kill_everything_again_and_again(pid1: Agent) -> None:
    for _ in range(20):
        _, end = pid1.run("sh", "-c", "kill -9 -1; exit 7")
        assert (end.how, end.code) in {(0, 7), (1, signal.SIGKILL)}
    works(pid1)


@pytest.mark.parametrize("number", [1, 2, 3, 13, 14, 15, 17, 19, 20, 21, 22, 34, 64])
def test_signal_everything(pid1: Agent, number: int) -> None:
    """Whatever it is, it changes nothing for the agent, its supervisors and the spare."""
    for _ in range(3):
        command, end = pid1.run("sh", "-c", f"kill -{number} -1; echo survived")
        assert (end.exit_code, bytes(command.stdout)) == (0, b"survived\n")
    works(pid1)


# Everything but init, itself and its own supervisor: the spare above all.
SPARE_KILLER = """
import os
spared = {1, os.getpid(), os.getppid()}
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in spared:
        try:
            os.kill(int(name), NUMBER)
        except ProcessLookupError:
            pass
"""


@pytest.mark.parametrize("number", [9, 19])
def test_the_spare_is_replaced_in_silence(pid1: Agent, number: int) -> None:
    for _ in range(10):
        _, end = pid1.run(*python(SPARE_KILLER.replace("NUMBER", str(number))))
        assert (end.exit_code, end.reason) == (0, BY_ITSELF)
        works(pid1, 1)
    wait_until(lambda: len(driver.supervisors_of(pid1)) >= 3, "there is a spare")


def test_a_killer_in_the_background(pid1: Agent) -> None:
    """It shoots at everything new. What is started meanwhile runs to its end, once, or is reported as what it was."""
    killer = "import os, time\n" + f"exec({SPARE_KILLER.replace('NUMBER', '9')!r})\n" * 1
    loop = f"import time\nwhile True:\n    exec({killer!r})\n"
    attacker = pid1.start("sh", "-c", 'echo ready; exec "$0" "$@"', *python(loop))
    pid1.wait_output(attacker, b"ready\n")
    outcomes = set()
    for _ in range(60):
        command = pid1.start("sh", "-c", "echo $$ >>ran; exit 7")
        while not command.done:
            assert pid1.step(SOON)
        if command.exit is not None:
            assert command.exit.reason == BY_ITSELF
            outcomes.add((command.exit.how, command.exit.code))
        else:
            assert command.error is not None
            outcomes.add((-1, command.error.code))
    assert outcomes <= {(0, 7), (1, signal.SIGKILL), (-1, INTERNAL)}
    pid1.kill(attacker)
    assert pid1.wait(attacker).signal == signal.SIGKILL
    assert commands_of(pid1) == []
    works(pid1)


def test_a_stopper_in_the_background(pid1: Agent) -> None:
    """Stopped before they began, commands are continued; they are never lost."""
    loop = f"while True:\n    exec({SPARE_KILLER.replace('NUMBER', '19')!r})\n"
    attacker = pid1.start("sh", "-c", 'echo ready; exec "$0" "$@"', *python(loop))
    pid1.wait_output(attacker, b"ready\n")
    commands = [pid1.start("true") for _ in range(20)]
    pid1.ping()
    pid1.kill(attacker)
    assert pid1.wait(attacker).signal == signal.SIGKILL
    for command in commands:
        pid1.kill(command)  # it may have been stopped while it ran, which is its own affair
        end = pid1.wait(command)
        assert (end.how, end.code) in {(0, 0), (1, signal.SIGKILL)}
    works(pid1)


def test_nothing_reaches_pid_1(pid1: Agent) -> None:
    _, end = pid1.run("sh", "-c", "for s in $(seq 64); do kill -$s 1 2>/dev/null; done; exit 3")
    assert end.exit_code == 3
    works(pid1)


def test_input_is_never_lost_by_a_second_attempt(pid1: Agent) -> None:
    """A command that was killed before it began, with input on its way, is an error and not an empty run."""
    loop = f"while True:\n    exec({SPARE_KILLER.replace('NUMBER', '9')!r})\n"
    attacker = pid1.start("sh", "-c", 'echo ready; exec "$0" "$@"', *python(loop))
    pid1.wait_output(attacker, b"ready\n")
    for _ in range(30):
        command = pid1.start("cat", flags=driver.STDIN)
        pid1.feed(command, b"precious")
        while not command.done:
            assert pid1.step(SOON)
        if command.exit is not None and command.exit.how == 0:
            assert bytes(command.stdout) == b"precious"
    pid1.kill(attacker)
    pid1.wait(attacker)
