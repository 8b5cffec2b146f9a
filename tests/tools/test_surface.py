"""The surface that users build on: a change here is a change of the API, and goes into the changelog."""

from __future__ import annotations

import inspect

import sandboxkit.tools
from sandboxkit.tools import (
    ExecPolicy,
    ProcessPolicy,
    ReadFilePolicy,
    Tool,
    Tools,
    WriteFilePolicy,
    create_sandbox_tools,
)

POLICIES = {
    ExecPolicy: "allowed_commands blocked_commands default_timeout max_timeout max_output_bytes allowed_env "
    "allowed_cwd max_args_bytes check",
    ReadFilePolicy: "allowed denied max_lines max_bytes max_entries max_matches",
    WriteFilePolicy: "allowed denied max_bytes",
    ProcessPolicy: "max_processes all_processes max_log_bytes max_wait stop_grace",
}


def parameters(function: object) -> str:
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return " ".join(name for name in found if name != "self")


def test_the_public_names() -> None:
    assert sandboxkit.tools.__all__ == sorted(sandboxkit.tools.__all__)
    for name in sandboxkit.tools.__all__:
        assert getattr(sandboxkit.tools, name) is not None


def test_signatures() -> None:
    assert parameters(create_sandbox_tools) == "session include exec read_file write_file process approve"
    assert parameters(Tool.call) == "arguments abort"
    assert parameters(Tools.call) == "name arguments abort"
    assert parameters(Tools.openai) == "api"
    for policy, fields in POLICIES.items():
        assert parameters(policy) == fields


def test_every_policy_has_defaults_and_is_frozen() -> None:
    for policy in POLICIES:
        made = policy()
        assert made == policy()
        assert policy.__doc__
