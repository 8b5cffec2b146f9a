"""The tools on the official MCP SDK's server, asked by its client, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp.types as types
import pytest
from mcp.client.client import Client
from mcp.server.lowlevel import Server

from sandboxkit import Session
from sandboxkit.errors import ConfigError
from sandboxkit.tools import ExecPolicy, Tools, create_sandbox_tools
from sandboxkit.tools._create import NAMES

from .stand_in import WithProcesses


def served(tools: Tools, talk: Callable[[Client], Awaitable[None]]) -> None:
    """A client and a server with these tools, for as long as they talk."""
    server: Server[Any] = Server("test")
    tools.mcp(server)

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(server) as client:
                await talk(client)

    anyio.run(main)


def text(result: Any) -> str:
    assert isinstance(result, types.CallToolResult)
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def test_a_client_sees_the_tools(session: Session) -> None:
    tools = create_sandbox_tools(WithProcesses(session).session, NAMES)

    async def talk(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == list(NAMES)
        by_name = {tool.name: tool for tool in listed}
        assert by_name["exec_command"].input_schema["required"] == ["command"]
        assert by_name["exec_command"].description == tools["exec_command"].description

    served(tools, talk)


def test_a_client_calls_them(session: Session) -> None:
    async def talk(client: Client) -> None:
        done = await client.call_tool("exec_command", {"command": "cat", "input": "hello"})
        assert text(done).endswith("hello")
        assert done.structured_content["exit_code"] == 0
        assert not done.is_error
        denied = await client.call_tool("exec_command", {"command": "curl"})
        assert (denied.is_error, "blocked" in text(denied)) == (True, True)
        wrong = await client.call_tool("exec_command", {"command": 3})
        assert (wrong.is_error, "command: 3 is not a string" in text(wrong)) == (True, True)
        unknown = await client.call_tool("rm", {})
        assert (unknown.is_error, "no tool of that name" in text(unknown)) == (True, True)

    served(create_sandbox_tools(session, exec=ExecPolicy(blocked_commands=["curl"])), talk)


def test_the_server_answers_while_a_command_runs(session: Session) -> None:
    """A call is on a thread of its own."""

    async def talk(client: Client) -> None:
        async def slow() -> None:
            result = await client.call_tool("exec_command", {"command": "cat", "args": ["fifo"]})
            assert text(result).endswith("told")

        session.exec("mkfifo", ["fifo"]).check()
        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            quick = await client.call_tool("exec_command", {"command": "sh", "args": ["-c", "echo told >fifo"]})
            assert not quick.is_error

    served(create_sandbox_tools(session), talk)


def test_a_cancelled_request_is_aborted_in_the_sandbox(session: Session) -> None:
    """Its command is dead, and the server goes on."""

    async def talk(client: Client) -> None:
        pid = ""
        async with anyio.create_task_group() as group:

            async def slow() -> None:
                script = "echo $$ >pid.new; mv pid.new pid; exec sleep 1000"
                await client.call_tool("exec_command", {"command": "sh", "args": ["-c", script]})

            group.start_soon(slow)
            while not session.files.exists("pid"):
                await anyio.sleep(0.01)
            pid = session.files.read_text("pid").strip()
            assert session.exec("kill", ["-0", pid]).ok
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            while session.exec("kill", ["-0", pid]).ok:
                await anyio.sleep(0.01)
        assert not (await client.call_tool("exec_command", {"command": "true"})).is_error

    served(create_sandbox_tools(session), talk)


def test_a_lost_session_is_told(own_session: Session) -> None:
    tools = create_sandbox_tools(own_session)
    own_session.destroy()

    async def talk(client: Client) -> None:
        result = await client.call_tool("exec_command", {"command": "true"})
        assert (result.is_error, "was destroyed" in text(result)) == (True, True)

    served(tools, talk)


def test_something_else_than_a_server_is_refused(session: Session) -> None:
    with pytest.raises(ConfigError, match="server"):
        create_sandbox_tools(session).mcp(object())  # type: ignore[arg-type]
