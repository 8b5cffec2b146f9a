"""The session channel and the framing: HELLO, PING, unknown types, and every way to break a rule. Sections 1 to 4."""

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests.agent import driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import (
    CONFIGURE,
    DATA,
    EOF,
    EXEC,
    EXIT,
    HEADER,
    HELLO,
    KILL,
    OFFER,
    PING,
    PONG,
    RESIZE,
    SHORTCUT,
    STARTED,
    STDIN,
    WINDOW,
    Agent,
    encode,
    exec_payload,
)  # fmt: skip


def test_hello_tells_the_facts(agent: Agent) -> None:
    hello = agent.hello
    status = Path("/proc/self/status").read_text()

    def status_field(name: str) -> str:
        found = re.search(rf"^{name}:\t(\S+)$", status, re.MULTILINE)
        assert found is not None
        return found[1]

    assert re.fullmatch("[0-9a-f]{16}", hello["build"])
    assert hello["arch"] == platform.machine()
    assert hello["pid"] == str(agent.process.pid)
    assert (hello["uid"], hello["gid"]) == (str(os.getuid()), str(os.getgid()))
    assert hello["cap_eff"] == status_field("CapEff")
    assert hello["cap_bnd"] == status_field("CapBnd")
    assert hello["cap_prm"] == status_field("CapPrm")
    assert hello["no_new_privs"] == status_field("NoNewPrivs")
    assert hello["seccomp"] == status_field("Seccomp")
    for key in ("nofile", "nproc", "core"):
        assert re.fullmatch(r"(\d+|unlimited):(\d+|unlimited)", hello[key])
    for key in ("memory_max", "pids_max"):
        assert re.fullmatch(r"\d+|max|", hello[key])
    assert hello["rootfs_ro"] == "0"
    assert hello["workspace_writable"] == "1"


def test_hello_shows_the_build(start_agent: StartAgent, binary: Path) -> None:
    agent = start_agent()
    if binary.name.startswith("sanitized"):
        assert agent.hello["build"] == "0" * 16
    else:
        assert agent.hello["build"] == binary.parent.name


def test_hello_shows_what_is_in_force(start_agent: StartAgent) -> None:
    agent = start_agent(prefix=("setpriv", "--no-new-privs", "prlimit", "--nproc=5000:6000", "--nofile=300:400"))
    assert agent.hello["no_new_privs"] == "1"
    assert agent.hello["nproc"] == "5000:6000"
    assert agent.hello["nofile"] == "300:400"


def test_hello_as_pid_1(pid1: Agent) -> None:
    assert pid1.hello["pid"] == "1"


