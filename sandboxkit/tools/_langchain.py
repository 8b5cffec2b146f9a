"""Tools as LangChain has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._extras import need
from ._schema import relaxed

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

    from ._tool import Tool

__all__ = ["structured_tools"]


def structured_tools(tools: Iterable[Tool]) -> list[StructuredTool]:
    """See `Tools.langchain`."""
    need("Tools.langchain", "langchain-core", "langchain_core")
    from langchain_core.tools import StructuredTool, ToolException

    def wrap(tool: Tool) -> StructuredTool:
        def call(**arguments: Any) -> tuple[str, dict[str, Any]]:
            result = tool.call(arguments)
            if result.is_error:
                raise ToolException(result.content)  # the framework's way to a message with the status "error"
            return result.content, result.structured

        return StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=relaxed(tool.input_schema),
            func=call,
            response_format="content_and_artifact",
            handle_tool_error=True,
        )

    return [wrap(tool) for tool in tools]
