"""`sandboxkit mcp`: the SDK's own client over standard input and output, and every way to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import mcp.types as types
import pytest
from _http import read_engines
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from sandboxkit import list_sessions
from sandboxkit.conformance._watch import wait_until
from tests.tools.test_cli import ROOT, UNENFORCED, Running, command

OPTIONS = ("mcp", UNENFORCED, "--image", "sandboxkit-test/busybox")
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The engine; after the test nothing is in it."""
    made = tmp_path / "engine"
    made.mkdir()
    yield made
    wait_until(lambda: not list(made.iterdir()), "the session is gone")


def served(arguments: list[str], talk: Callable[[Client], Awaitable[None]], **env: str) -> None:
    async def main() -> None:
        parameters = StdioServerParameters(
            command=arguments[0], args=arguments[1:], cwd=ROOT, env={**os.environ, **env}
        )
        with anyio.fail_after(90):
            async with Client(stdio_client(parameters)) as client:
                await talk(client)

    anyio.run(main)


async def work(client: Client) -> None:
    """A little of everything."""
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["exec_command", "read_file", "write_file", "list_files"]
    await client.call_tool("write_file", {"path": "a.txt", "content": "hello é\n"})
    read = await client.call_tool("exec_command", {"command": "cat", "args": ["a.txt"]})
    (block,) = read.content
    assert isinstance(block, types.TextContent)
    assert block.text.endswith("hello é")
    large = await client.call_tool("write_file", {"path": "large", "content": "x" * 1_000_000})
    assert not large.is_error


def test_a_client_works_in_a_session_of_its_own(folder: Path) -> None:
    served(command(folder, *OPTIONS), work)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["docker", "podman", "podman-rootless"])
def test_a_client_works_on_an_engine(name: str) -> None:
    backend, _, rootless = name.partition("-")
    engine = next(e for e in read_engines() if (e.backend, e.rootless) == (backend, bool(rootless)))
    before = {session.id for session in list_sessions(backend=backend, url=engine.url)}
    where = ("--backend", engine.backend, "--url", engine.url)
    served([sys.executable, "-m", "sandboxkit.cli", *OPTIONS, *where], work)
    wait_until(
        lambda: {session.id for session in list_sessions(backend=backend, url=engine.url)} <= before,
        "the session is gone",
    )


def test_policies_are_options(folder: Path) -> None:
    async def talk(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["exec_command", "list_ports"]
        for name, is_error in (("cat", False), ("ls", True)):
            assert (await client.call_tool("exec_command", {"command": name})).is_error is is_error

    served(command(folder, *OPTIONS, "--include", "exec_command,list_ports", "--allow-command", "cat"), talk)


class Server(Running):
    """The server, spoken to by hand."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, *OPTIONS)
        self._number = 0
        assert self.ask("initialize", INITIALIZE)["result"]["serverInfo"]["name"] == "sandboxkit"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: object, *, answer: bool = True) -> dict[str, Any]:
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        if not answer:
            return {}
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert found["id"] == self._number
        return found

    def call(self, script: str, *, answer: bool = True) -> dict[str, Any]:
        arguments = {"command": "sh", "args": ["-c", script]}
        return self.ask("tools/call", {"name": "exec_command", "arguments": arguments}, answer=answer)

    def busy(self, folder: Path) -> None:
        """A command runs that ends only if it is killed."""
        self.call('trap "" TERM; echo >ready; while :; do sleep 1000; done', answer=False)
        wait_until(lambda: [*folder.glob("*/workspace/ready")], "the command runs")


ENDS: dict[str, Callable[[subprocess.Popen[bytes]], object]] = {
    "the client closes its end": lambda process: process.stdin and process.stdin.close(),
    "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
    "Ctrl-C": lambda process: process.send_signal(signal.SIGINT),
    "SIGKILL": lambda process: process.kill(),
}
CODES = {"the client closes its end": 0, "SIGTERM": 143, "Ctrl-C": 130, "SIGKILL": -9}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_every_end_leaves_nothing(folder: Path, end: str, busy: bool) -> None:
    """The session is destroyed and the process gone, also while a command runs."""
    with Server(folder) as server:
        if busy:
            server.busy(folder)
        ENDS[end](server.process)
        assert server.process.wait(20) == CODES[end]
        assert server.process.stderr is not None
        assert server.process.stderr.read() == b""
        if end != "SIGKILL":  # then the agent sees to it
            assert list(folder.iterdir()) == []


def test_a_client_that_does_not_read_can_be_ended(folder: Path) -> None:
    """Its pipe is full: SIGTERM ends the server all the same."""
    with Server(folder) as server:
        for _ in range(20):
            server.call("yes | head -c 40000; echo >>asked", answer=False)
        wait_until(lambda: any(len(p.read_bytes()) > 5 for p in folder.glob("*/workspace/asked")), "they ran")
        server.process.terminate()
        assert server.process.wait(20) == 143


def test_only_the_protocol_is_on_standard_output(folder: Path) -> None:
    """Whatever else is printed goes to standard error."""
    with Server(folder) as server:
        assert server.call("echo out; echo err >&2")["result"]["isError"] is False
        server.send("no request")
        server.send({"jsonrpc": "2.0", "id": 99, "method": "ping"})
        assert server.process.stdout is not None
        lines = [json.loads(server.process.stdout.readline())]
        while lines[-1].get("id") != 99:
            lines.append(json.loads(server.process.stdout.readline()))
        assert all(line["jsonrpc"] == "2.0" for line in lines)
