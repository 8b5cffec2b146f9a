"""Descriptors that a command sends to the agent: the last close of one may sleep, and must not be the agent's.

Each test runs with the kernel's own refusal (Linux 6.16 and later) and without it, as on an older kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.agent import hostile_greeting
from tests.agent.conftest import NAMESPACE, StartAgent
from tests.agent.driver import DEADLINE, PING, Agent, children, encode, stat_fields, wait_until
from tests.agent.tunnels import Tunnel, Tunnels
from tests.support.sockets import exactly

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="enters the namespaces of an agent, looks at its descriptors")

LINGER = 100  # seconds, that the agent would sleep: more than any wait of a test
AT_ONCE = 15.0
PASSRIGHTS = 83
GREETING = 72


def kernel_refuses() -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, PASSRIGHTS, 0)
        except OSError:
            return False
        return True


@pytest.fixture(params=["this kernel", "old kernel"])
def kernel(request: pytest.FixtureRequest, old_kernel: Path) -> tuple[str, ...]:
    """What stands before the agent's command line."""
    return () if request.param == "this kernel" else (str(old_kernel),)


@pytest.fixture
def refuses(kernel: tuple[str, ...]) -> bool:
    """The sender is told by the kernel."""
    return not kernel and kernel_refuses()


@pytest.fixture
def tunnels(start_agent: StartAgent, kernel: tuple[str, ...]) -> Tunnels:
    return Tunnels(start_agent(prefix=kernel))


@pytest.fixture
def server(public_folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(public_folder / "socket"))
        listener.listen(64)
        listener.settimeout(DEADLINE)
        yield listener


def connection(tunnels: Tunnels, server: socket.socket) -> tuple[Tunnel, socket.socket]:
    """One of which the agent reads nothing yet."""
    tunnel = tunnels.connect(server.getsockname(), window=0)
    tunnels.wait_opened(tunnel)
    peer, _ = server.accept()
    peer.settimeout(DEADLINE)
    return tunnel, peer


def sockets_of(agent: Agent) -> set[str]:
    folder, found = f"/proc/{agent.process.pid}/fd", set()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def agent_is_awake(tunnels: Tunnels) -> None:
    before = len(tunnels.agent.pongs)
    tunnels.agent.send_raw(encode(0, PING))
    tunnels.wait(lambda: len(tunnels.agent.pongs) > before, AT_ONCE)
    command = tunnels.agent.start("echo", "awake")
    tunnels.wait(lambda: command.done, AT_ONCE)
    assert bytes(command.stdout) == b"awake\n"


@pytest.fixture
def sleeper() -> Iterator[socket.socket]:
    full, kept = hostile_greeting.sleeper(LINGER)
    yield full
    for sock in kept:
        sock.close()


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["in order", "out of band"])
def test_sent_through_a_tunnel(
    tunnels: Tunnels, server: socket.socket, sleeper: socket.socket, flags: int, refuses: bool
) -> None:
    tunnel, peer = connection(tunnels, server)
    with peer:
        peer.sendall(b"before")
        tunnels.grant(tunnel, 6)
        tunnels.wait(lambda: bytes(tunnel.received) == b"before")
        assert hostile_greeting.give(peer, b"with", flags, sleeper) is not refuses
        tunnels.grant(tunnel, 1 << 20)
        if refuses:
            peer.sendall(b" and after")
            tunnels.wait(lambda: bytes(tunnel.received) == b"before and after")
        else:
            assert tunnels.wait_closed(tunnel) == errno.EPROTO
        agent_is_awake(tunnels)


def test_unread_when_a_tunnel_ends(
    tunnels: Tunnels, server: socket.socket, sleeper: socket.socket, refuses: bool
) -> None:
    tunnel, peer = connection(tunnels, server)
    with peer:
        assert hostile_greeting.give(peer, b"with", 0, sleeper) is not refuses
        tunnels.kill(tunnel)
        assert tunnels.wait_closed(tunnel) == errno.ECONNABORTED
        agent_is_awake(tunnels)
        if not refuses:  # the error tells that it was closed, by whomever, with something unread
            wait_until(lambda: peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET, "it is closed")
        with pytest.raises(BrokenPipeError):
            peer.send(b"after")


def test_unread_bytes_alone_are_the_end_they_ever_were(tunnels: Tunnels, server: socket.socket) -> None:
    tunnel, peer = connection(tunnels, server)
    with peer:
        peer.sendall(b"unread")
        tunnels.send(tunnel, b"to be read")
        assert exactly(peer, 10) == b"to be read"
        tunnels.kill(tunnel)
        assert tunnels.wait_closed(tunnel) == errno.ECONNABORTED
        # Where another process closes it, an end in order is seen until then.
        wait_until(lambda: peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET, "it is reset")


