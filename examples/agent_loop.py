"""An agent repairs a small repository through tools; the model is scripted, so no network and no key is needed.

The loop is what you would write around a real model: send it the tools (`tools.openai()`, `tools.anthropic()`), run the
calls that come back, and send it what they gave. By hand:

    SANDBOXKIT_BACKEND=docker python examples/agent_loop.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator

from sandboxkit import Limits, Sandbox
from sandboxkit.tools import ExecPolicy, ToolResult, Tools, WriteFilePolicy, create_sandbox_tools

REPOSITORY = {
    "prices.py": '''"""Prices in cents."""


def total(prices, discount=0):
    """The sum, less a discount in percent."""
    return sum(prices) - discount
''',
    "tests/__init__.py": "",
    "tests/test_prices.py": """import unittest

from prices import total


class TotalTest(unittest.TestCase):
    def test_without_a_discount(self):
        self.assertEqual(total([100, 250]), 350)

    def test_with_a_discount(self):
        self.assertEqual(total([100, 100], discount=10), 180)
""",
}

Call = tuple[str, dict[str, object]]
TESTS: Call = ("exec_command", {"command": "python3", "args": ["-m", "unittest", "-q"]})


def model() -> Generator[Call, ToolResult, str]:
    """Stands in for a language model: yields tool calls, is sent their results, returns its last words."""
    yield "exec_command", {"command": "pip", "args": ["install", "pytest"]}  # not allowed: it reads why, and goes on
    result = yield TESTS
    if result.structured["exit_code"] == 0:
        return "There is nothing to repair."
    yield "search_files", {"regex": "def total"}
    result = yield "read_file", {"path": "prices.py"}
    wrong = next(line for line in result.structured["text"].splitlines() if "return" in line)
    yield "edit_file", {"path": "tests/test_prices.py", "old": "180", "new": "190"}  # the tests are out of bounds
    right = "    return sum(prices) * (100 - discount) // 100"
    yield "edit_file", {"path": "prices.py", "old": wrong, "new": right}
    result = yield TESTS
    return "The tests pass." if result.structured["exit_code"] == 0 else "I could not repair it."


def converse(tools: Tools) -> str:
    """One conversation, to its end."""
    talking = model()
    name, arguments = next(talking)
    while True:
        # As the text of a JSON object, which is how a model's arguments come.
        result = tools.call(name, json.dumps(arguments))
        mark = "refused" if result.is_error else "done"
        print(f"{name} {mark}: {result.content.splitlines()[0]}")
        try:
            name, arguments = talking.send(result)
        except StopIteration as end:
            return str(end.value)


def main() -> None:
    """The session holds the repository; what the tools may do is narrow."""
    image = os.environ.get("SANDBOXKIT_IMAGE", "docker.io/library/python:3.12-slim")
    # Rootless engines on cgroup v1 can't bound memory; the example runs there too.
    sandbox = Sandbox(image, limits=Limits(timeout=60, allow_unenforced=True))
    with sandbox.create_session(files=REPOSITORY) as session:
        tools = create_sandbox_tools(
            session,
            ["exec_command", "read_file", "edit_file", "search_files"],
            exec=ExecPolicy(allowed_commands=["python3"], max_timeout=60),
            write_file=WriteFilePolicy(denied=["tests"]),
        )
        print(converse(tools))


if __name__ == "__main__":
    main()
