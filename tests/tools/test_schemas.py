"""The schemas are what OpenAI's strict mode takes, and the views are what each SDK's own types say."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
from anthropic.types import ToolParam
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from openai.lib._pydantic import _ensure_strict_json_schema
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam

from sandboxkit import Session
from sandboxkit.tools import Tool, Tools, create_sandbox_tools
from sandboxkit.tools._create import NAMES

from .stand_in import WithProcesses

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas, less what needs a newer model.
STRICT_KEYWORDS = {"type", "description", "properties", "required", "additionalProperties", "items", "enum"}


@pytest.fixture(scope="module")
def tools(session: Session) -> Tools:
    """All there are."""
    return create_sandbox_tools(WithProcesses(session).session, NAMES)


def subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from subschemas(inner)
    if "items" in schema:
        yield from subschemas(schema["items"])


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_keeps_the_rules_of_strict_mode(tools: Tools, name: str) -> None:
    schema = tools[name].input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    for part in subschemas(schema):
        assert set(part) <= STRICT_KEYWORDS
        if "object" in part["type"]:
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])


@pytest.mark.parametrize("name", NAMES)
def test_the_openai_sdk_has_nothing_to_correct(tools: Tools, name: str) -> None:
    """What it does to the schemas that it makes itself changes nothing."""
    schema = tools[name].input_schema
    assert _ensure_strict_json_schema(copy.deepcopy(schema), path=(), root=schema) == schema


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_and_tool_is_described(tools: Tools, name: str) -> None:
    assert 40 < len(tools[name].description) < 1024
    for part in tools[name].input_schema["properties"].values():
        assert part["description"].endswith((".", ")"))


def test_what_is_told_of_the_tools_names_each(tools: Tools) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(NAMES)
    told = (create_sandbox_tools.__doc__ or "").partition("`include`: of ")[2].partition("- `approve`")[0]
    assert re.findall(r"`(\w+)`", told) == list(NAMES)


def test_descriptions_coach_the_model(tools: Tools) -> None:
    for name, words in {
        "exec_command": "no shell",
        "read_file": "start_line and the offset",
        "edit_file": "exactly `count` times",
        "start_process": "0.0.0.0",
        "list_ports": "0.0.0.0",
        "read_process_logs": "cursor",
    }.items():
        assert words in tools[name].description


def test_openai_responses(tools: Tools) -> None:
    adapter = pydantic.TypeAdapter(list[FunctionToolParam], config=pydantic.ConfigDict(extra="forbid"))
    shown = tools.openai()
    assert adapter.validate_python(shown, strict=True) == shown
    assert all(tool["strict"] is True for tool in shown)
    assert [tool["name"] for tool in shown] == list(NAMES)


def test_openai_chat_completions(tools: Tools) -> None:
    adapter = pydantic.TypeAdapter(list[ChatCompletionFunctionToolParam], config=pydantic.ConfigDict(extra="forbid"))
    shown = tools.openai("chat")
    assert adapter.validate_python(shown, strict=True) == shown
    assert [tool["function"]["strict"] for tool in shown] == [True] * len(NAMES)


def test_openai_knows_two_shapes(tools: Tools) -> None:
    with pytest.raises(ValueError, match="'responses' or 'chat'"):
        tools.openai("assistants")  # type: ignore[arg-type]


def test_anthropic(tools: Tools) -> None:
    shown = tools.anthropic()
    assert pydantic.TypeAdapter(list[ToolParam]).validate_python(shown) == shown
    required = {tool["name"]: tool["input_schema"]["required"] for tool in shown}
    assert required["exec_command"] == ["command"]
    assert required["list_files"] == []
    for tool in shown:
        jsonschema.Draft202012Validator.check_schema(tool["input_schema"])


def test_langchain(tools: Tools) -> None:
    made = tools.langchain()
    assert all(type(tool) is StructuredTool for tool in made)
    assert [tool.name for tool in made] == list(NAMES)
    for tool, ours in zip(made, tools, strict=True):
        converted = convert_to_openai_tool(tool)["function"]
        assert set(converted["parameters"]["properties"]) == set(ours.input_schema["properties"])


def call(tool: StructuredTool, **arguments: object) -> ToolMessage:
    """As an agent does it."""
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments})
    assert isinstance(message, ToolMessage)
    return message


def test_langchain_calls_are_messages_with_artifacts(session: Session) -> None:
    tool, write = create_sandbox_tools(session, ["exec_command", "write_file"]).langchain()
    message = call(tool, command="cat", input="hello")
    assert message.status == "success"
    assert str(message.content).endswith("hello")
    assert message.artifact["exit_code"] == 0
    failed = call(write, path="../x", content="y")
    assert failed.status == "error"
    assert "outside the workspace" in str(failed.content)
    assert "content is missing" in str(call(write, path="x").content)


def test_a_schema_is_a_copy(session: Session) -> None:
    tool: Tool = create_sandbox_tools(session)["read_file"]
    tool.input_schema["properties"].clear()
    tool.input_schema["required"].clear()
    assert tool.input_schema["required"] == ["path", "start_line", "line_count", "offset"]
