"""What a model may do with each kind of tool. Every bound has a default and a hard maximum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from sandboxkit import _validate as check

__all__ = ["Deny", "ExecPolicy", "ExecRequest", "ProcessPolicy", "ReadFilePolicy", "Verdict", "WriteFilePolicy"]

MAX_SECONDS: Final = 3600.0
MAX_BYTES: Final = 1024 * 1024
MAX_COUNT: Final = 10_000
MAX_RULES: Final = 1000


@attrs.frozen
class Deny:
    """The answer no of a `check` or an `approve`; the model reads the reason."""

    reason: str

    def __attrs_post_init__(self) -> None:
        check.text("reason", self.reason, accepted="a sentence for the model")


Verdict = bool | Deny


@attrs.frozen(kw_only=True)
class ExecRequest:
    """What `ExecPolicy.check` is asked about; `env` is what the model sets, `tool` exec_command or start_process."""

    tool: str
    command: str
    args: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]


def _strings(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) > MAX_RULES:
        check.fail("a list of a policy", value, f"a list of at most {MAX_RULES} strings, such as ['python', 'node']")
    return tuple(check.text(f"entry {index} of a policy's list", item) for index, item in enumerate(value))


def _optional_strings(value: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if value is None else _strings(value)


def _seconds(name: str, value: float | None, *, optional: bool = False) -> None:
    check.number(name, value, optional=optional)
    if value is not None and value > MAX_SECONDS:
        check.fail(name, value, f"at most {MAX_SECONDS:g} seconds")


@attrs.frozen(kw_only=True)
class ExecPolicy:
    """What `exec_command` and `start_process` may run, and for how long.

    - `allowed_commands`: names that the session's PATH is searched for, or paths, absolute or relative to the
      workspace; None: any. A name stands for the one program that PATH leads to, outside the workspace, called by this
      very name: `/usr/bin/node` passes where `node` is allowed, `./node` does not. What passes is executed by the path
      that was judged. A program inside the workspace, which the model can write, passes only if its path is listed.
    - `blocked_commands`: names or paths that are refused, by name, by path, through a link, and as the same file under
      another name. Where many commands are one file (busybox) the name decides, also in `busybox wget`.
    - Programs known to start another one (env, nice, nohup, timeout, xargs, setsid, stdbuf, time, ionice, sudo, doas,
      find, busybox) are looked through: what they are to start has to pass, too.
    - `default_timeout` and `max_timeout`, seconds: of a command. A request for more is lowered, and the result says so.
      The session's own limits hold as well.
    - `max_output_bytes`: kept of each stream. `max_args_bytes`: of command, arguments and environment together.
    - `allowed_env`: names, or globs such as `APP_*`, that the model may set. None: any but those that change what
      programs load or where they connect, such as PATH, LD_PRELOAD, PYTHONPATH, NODE_OPTIONS, BASH_ENV, GIT_SSH, HOME
      or https_proxy; these only if they are listed.
    - `allowed_cwd`: globs of working folders; a folder that matches stands for those below it. None: the workspace.
    - `check`: a function that is given an ExecRequest last of all and returns True, False or `Deny(reason)`.

    What a list of commands cannot do: an allowed interpreter, shell, compiler, build tool or test runner runs whatever
    the model writes, and through it every program in the sandbox. A blocked command is there in copies, and as what
    other programs can do just as well. A list keeps a model on its way; what confines it is the container: its network,
    its user, its limits, its files.
    """

    allowed_commands: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_strings)
    blocked_commands: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    default_timeout: float = 60.0
    max_timeout: float = 600.0
    max_output_bytes: int = 50_000
    allowed_env: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_strings)
    allowed_cwd: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_strings)
    max_args_bytes: int = 128 * 1024
    check: Callable[[ExecRequest], Verdict] | None = None

    def __attrs_post_init__(self) -> None:
        _seconds("exec.default_timeout", self.default_timeout)
        _seconds("exec.max_timeout", self.max_timeout)
        check.integer("exec.max_output_bytes", self.max_output_bytes, minimum=1, maximum=MAX_BYTES)
        check.integer("exec.max_args_bytes", self.max_args_bytes, minimum=1, maximum=MAX_BYTES)
        if self.check is not None and not callable(self.check):
            check.fail("exec.check", self.check, "a function that takes one ExecRequest, or None")


@attrs.frozen(kw_only=True)
class ReadFilePolicy:
    """What `read_file`, `list_files` and `search_files` may show.

    - `allowed`, `denied`: globs as in `session.files.search`, for paths relative to the workspace; a folder that
      matches stands for what is in it, and `denied` wins. They are held against where a path leads, so a link does not
      help. They bind these tools: a command that may run reads what the session's user can.
    - `max_lines`, `max_bytes`: of one page. `max_entries`: of a listing. `max_matches`: of a search.
    """

    allowed: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_strings)
    denied: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    max_lines: int = 1000
    max_bytes: int = 50_000
    max_entries: int = 1000
    max_matches: int = 200

    def __attrs_post_init__(self) -> None:
        for name in ("max_lines", "max_entries", "max_matches"):
            check.integer(f"read_file.{name}", getattr(self, name), minimum=1, maximum=MAX_COUNT)
        check.integer("read_file.max_bytes", self.max_bytes, minimum=64, maximum=MAX_BYTES)


@attrs.frozen(kw_only=True)
class WriteFilePolicy:
    """What `write_file` and `edit_file` may change; `allowed` and `denied` are as in ReadFilePolicy.

    `edit_file` also needs the right to read: it tells whether a text is there. `max_bytes`: of one file's content.
    """

    allowed: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_strings)
    denied: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    max_bytes: int = MAX_BYTES

    def __attrs_post_init__(self) -> None:
        check.integer("write_file.max_bytes", self.max_bytes, minimum=1, maximum=MAX_BYTES)


@attrs.frozen(kw_only=True)
class ProcessPolicy:
    """What the tools for background processes and ports may do; which programs, ExecPolicy says.

    - `max_processes`: running at once, of those that these tools started.
    - `all_processes`: the tools see and stop also what trusted code started. `max_log_bytes`: of one look at a log.
    - `max_wait`: seconds that `wait_for_port` waits at most. `stop_grace`: seconds from SIGTERM to SIGKILL.
    """

    max_processes: int = 4
    all_processes: bool = False
    max_log_bytes: int = 50_000
    max_wait: float = 60.0
    stop_grace: float = 5.0

    def __attrs_post_init__(self) -> None:
        check.integer("process.max_processes", self.max_processes, minimum=1, maximum=100)
        check.boolean("process.all_processes", self.all_processes)
        check.integer("process.max_log_bytes", self.max_log_bytes, minimum=64, maximum=MAX_BYTES)
        _seconds("process.max_wait", self.max_wait)
        check.number("process.stop_grace", self.stop_grace, exclusive=False)
        if self.stop_grace > 60:
            check.fail("process.stop_grace", self.stop_grace, "at most 60 seconds")
