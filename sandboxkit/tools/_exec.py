"""`exec_command`, and what it shares with `start_process`: from a model's arguments to a command that may run."""

from __future__ import annotations

from typing import Any

import attrs

from sandboxkit.abort import Abort
from sandboxkit.errors import PolicyError
from sandboxkit.results import ExecResult
from sandboxkit.session import Session

from . import _schema as schema
from ._arguments import ArgumentsError
from ._commands import judged
from ._environment import as_mapping, check_environment
from ._paths import PathRules
from ._policies import ExecPolicy, ExecRequest
from ._result import ToolResult, clean, failure, success
from ._tool import raise_unless

__all__ = ["Command", "ExecCommand", "passed_command", "seconds_within"]

ENV = schema.optional(
    schema.records(
        "Variables to set for this command.",
        name=schema.string("The variable's name."),
        value=schema.string("Its value."),
    )
)
CWD = schema.optional(schema.string("Working folder, relative to the workspace; null: the workspace itself."))
COMMAND = schema.string("One executable, such as 'python', or a path to one. Not a shell line.")
ARGS = schema.optional(schema.strings("Its arguments, one string each, passed as they are: no quoting, no expansion."))


@attrs.frozen
class Command:
    """What passed: it is to be run exactly so."""

    command: str
    args: tuple[str, ...]
    cwd: str
    env: dict[str, str]


def passed_command(
    session: Session, policy: ExecPolicy, tool: str, arguments: dict[str, Any], abort: Abort | None
) -> Command:
    """The command of these arguments, if the policy lets it run; else PolicyError."""
    command: str = arguments["command"]
    args = tuple(arguments["args"] or ())
    pairs = [(setting["name"], setting["value"]) for setting in arguments["env"] or ()]
    env, cwd = dict(as_mapping(pairs)), arguments["cwd"] or "."
    size = sum(len(text.encode("utf-8", "replace")) for text in (command, *args, *env, *env.values()))
    if size > policy.max_args_bytes:
        raise PolicyError(
            f"Command, arguments and env have {size} bytes; at most {policy.max_args_bytes} are taken. "
            "Write the data to a file, or pass it as input."
        )
    check_environment(env, policy.allowed_env)
    cwd = PathRules(session, policy.allowed_cwd, (), "used as the working folder").passed(cwd, abort)
    command, args = judged(session, policy, command, args, cwd, env, abort)
    if policy.check is not None:
        asked = ExecRequest(tool=tool, command=command, args=args, cwd=cwd, env=dict(env))
        raise_unless(policy.check(asked), "exec.check")
    return Command(command, args, cwd, env)


def seconds_within(asked: float | None, default: float, most: float, ceiling: float | None) -> tuple[float, str | None]:
    """The time a call gets, and a sentence when that is less than what was asked for."""
    most = most if ceiling is None else min(most, ceiling)
    if asked is None:
        return min(default, most), None
    if asked <= 0:
        raise ArgumentsError(f"timeout_seconds: {asked:g} is not above 0")
    if asked > most:
        return most, f"timeout_seconds was lowered from {asked:g} to {most:g}, the most there is here."
    return asked, None


class ExecCommand:
    """Run a command to its end."""

    name = "exec_command"
    description = (
        "Run one program in the sandbox and wait for its end. `command` is the program, `args` its arguments as a "
        "list: there is no shell, so no pipes, no globs and no quoting; for these run 'sh' with args ['-c', script], "
        "if there is a shell. It starts in the workspace or in `cwd`. It reads `input` as its standard input, else "
        "end of file. Long output is cut in the middle: narrow it down, or write it to a file and read that in pages. "
        "A command that does not end, such as a server, is killed at the timeout."
    )

    def __init__(self, session: Session, policy: ExecPolicy) -> None:
        self._session, self._policy = session, policy
        self.schema = schema.record(
            command=COMMAND,
            args=ARGS,
            cwd=CWD,
            env=ENV,
            timeout_seconds=schema.optional(
                schema.number(f"Null: {policy.default_timeout:g}. At most {policy.max_timeout:g}.")
            ),
            input=schema.optional(schema.string("Text for its standard input.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        limits, policy = self._session.limits, self._policy
        timeout, lowered = seconds_within(
            arguments["timeout_seconds"], policy.default_timeout, policy.max_timeout, limits.max_timeout
        )
        text = arguments["input"]
        command = passed_command(self._session, policy, self.name, arguments, abort)
        result = self._session.exec(
            command.command,
            command.args,
            cwd=command.cwd,
            env=command.env,
            input=None if text is None else text.encode("utf-8", "replace"),
            timeout=timeout,
            abort=abort,
            max_output_bytes=policy.max_output_bytes,
        )
        return _shown(result, policy.max_output_bytes, lowered)


def _shown(result: ExecResult, most: int, lowered: str | None) -> ToolResult:
    room = most + 100  # for the line that says how much is missing
    streams = {"stdout": clean(result.stdout, room), "stderr": clean(result.stderr, room)}
    structured: dict[str, Any] = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "duration_seconds": round(result.duration, 3),
        **streams,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "timed_out": result.timed_out,
        "aborted": result.aborted,
        "out_of_memory": result.oom_killed,
        "note": lowered,
    }
    parts = [f"{name}:\n{text.rstrip()}" for name, text in streams.items() if text.strip()]
    if result.timed_out or result.aborted:
        what = f"it ran longer than {result.duration:.3g} s, its timeout" if result.timed_out else "it was cancelled"
        advice = "Ask for more time, do less at once, or use start_process for a server." if result.timed_out else ""
        sentence = f"The command was killed: {what}. {advice} {lowered or ''}"
        body = "\n".join(["Its output so far:", *parts] if parts else ["It had written nothing."])
        return failure("timeout" if result.timed_out else "aborted", sentence, body, structured)
    head = f"The command {result.outcome} after {result.duration:.2f} s."
    notes = [lowered] if lowered else []
    if result.background_pids:
        notes.append("It left processes running in the background.")
    return success("\n".join([" ".join([head, *notes]), *(parts or ["It wrote nothing."])]), structured)
