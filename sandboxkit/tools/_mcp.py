"""Tools on a server of the official MCP SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandboxkit.abort import Abort, AbortSignal
from sandboxkit.errors import ConfigError, SandboxError

from ._extras import need
from ._result import ToolResult, failure
from ._schema import relaxed

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from ._tool import Tools

__all__ = ["register"]


def register(tools: Tools, server: Server[Any], abort: Abort | None = None) -> None:
    """See `Tools.mcp`; `abort` ends whatever call runs."""
    need("Tools.mcp", "sandboxkit[mcp]", "mcp")
    import anyio
    import anyio.to_thread
    from mcp import types

    if not hasattr(server, "add_request_handler"):
        raise ConfigError("server: accepted: an mcp.server.lowlevel.Server of mcp 2", details={"field": "server"})
    described = [
        types.Tool(name=tool.name, description=tool.description, input_schema=relaxed(tool.input_schema))
        for tool in tools
    ]

    async def list_tools(_: object, __: types.PaginatedRequestParams) -> types.ListToolsResult:
        return types.ListToolsResult(tools=described)

    async def call_tool(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        cancelled = AbortSignal()
        signal = cancelled if abort is None else AbortSignal.any(cancelled, abort)

        def call() -> ToolResult:
            try:
                return tools.call(params.name, params.arguments or {}, abort=signal)
            except SandboxError as error:  # the session is gone: here nobody else can be told
                return failure(error.code.value, str(error))

        async def watch() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

        results: list[ToolResult] = []
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            # Shielded: when the request is cancelled its command is killed before this returns.
            with anyio.CancelScope(shield=True):
                results.append(await anyio.to_thread.run_sync(call))
            group.cancel_scope.cancel()
        (result,) = results
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=result.content)],
            structured_content=result.structured,
            is_error=result.is_error,
        )

    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