def test_wrong_arguments(binary: Path) -> None:
    for arguments in (["--workspace"], ["--nonsense"], ["x"]):
        done = subprocess.run([binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 64
        assert done.stderr.startswith("sandboxkit agent: usage: ")
        assert done.stdout == ""


def test_standard_error_may_be_closed(start_agent: StartAgent) -> None:
    agent = start_agent(prefix=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    command, _ = agent.run("sh", "-c", "echo err >&2")
    assert bytes(command.stderr) == b"err\n"


@pytest.mark.parametrize("payload", [b"", b"1", b"12345678"])
def test_ping(agent: Agent, payload: bytes) -> None:
    agent.ping(payload)


def test_the_newest_ping_is_answered(agent: Agent) -> None:
    agent.send_raw(b"".join(encode(0, PING, struct.pack("<I", number)) for number in range(1000)))
    while not agent.pongs or agent.pongs[-1] != struct.pack("<I", 999):
        assert agent.step()


def test_frames_may_arrive_in_any_pieces(agent: Agent) -> None:
    command = agent.start("cat", flags=STDIN)
    for frame in (encode(0, PING, b"abc"), encode(command.channel, DATA, b"hello"), encode(command.channel, EOF)):
        for byte in frame:
            agent.send_raw(bytes([byte]))
            assert not agent._unsent
    agent.wait(command)
    assert bytes(command.stdout) == b"hello"
    assert agent.pongs == [b"abc"]


def test_many_frames_may_arrive_at_once(agent: Agent) -> None:
    payload = exec_payload(["echo", "x"])
    channels = range(1, 101)
    for channel in channels:
        agent.commands[channel] = driver.Command(channel, auto_grant=True, granted=1 << 20)
    agent.send_raw(b"".join(encode(channel, EXEC, payload) + encode(0, PING) for channel in channels))
    for channel in channels:
        command = agent.commands[channel]
        assert agent.wait(command).exit_code == 0
        assert bytes(command.stdout) == b"x\n"


def test_configure_is_accepted_once_and_first(agent: Agent) -> None:
    agent.send_raw(encode(0, CONFIGURE, struct.pack("<HH", 1, 0) + b"some=thing\nother=1\n"))
    agent.ping()
    _, end = agent.run("true")
    assert end.exit_code == 0


# -- unknown types --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0x00, 0x07, 0x19, 0x20, 0x3F, 0x4F, 0x50, 0xFF])
def test_unknown_types_are_answered(agent: Agent, kind: int) -> None:
    agent.send_raw(encode(0, kind, b"whatever"))
    command = driver.Command(1, auto_grant=True)
    agent.commands[1] = command
    agent.send_raw(encode(1, kind))
    error = agent.wait_error(command)
    assert (error.code, error.errno) == (driver.UNSUPPORTED, 0)
    assert [error.code for error in agent.session_errors] == [driver.UNSUPPORTED]
    agent._next_channel = 2
    _, end = agent.run("true")
    assert end.exit_code == 0


def test_an_unknown_type_for_a_closed_channel_crossed_with_its_end(agent: Agent) -> None:
    command, _ = agent.run("true")
    agent.send_raw(encode(command.channel, 0x20))
    agent.ping()


def test_more_refusals_than_the_agent_keeps(agent: Agent) -> None:
    """The host sends thousands of requests that are refused before it reads the first answer."""
    count = 20_000
    agent.send_raw(b"".join(encode(channel, 0x20) for channel in range(1, count + 1)))
    for channel in range(1, count + 1):
        agent.commands[channel] = driver.Command(channel, auto_grant=True)
    for channel in range(1, count + 1):
        assert agent.wait_error(agent.commands[channel]).code == driver.UNSUPPORTED
    agent._next_channel = count + 1
    _, end = agent.run("true")
    assert end.exit_code == 0


def test_frames_for_channels_that_are_not_open_are_dropped(agent: Agent) -> None:
    command, _ = agent.run("true")
    for channel in (command.channel, 77, 0x80000001):
        agent.send_raw(encode(channel, DATA, b"x"))
        agent.send_raw(encode(channel, EOF))
        agent.send_raw(encode(channel, WINDOW, b"\0\0\0\0"))
        agent.send_raw(encode(channel, KILL, b"\0\0\0\0"))
        agent.send_raw(encode(channel, RESIZE, b"\0\0\0\0"))
    agent.ping()


# -- rules that the host must not break -----------------------------------------------------------------------------

VALID = exec_payload(["sleep", "100"], flags=STDIN)
BROKEN = {
    "reserved field": HEADER.pack(0, 0, PING, 0, 1),
    "DATA too long": HEADER.pack(65537, 1, DATA, 0, 0),
    "frame too long": HEADER.pack(4194305, 1, EXEC, 0, 0),
    "frame enormous": HEADER.pack(0xFFFFFFFF, 1, EXEC, 0, 0),
    "PING too long": encode(0, PING, b"123456789"),
    "PING on a channel": encode(1, PING),
    "SHORTCUT with a payload": encode(0, SHORTCUT, b"x"),
    "SHORTCUT on a channel": encode(1, SHORTCUT),
    "SHORTCUT twice": encode(0, SHORTCUT) * 2,
    "SHORTCUT after EXEC": encode(1, EXEC, VALID) + encode(0, SHORTCUT),
    "CONFIGURE empty": encode(0, CONFIGURE),
    "CONFIGURE version": encode(0, CONFIGURE, struct.pack("<HH", 2, 0)),
    "CONFIGURE on a channel": encode(1, CONFIGURE, struct.pack("<HH", 1, 0)),
    "CONFIGURE twice": encode(0, CONFIGURE, struct.pack("<HH", 1, 0)) * 2,
    "CONFIGURE after EXEC": encode(1, EXEC, VALID) + encode(0, CONFIGURE, struct.pack("<HH", 1, 0)),
    "EXEC on channel 0": encode(0, EXEC, VALID),
    "EXEC on an agent's channel": encode(0x80000000, EXEC, VALID),
    "EXEC number used twice": encode(1, EXEC, VALID) * 2,
    "EXEC number not rising": encode(5, EXEC, VALID) + encode(4, EXEC, VALID),
    "unknown type on an open channel": encode(1, EXEC, VALID) + encode(1, 0x20),
    "unknown type on an agent's channel": encode(0x80000000, 0x20),
    "DATA on channel 0": encode(0, DATA, b"x"),
    "DATA for stream 1": encode(1, EXEC, VALID) + encode(1, DATA, b"x", flags=1),
    "EOF for stream 2": encode(1, EXEC, VALID) + encode(1, EOF, flags=2),
    "WINDOW too short": encode(1, EXEC, VALID) + encode(1, WINDOW, b"\0\0\0"),
    "WINDOW above the limit": encode(1, EXEC, VALID) + encode(1, WINDOW, struct.pack("<I", 0x7FFFFFFF)),
    "KILL without grace": encode(1, EXEC, VALID) + encode(1, KILL),
    "RESIZE too long": encode(1, EXEC, VALID) + encode(1, RESIZE, b"\0" * 5),
    **{f"agent's type {kind:#x}": encode(0, kind) for kind in (HELLO, PONG, OFFER, STARTED, EXIT, driver.ERROR)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_ends_the_session(start_agent: StartAgent, name: str) -> None:
    agent = start_agent(stderr=subprocess.PIPE)
    agent.send_raw(BROKEN[name])
    while agent.next_frame() is not None:
        pass
    assert agent.process.wait(driver.DEADLINE) == 64
    assert agent.process.stderr is not None
    with agent.process.stderr as stream:
        text = stream.read().decode()
    assert text.startswith("sandboxkit agent: the host broke the protocol: ")
    assert text.count("\n") == 1


# -- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_end_of_input_ends_everything(start_agent: StartAgent, pipes: bool) -> None:
    agent = start_agent(pipes=pipes)
    _, end = agent.run("sh", "-c", "setsid sleep 100 & sleep 100 &")
    stubborn = agent.start("sh", "-c", "trap '' TERM HUP INT; echo ready; while :; do sleep 1; done")
    agent.wait_output(stubborn, b"ready\n")
    pids = list(driver.descendants(agent.process.pid))
    assert len(pids) >= 6
    assert all(map(driver.is_alive, end.pids))
    agent.close_input()
    assert agent.wait_end() == 0
    driver.wait_gone(pids)


def test_end_of_input_inside_a_frame(agent: Agent) -> None:
    agent.send_raw(encode(1, EXEC, VALID)[:20])
    agent.close_input()
    assert agent.wait_end() == 0


def test_end_of_input_right_after_a_request(start_agent: StartAgent) -> None:
    for _ in range(20):
        agent = start_agent()
        agent.send_raw(encode(1, EXEC, VALID))
        agent.close_input()
        while agent.next_frame() is not None:
            pass
        assert agent.process.wait(driver.DEADLINE) == 0


def test_a_host_that_only_stops_reading_ends_it_too(start_agent: StartAgent) -> None:
    agent = start_agent(pipes=True)
    command = agent.start("yes", window=1 << 30)
    while command.total == 0:
        assert agent.step()
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    assert agent.process.wait(driver.DEADLINE) == 0
    assert agent.process.stdin is not None
    agent.process.stdin.close()


def test_end_as_pid_1_takes_the_namespace_along(start_agent: StartAgent, pid1: Agent) -> None:
    sleeper = pid1.start("sleep", "100", flags=driver.WANT_STARTED)
    pid1.wait_started(sleeper)
    below = list(driver.descendants(pid1.process.pid))
    assert len(below) >= 3
    assert pid1.close() == 0
    driver.wait_gone(below)
