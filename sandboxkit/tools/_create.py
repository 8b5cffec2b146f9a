"""From a session and policies to the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from sandboxkit import _validate as check
from sandboxkit.session import Session

from ._exec import ExecCommand
from ._files import EditFile, ListFiles, ReadFile, SearchFiles, WriteFile
from ._policies import ExecPolicy, ProcessPolicy, ReadFilePolicy, WriteFilePolicy
from ._processes import (
    ListPorts,
    ListProcesses,
    Owned,
    ReadProcessLogs,
    StartProcess,
    StopProcess,
    WaitForPort,
    WriteProcessInput,
)
from ._tool import Approve, Tool, ToolDefinition, Tools

__all__ = ["DEFAULT", "NAMES", "create_sandbox_tools"]

P = TypeVar("P")


@attrs.frozen
class _Parts:
    """What the tools of one call are made of."""

    session: Session
    run: ExecPolicy
    read: ReadFilePolicy
    write: WriteFilePolicy
    owned: Owned


_MAKERS: Final[Mapping[str, Callable[[_Parts], ToolDefinition]]] = {
    ExecCommand.name: lambda of: ExecCommand(of.session, of.run),
    ReadFile.name: lambda of: ReadFile(of.session, of.read),
    WriteFile.name: lambda of: WriteFile(of.session, of.write),
    EditFile.name: lambda of: EditFile(of.session, of.read, of.write),
    ListFiles.name: lambda of: ListFiles(of.session, of.read),
    SearchFiles.name: lambda of: SearchFiles(of.session, of.read),
    StartProcess.name: lambda of: StartProcess(of.session, of.run, of.owned),
    ListProcesses.name: lambda of: ListProcesses(of.owned),
    ReadProcessLogs.name: lambda of: ReadProcessLogs(of.owned),
    WriteProcessInput.name: lambda of: WriteProcessInput(of.owned),
    StopProcess.name: lambda of: StopProcess(of.owned),
    ListPorts.name: lambda of: ListPorts(of.session),
    WaitForPort.name: lambda of: WaitForPort(of.session, of.owned),
}
NAMES: Final = tuple(_MAKERS)
DEFAULT: Final = (ExecCommand.name, ReadFile.name, WriteFile.name, ListFiles.name)


def create_sandbox_tools(
    session: Session,
    include: Sequence[str] = DEFAULT,
    *,
    exec: ExecPolicy | None = None,  # noqa: A002 - the tool's own name
    read_file: ReadFilePolicy | None = None,
    write_file: WriteFilePolicy | None = None,
    process: ProcessPolicy | None = None,
    approve: Approve | None = None,
) -> Tools:
    """What a model may do in a session: the tools named in `include`, in that order, each within its policy.

    - `include`: of `exec_command`, `read_file`, `write_file`, `edit_file`, `list_files`, `search_files`,
      `start_process`, `list_processes`, `read_process_logs`, `write_process_input`, `stop_process`, `list_ports`,
      `wait_for_port`.
    - `approve`: is asked before anything happens, with the tool's name and its checked arguments (without those that
      were left out). True lets it go on, False and `Deny(reason)` are told to the model, and a mapping takes the place
      of the arguments; it is checked as they were, and policies hold for it. Anything else is a TypeError.

    The session stays the caller's: a tool never ends it. Raises ConfigError for a bad argument and without jsonschema
    (`pip install 'sandboxkit[tools]'`).
    """
    if not isinstance(session, Session):
        check.fail("session", session, "a Session")
    names = _checked(include)
    if approve is not None and not callable(approve):
        check.fail("approve", approve, "a function that takes the tool's name and its arguments, or None")
    parts = _Parts(
        session,
        _policy("exec", exec, ExecPolicy),
        _policy("read_file", read_file, ReadFilePolicy),
        _policy("write_file", write_file, WriteFilePolicy),
        Owned(session, _policy("process", process, ProcessPolicy)),
    )
    return Tools([Tool(_MAKERS[name](parts), approve) for name in names])


def _checked(include: Sequence[str]) -> tuple[str, ...]:
    if isinstance(include, (str, bytes)) or not isinstance(include, Sequence) or not include:
        check.fail("include", include, "a list of names of tools, such as ['exec_command', 'read_file']")
    for index, name in enumerate(include):
        if name not in NAMES:
            check.fail(f"include[{index}]", name, ", ".join(NAMES))
        if name in include[:index]:
            check.fail(f"include[{index}]", name, "each tool once")
    return tuple(include)


def _policy(field: str, value: P | None, kind: type[P]) -> P:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        check.fail(field, value, f"an instance of {kind.__name__}, or None")
    return value
