"""What a model sends is judged before anything happens; the message names the field."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import Session
from sandboxkit.errors import ConfigError
from sandboxkit.tools import ExecPolicy, ReadFilePolicy, Tools, create_sandbox_tools
from sandboxkit.tools._arguments import MAX_BYTES, ArgumentsError, Checker
from sandboxkit.tools._create import DEFAULT
from sandboxkit.tools._exec import ExecCommand

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("command", "args", "cwd", "env", "timeout_seconds", "input")


@pytest.fixture(scope="module")
def tools(session: Session) -> Tools:
    return create_sandbox_tools(session, ["exec_command", "read_file", "write_file", "list_files"])


@pytest.fixture(scope="module")
def checker(session: Session) -> Checker:
    """Of exec_command, which has every type there is."""
    return Checker("exec_command", ExecCommand(session, ExecPolicy()).schema)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "ls", "timeout_seconds": "abc"}, "timeout_seconds: 'abc' is not a number"),
        ({"command": "ls", "timeout_seconds": True}, "timeout_seconds: True is not a number"),
        ({"command": ["ls"]}, "command: an array is not a string"),
        ({"command": None}, "command: null is not a string"),
        ({"command": "ls", "args": "-l"}, "args: '-l' is not an array"),
        ({"command": "ls", "args": ["-l", 3]}, "args[1]: 3 is not a string"),
        ({"command": "ls", "env": {"A": "b"}}, "env: an object is not an array"),
        ({"command": "ls", "env": [{"name": "A"}]}, "env[0].value is missing"),
        (
            {"command": "ls", "env": [{"name": "A", "value": "b", "x": 1}]},
            "env[0].x is not known; accepted: name, value",
        ),
        ({}, "command is missing"),
        ({"command": "ls", "shell": True}, "shell is not known; accepted: command, args, cwd, env, timeout_seconds, "),
        ({"command": 10**5000}, "a number has more digits than any argument takes"),
        ("[1]", "the arguments of exec_command are an array, not a JSON object"),
        ("{", "the arguments of exec_command are not JSON"),
        ('{"command": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "the arguments of exec_command are not JSON"),
        (None, "the arguments of exec_command are null, not a JSON object"),
        ({"command": "ls", "timeout_seconds": float("inf")}, "inf is no JSON number"),
        ({"command": "ls", 3: 4}, "the name of an argument is not a string"),
    ],
)
def test_the_message_names_the_field(tools: Tools, arguments: Any, message: str) -> None:
    result = tools.call("exec_command", arguments)
    assert result.is_error
    assert message in result.content
    assert len(result.content) < 500
    assert result.structured["error"]["code"] == "arguments"


def test_deep_nesting_is_refused(tools: Tools) -> None:
    value: Any = "x"
    for _ in range(50_000):
        value = [value]
    assert "nested more than" in tools.call("exec_command", {"command": "ls", "args": value}).content
    while isinstance(value, list):  # else its end is a recursion
        (value,) = value


def test_what_is_left_out_is_null(checker: Checker) -> None:
    assert checker.check({"command": "ls"}) == {"command": "ls", **dict.fromkeys(FIELDS[1:])}
    assert checker.check('{"command": "ls", "cwd": null}') == checker.check({"command": "ls"})


def test_no_text_is_no_arguments(tools: Tools) -> None:
    """As some models call a tool that needs none."""
    assert not tools.call("list_files", "").is_error
    assert "command is missing" in tools.call("exec_command", " ").content


def test_a_whole_float_is_an_integer(tools: Tools) -> None:
    """JSON knows one kind of number."""
    tools.call("write_file", {"path": "numbers", "content": "a\nb\nc\n"})
    assert tools.call("read_file", '{"path": "numbers", "start_line": 2.0}').structured["text"] == "b\nc\n"
    assert "1.5 is not an integer" in tools.call("read_file", {"path": "numbers", "start_line": 1.5}).content


@pytest.mark.parametrize("number", [0, -1, -(10**30)])
def test_numbers_out_of_range_are_told(tools: Tools, number: int) -> None:
    for name, arguments in (
        ("read_file", {"path": "x", "line_count": number}),
        ("exec_command", {"command": "ls", "timeout_seconds": number}),
    ):
        result = tools.call(name, arguments)
        assert result.is_error
        assert "is not above 0" in result.content


def test_numbers_beyond_measure_are_told(tools: Tools) -> None:
    tools.call("write_file", {"path": "numbers", "content": "a\n"})
    for name in ("start_line", "offset"):
        result = tools.call("read_file", {"path": "numbers", name: 10**30})
        assert result.is_error
        assert name in result.content
    assert not tools.call("read_file", {"path": "numbers", "line_count": 10**30}).is_error


@pytest.mark.parametrize("kind", ["text", "mapping", "many", "names"])
def test_ten_megabytes_are_refused_cheaply(tools: Tools, kind: str) -> None:
    arguments: Any = {
        "text": json.dumps({"command": "ls", "input": "x" * 10_000_000}),
        "mapping": {"command": "ls", "input": "x" * 10_000_000},
        "many": {"command": "ls", "args": ["x"] * 5_000_000},
        "names": {f"{n:01000}": n for n in range(10_000)},
    }[kind]
    tracemalloc.start()
    try:
        start = time.thread_time()
        result = tools.call("exec_command", arguments)
        seconds = time.thread_time() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"larger than {MAX_BYTES} bytes" in result.content
    assert seconds < 0.5
    assert peak < 1_000_000


@given(JSON)
def test_anything_is_checked_or_refused(checker: Checker, value: Any) -> None:
    for form in (value, {"command": value}, {"command": "ls", "env": value}, {"command": "ls", "args": value}):
        with contextlib.suppress(ArgumentsError):
            assert tuple(checker.check(form)) == FIELDS


@given(st.text() | st.binary())
def test_any_text_is_checked_or_refused(checker: Checker, text: str | bytes) -> None:
    with pytest.raises(ArgumentsError):
        checker.check(text)


def test_a_name_that_is_no_tool_is_told(tools: Tools) -> None:
    """Models make them up."""
    for name in ("rm", "", "Exec_Command", None):
        result = tools.call(name, {})  # type: ignore[arg-type]
        assert result.is_error
        assert "there are exec_command, read_file, write_file, list_files" in result.content


def test_include_is_ordered_and_checked(session: Session) -> None:
    assert create_sandbox_tools(session).names == DEFAULT
    assert create_sandbox_tools(session, ["list_files", "exec_command"]).names == ("list_files", "exec_command")
    wrong: list[tuple[Any, str]] = [
        (["read_file", "read_file"], "each tool once"),
        (["read_files"], "wait_for_port"),
        ("read_file", "a list of names"),
        ([], "a list of names"),
        ([None], "exec_command"),
    ]
    for include, accepted in wrong:
        with pytest.raises(ConfigError, match="include") as caught:
            create_sandbox_tools(session, include)
        assert accepted in str(caught.value)


def test_tools_are_a_sequence_and_found_by_name(tools: Tools) -> None:
    assert [tool.name for tool in tools] == list(tools.names) == list(DEFAULT)
    assert tools["read_file"] is tools[1]
    assert tools[1:3].names == ("read_file", "write_file")
    assert len(tools) == 4
    with pytest.raises(KeyError):
        tools["edit_file"]


def test_policies_are_checked(session: Session) -> None:
    wrong: list[dict[str, Any]] = [
        {"exec": ReadFilePolicy()},
        {"read_file": {"max_lines": 3}},
        {"approve": "yes"},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            create_sandbox_tools(session, **options)
    with pytest.raises(ConfigError, match="session"):
        create_sandbox_tools("session")  # type: ignore[arg-type]
    bad: list[dict[str, Any]] = [
        *({"allowed_commands": "python"}, {"blocked_commands": [""]}, {"max_timeout": 4000}, {"default_timeout": 0}),
        *({"max_output_bytes": 2 << 20}, {"max_args_bytes": 0}, {"allowed_env": [3]}, {"check": 3}),
    ]
    for fields in bad:
        with pytest.raises(ConfigError):
            ExecPolicy(**fields)


@pytest.mark.parametrize(
    ("module", "call", "advice"),
    [
        (
            "jsonschema",
            "tools._arguments.Checker('x', {'properties': {}})",
            "jsonschema: pip install 'sandboxkit[tools]'",
        ),
        ("mcp", "tools.Tools([]).mcp(None)", "mcp: pip install 'sandboxkit[mcp]'"),
        ("mcp", "tools._serve.serve_stdio(None, None, None)", "mcp: pip install 'sandboxkit[mcp]'"),
        ("langchain_core", "tools.Tools([]).langchain()", "langchain-core: pip install 'langchain-core'"),
    ],
)
def test_without_a_package_what_to_install_is_named(module: str, call: str, advice: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from sandboxkit import tools; import sandboxkit.tools._serve\n"
        f"try: {call}\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("ConfigError ")
    assert done.stdout.endswith(f" needs the package {advice}\n")


def test_importing_the_tools_loads_no_sdk() -> None:
    program = "import sandboxkit.tools, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {"jsonschema", "mcp", "anyio", "langchain_core", "openai", "anthropic", "pydantic"}.isdisjoint(loaded)