class Killer(threading.Thread):
    """Kills every child of a process as soon as it is there."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._list = Path(f"/proc/{pid}/task/{pid}/children")
        self.over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        while not self.over.is_set():
            for pid in map(int, self._list.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    self._kill(pid)

    def _kill(self, pid: int) -> None:
        handle = os.pidfd_open(pid)
        try:
            if (stat_fields(pid) or ["", ""])[1] == str(self._pid):  # the number is no other process's by now
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                self.killed += 1
        finally:
            os.close(handle)


def test_a_command_kills_whoever_closes_them(start_agent: StartAgent, old_kernel: Path, server: socket.socket) -> None:
    tunnels = Tunnels(start_agent(prefix=(str(old_kernel),)))
    agent = tunnels.agent
    before = sockets_of(agent)
    kept: list[socket.socket] = []
    killer = Killer(agent.process.pid)
    killer.start()
    try:
        for _ in range(24):
            tunnel, peer = connection(tunnels, server)
            full, others = hostile_greeting.sleeper(LINGER)
            kept += [peer, *others]
            assert hostile_greeting.give(peer, b"with", 0, full)
            tunnels.kill(tunnel)
            assert tunnels.wait_closed(tunnel) == errno.ECONNABORTED
            enough = killer.killed + 4  # of supervisors and of those that close sockets
            while killer.killed < enough:
                tunnels.agent.send_raw(encode(0, PING))
                pongs = len(agent.pongs)
                tunnels.wait(lambda pongs=pongs: len(agent.pongs) > pongs, AT_ONCE)
    finally:
        killer.over.set()
        killer.join()
    wait_until(lambda: len(sockets_of(agent)) <= len(before) + 6, "all are closed")  # supervisors have one each
    agent_is_awake(tunnels)
    for sock in kept:
        sock.close()


def test_closing_costs_one_process_however_many_there_are(
    start_agent: StartAgent, old_kernel: Path, server: socket.socket
) -> None:
    tunnels = Tunnels(start_agent(prefix=(str(old_kernel),)))
    tunnels.run("true")
    before = sockets_of(tunnels.agent)
    for _ in range(3):
        for _ in range(200):
            tunnel, peer = connection(tunnels, server)
            peer.send(b"unread")
            peer.close()
            tunnels.kill(tunnel)
            tunnels.wait_closed(tunnel)
        tunnels.run("true")
        assert len(children(tunnels.agent.process.pid)) < 8
    wait_until(lambda: len(sockets_of(tunnels.agent)) <= len(before) + 2, "all are closed")


class Detached:
    """A detached agent as PID 1 of namespaces of its own, and who speaks to it from inside and from outside."""

    def __init__(self, binary: Path, workspace: Path, kernel: tuple[str, ...], env: Mapping[str, str]) -> None:
        command = [*NAMESPACE, "--net", *kernel, str(binary), "--workspace", str(workspace), "--detached"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**env, "SANDBOXKIT_TOKEN": "secret"}
        )
        wait_until(self._listens, "it listens")
        self.pid = children(self.process.pid)[0]

    def _listens(self) -> bool:
        pids = children(self.process.pid)
        return bool(pids) and b"sandboxkit-agent" in Path(f"/proc/{pids[0]}/net/unix").read_bytes()

    def hostile(self, as_command: bool, *arguments: int) -> subprocess.Popen[str]:
        program = [sys.executable, hostile_greeting.__file__, *map(str, arguments)]
        env = {**os.environ, "AS_COMMAND": "yes" if as_command else ""}
        return subprocess.Popen(
            ["nsenter", f"--target={self.pid}", "--pid", "--net", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: (stat_fields(self.pid) or [""])[0] == "T", "it is stopped")

    def close(self) -> None:
        self.process.kill()  # unshare takes the agent with it
        self.process.wait()


@pytest.fixture
def detached(
    binary: Path, workspace: Path, kernel: tuple[str, ...], agent_env: Mapping[str, str]
) -> Iterator[Detached]:
    agent = Detached(binary, workspace, kernel, agent_env)
    yield agent
    agent.close()


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["in order", "out of band"])
@pytest.mark.parametrize("size", [1, GREETING], ids=["one byte", "a greeting"])
@pytest.mark.parametrize("as_command", [True, False], ids=["by a command", "from outside"])
def test_sent_to_a_detached_agent(detached: Detached, as_command: bool, size: int, flags: int, refuses: bool) -> None:
    detached.stop()  # so that it finds all of it when it accepts the connection
    with detached.hostile(as_command, size, flags, LINGER) as hostile:
        assert hostile.stdin is not None
        assert hostile.stdout is not None
        try:
            assert hostile.stdout.readline() == ("refused\n" if refuses else "taken\n")
            os.kill(detached.pid, signal.SIGCONT)
            print(file=hostile.stdin, flush=True)
            ready, _, _ = select.select([hostile.stdout], [], [], AT_ONCE)
            assert ready, "the agent sleeps"
            assert hostile.stdout.readline() == "answered\n"
        finally:
            detached.close()  # with all that is in its namespaces
