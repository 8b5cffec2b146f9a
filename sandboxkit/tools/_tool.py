"""A tool and a collection of them: what a model calls, and the shapes in which frameworks want to have them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from sandboxkit import _validate as check
from sandboxkit.abort import Abort, checked_abort
from sandboxkit.errors import (
    ConfigError,
    FileError,
    FileTooLargeError,
    PathError,
    PolicyError,
    PortError,
    ProcessError,
    SandboxError,
    SessionBusyError,
    UnsupportedError,
)

from ._arguments import ArgumentsError, Checker
from ._policies import Deny
from ._result import ToolResult, failure
from ._schema import Schema, relaxed

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool
    from mcp.server.lowlevel import Server

__all__ = ["Answer", "Approve", "Tool", "ToolDefinition", "Tools", "raise_unless"]

Answer = bool | Deny | Mapping[str, object]
Approve = Callable[[str, dict[str, Any]], Answer]

# What a model can act on. All else, a lost session above all, is for the program that runs the tools.
_FOR_THE_MODEL: tuple[type[SandboxError], ...] = (
    ConfigError,
    FileError,
    FileTooLargeError,
    PathError,
    PolicyError,
    PortError,
    ProcessError,
    SessionBusyError,
    UnsupportedError,
)


class ToolDefinition(Protocol):
    """What there is to each tool besides what they have in common."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        """With arguments that the schema accepts. PolicyError and what else is for the model becomes a result."""
        ...


class Tool:
    """Something a model can do in a session. May be called from any thread.

    `input_schema` is a JSON Schema that OpenAI's strict mode takes: arguments that may be left out are nullable there.
    """

    def __init__(self, definition: ToolDefinition, approve: Approve | None = None) -> None:
        self._definition = definition
        self._approve = approve
        self._checker = Checker(definition.name, definition.schema)

    @property
    def name(self) -> str:
        """Its name, for the model."""
        return self._definition.name

    @property
    def description(self) -> str:
        """How to use it, for the model."""
        return self._definition.description

    @property
    def input_schema(self) -> Schema:
        """A copy of its arguments' JSON Schema."""
        return copy.deepcopy(self._definition.schema)

    def call(self, arguments: Mapping[str, object] | str, *, abort: Abort | None = None) -> ToolResult:
        """Do it. `arguments` as the model sent them, a mapping or the text of a JSON object.

        Bad arguments, a policy's no, missing files, timeouts and a set `abort` come back as results with `is_error`.
        Raises SessionLostError or SessionDestroyedError, what `approve` and `check` raise, and for programming errors.
        """
        checked_abort("abort", abort)
        try:
            checked = self._approved(self._checker.check(arguments))
            return self._definition.run(checked, abort)
        except ArgumentsError as error:
            return failure("arguments", f"{error}.")
        except _FOR_THE_MODEL as error:
            # What ended the call says more than whose it was.
            reason = error.details.get("reason")
            return failure(str(reason) if reason in ("aborted", "timeout") else error.code.value, str(error))

    def _approved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._approve is None:
            return arguments
        # A copy: what is changed there counts only if it is given back.
        shown = {name: value for name, value in copy.deepcopy(arguments).items() if value is not None}
        answer = self._approve(self.name, shown)
        if isinstance(answer, Mapping):
            return self._checker.check(answer)
        raise_unless(answer, "approve", "a mapping of edited arguments")
        return arguments

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


def raise_unless(answer: object, field: str, *more: str) -> None:
    """True passes; False and Deny are a PolicyError. TypeError for anything else: a forgotten return is no yes."""
    if isinstance(answer, Deny):
        raise PolicyError(f"This was denied: {answer.reason}")
    if answer is False:
        raise PolicyError("This was denied; no reason was given.")
    if answer is not True:
        accepted = ", ".join(("True", "False", "Deny(reason)", *more))
        raise TypeError(f"{field} returned {type(answer).__name__}; accepted: {accepted}. Nothing was done.")


class Tools(Sequence[Tool]):
    """The tools of one session, in the order they were included in. `tools["read_file"]` is one by its name."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in self._tools}

    @property
    def names(self) -> tuple[str, ...]:
        """Of each, in order."""
        return tuple(self._by_name)

    def call(self, name: str, arguments: Mapping[str, object] | str, *, abort: Abort | None = None) -> ToolResult:
        """`Tool.call` of the one of this name; a name that is none, which models make up, is a result as well."""
        tool = self._by_name.get(name) if isinstance(name, str) else None
        if tool is None:
            return failure("unknown_tool", f"There is no tool of that name; there are {', '.join(self.names)}.")
        return tool.call(arguments, abort=abort)

    @overload
    def __getitem__(self, key: int | str) -> Tool: ...

    @overload
    def __getitem__(self, key: slice) -> Tools: ...

    def __getitem__(self, key: int | str | slice) -> Tool | Tools:
        if isinstance(key, str):
            return self._by_name[key]
        return Tools(self._tools[key]) if isinstance(key, slice) else self._tools[key]

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)

    def __repr__(self) -> str:
        return f"Tools({', '.join(self.names)})"

    def openai(self, api: Literal["responses", "chat"] = "responses") -> list[dict[str, Any]]:
        """For `tools=` of OpenAI's Responses or Chat Completions, in strict mode."""
        if api not in ("responses", "chat"):
            check.fail("api", api, "'responses' or 'chat'")
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": True}
            for tool in self
        ]
        if api == "chat":
            return [{"type": "function", "function": function} for function in functions]
        return [{"type": "function", **function} for function in functions]

    def anthropic(self) -> list[dict[str, Any]]:
        """For `tools=` of Anthropic's Messages."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": relaxed(tool.input_schema)}
            for tool in self
        ]

    def langchain(self) -> list[StructuredTool]:
        """As LangChain's StructuredTools: the content is the message, `structured` its artifact.

        An error is a message with the status `error`. Needs langchain-core.
        """
        from ._langchain import structured_tools

        return structured_tools(self)

    def mcp(self, server: Server[Any]) -> None:
        """Serve them on a low-level `mcp.server.lowlevel.Server` (mcp 2), in the place of the tools it had.

        Each call runs on a thread, so that the server stays responsive; a request that is cancelled is aborted in the
        sandbox. Needs mcp: `pip install 'sandboxkit[mcp]'`.
        """
        from ._mcp import register

        register(self, server)
