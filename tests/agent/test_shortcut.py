"""A stream of the agent's own in the place of the engine's. Section 3.4."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest

from sandboxkit._shortcut import Offer, Taker
from tests.agent import driver
from tests.agent.conftest import StartAgent
from tests.agent.driver import OFFER, PING, SHORTCUT, Agent, encode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an agent that no engine started is its user's no more")


def offered(agent: Agent) -> Offer:
    agent.send_raw(encode(0, SHORTCUT))
    frame = agent.next_frame()
    assert frame is not None
    assert (frame.channel, frame.type, frame.flags) == (0, OFFER, 0)
    return Offer(*struct.unpack("<IQ", frame.payload))


def taken(offer: Offer, pid: int) -> socket.socket | None:
    taker = Taker(pid)
    sock = taker.take(offer, socket.AF_UNIX)
    taker.close()
    if sock is not None:
        sock.setblocking(True)
    return sock


class Host:
    """The agent's driver on the shortcut; the stream that it left stays in `engine`."""

    def __init__(self, agent: Agent) -> None:
        sock = taken(offered(agent), agent.process.pid)
        assert sock is not None
        sock.setblocking(False)
        self.agent = agent
        assert agent._socket is not None
        self.engine = agent._socket
        agent._socket = sock
        agent._in = agent._out = sock.fileno()
        agent.ping(b"switched")

    def close(self) -> None:
        self.engine.close()


@pytest.fixture
def host(agent: Agent) -> Iterator[Host]:
    host = Host(agent)
    yield host
    host.close()


def test_everything_goes_over_the_shortcut(host: Host) -> None:
    command, end = host.agent.run("cat", input=os.urandom(3 << 20))
    assert (end.exit_code, command.total) == (0, 3 << 20)
    host.engine.setblocking(False)
    with pytest.raises(BlockingIOError):
        host.engine.recv(1)


def test_a_command_has_none_of_its_descriptors(host: Host) -> None:
    for _ in range(3):  # the spare that was made before, and later ones
        command, _ = host.agent.run("ls", "/proc/self/fd")
        assert command.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is of ls itself


@pytest.mark.parametrize("end", ["engine", "shortcut"])
def test_the_end_of_either_stream_is_the_end(host: Host, end: str) -> None:
    sleeper = host.agent.start("sleep", "100", flags=driver.WANT_STARTED)
    host.agent.wait_started(sleeper)
    below = list(driver.descendants(host.agent.process.pid))
    if end == "engine":
        host.engine.shutdown(socket.SHUT_WR)
    else:
        host.agent.close_input()
    assert host.agent.process.wait(driver.DEADLINE) == 0
    driver.wait_gone(below)


def test_a_byte_on_the_engines_stream_breaks_the_protocol(host: Host) -> None:
    host.engine.send(b"x")
    assert host.agent.wait_end() == 64


def test_a_frame_between_offer_and_taking_is_answered_on_the_engines_stream(agent: Agent) -> None:
    sock = taken(offered(agent), agent.process.pid)
    assert sock is not None
    agent.ping(b"here")
    sock.close()


def test_half_a_frame_on_the_engines_stream_breaks_the_protocol(start_agent: StartAgent) -> None:
    agent = start_agent(stderr=subprocess.DEVNULL)
    sock = taken(offered(agent), agent.process.pid)
    assert sock is not None
    agent.send_raw(encode(0, PING, b"halved")[:7])
    deadline = time.monotonic() + driver.DEADLINE
    while agent.process.poll() is None and time.monotonic() < deadline:
        try:
            sock.send(encode(0, PING, b"there"))
        except OSError:
            break
    assert agent.process.wait(driver.DEADLINE) == 64
    sock.close()


def test_an_exec_on_the_engines_stream_withdraws_the_offer(agent: Agent) -> None:
    offer = offered(agent)
    _, end = agent.run("true")
    assert end.exit_code == 0
    assert taken(offer, agent.process.pid) is None


def test_taken_and_closed_again_it_changes_nothing(agent: Agent) -> None:
    sock = taken(offered(agent), agent.process.pid)
    assert sock is not None
    sock.close()
    for _ in range(3):
        command, _ = agent.run("echo", "x")
        assert command.stdout == b"x\n"


def test_a_host_that_took_no_descriptor_in_time_has_a_dead_one(agent: Agent) -> None:
    sock = taken(offered(agent), agent.process.pid)
    assert sock is not None
    agent.run("true")
    assert sock.recv(1) == b""
    sock.close()


@pytest.mark.parametrize("left", range(6))
def test_without_descriptors_all_stays_as_it_was(agent: Agent, left: int) -> None:
    """Which of them it gets depends on what else it does at that moment; it is never lost for want of one."""
    taken_numbers = {int(name) for name in os.listdir(f"/proc/{agent.process.pid}/fd")}
    free = [number for number in range(1000) if number not in taken_numbers]
    before = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (free[left], before[1]))
    offer = offered(agent)
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, before)
    sock = taken(offer, agent.process.pid)
    if sock is not None:
        sock.sendall(encode(0, PING, b"there"))
        assert sock.recv(100)[12:] == b"there"
        sock.close()
        assert agent.process.wait(driver.DEADLINE) == 0
    else:
        agent.ping(b"here")


@pytest.mark.parametrize("wrong", ["inode", "descriptor", "process", "no descriptor"])
def test_only_the_offered_socket_is_taken(agent: Agent, wrong: str) -> None:
    offer, pid = offered(agent), agent.process.pid
    if wrong == "inode":
        offer = Offer(offer.descriptor, offer.inode + 1)
    elif wrong == "descriptor":
        offer = Offer(0, offer.inode)
    elif wrong == "no descriptor":
        offer = Offer(2**32 - 1, offer.inode)
    else:
        pid = os.getpid()
    before = set(os.listdir("/proc/self/fd"))
    assert taken(offer, pid) is None
    assert set(os.listdir("/proc/self/fd")) == before
