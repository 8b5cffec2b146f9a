"""The tools for background processes and ports."""

from __future__ import annotations

import threading
from typing import Any

from sandboxkit.abort import Abort
from sandboxkit.errors import PolicyError, ProcessError
from sandboxkit.processes import ManagedProcess
from sandboxkit.session import Session

from . import _schema as schema
from ._arguments import ArgumentsError
from ._exec import ARGS, COMMAND, CWD, ENV, passed_command, seconds_within
from ._policies import ExecPolicy, ProcessPolicy
from ._result import ToolResult, clean, line, success

__all__ = [
    "ListPorts",
    "ListProcesses",
    "Owned",
    "ReadProcessLogs",
    "StartProcess",
    "StopProcess",
    "WaitForPort",
    "WriteProcessInput",
]

PROCESS_ID = schema.string("As start_process and list_processes give it, such as 'p1'.")
_MAX_ENTRIES = 200
_WRITE_SECONDS = 10.0  # for a process that does not read


class Owned:
    """The processes that one collection of tools may see. `starting` is held from the count to the start."""

    def __init__(self, session: Session, policy: ProcessPolicy) -> None:
        self._session, self.policy = session, policy
        self._ids: set[str] = set()
        self.starting = threading.Lock()

    def add(self, process: ManagedProcess) -> None:
        self._ids.add(process.id)

    def list(self) -> list[ManagedProcess]:
        """Oldest first."""
        return [process for process in self._session.processes.list() if self._sees(process.id)]

    def get(self, id: str) -> ManagedProcess:
        """ProcessError for one that is none, or not theirs: the two look alike."""
        if not self._sees(id):
            known = ", ".join(process.id for process in self.list()) or "none"
            raise ProcessError(f"There is no process {clean(id, 64)!r}; there are: {known}.")
        return self._session.processes.get(id)

    def check_room(self) -> None:
        """PolicyError when as many run as may."""
        running = [p.id for p in self.list() if p.id in self._ids and p.status == "running"]
        if len(running) >= self.policy.max_processes:
            raise PolicyError(f"{len(running)} processes run already ({', '.join(running)}). Stop one of them first.")

    def _sees(self, id: str) -> bool:
        return self.policy.all_processes or id in self._ids


def _facts(process: ManagedProcess) -> dict[str, Any]:
    words = " ".join((process.command, *process.args))
    return {
        "process_id": process.id,
        "pid": process.pid,
        "command": clean(words, 500),
        "name": None if process.name is None else clean(process.name, 200),
        "status": process.status,
        "exit_code": process.exit_code,
        "signal": process.signal,
    }


def _state(facts: dict[str, Any]) -> str:
    if facts["status"] == "running":
        return "running"
    return f"ended by {facts['signal']}" if facts["signal"] else f"exited with {facts['exit_code']}"


class StartProcess:
    """A program in the background."""

    name = "start_process"
    description = (
        "Start a program in the sandbox that goes on in the background, such as a server or a watcher, and return at "
        "once with its process_id. Read what it writes with read_process_logs. A server must listen on 0.0.0.0, not "
        "on 127.0.0.1, to be reached through a published port; then use wait_for_port before the first request."
    )

    def __init__(self, session: Session, policy: ExecPolicy, owned: Owned) -> None:
        self._session, self._policy, self._owned = session, policy, owned
        self.schema = schema.record(
            command=COMMAND,
            args=ARGS,
            cwd=CWD,
            env=ENV,
            stdin=schema.optional(schema.boolean("Keep its input open for write_process_input; null: false.")),
            name=schema.optional(schema.string("What it is for, to tell it from others.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        command = passed_command(self._session, self._policy, self.name, arguments, abort)
        with self._owned.starting:
            self._owned.check_room()
            process = self._session.processes.start(
                command.command,
                command.args,
                cwd=command.cwd,
                env=command.env,
                stdin=bool(arguments["stdin"]),
                name=arguments["name"],
            )
            self._owned.add(process)
        facts = _facts(process)
        return success(f"Process {process.id} was started, with pid {process.pid}; it is {_state(facts)}.", facts)


class ListProcesses:
    """What was started."""

    name = "list_processes"
    description = "List the background processes that were started, those that have ended too, oldest first."
    schema = schema.record()

    def __init__(self, owned: Owned) -> None:
        self._owned = owned

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        all_facts = [_facts(process) for process in self._owned.list()[-_MAX_ENTRIES:]]
        lines = [f"{one['process_id']}: {_state(one)}, pid {one['pid']}: {line(one['command'])}" for one in all_facts]
        return success("\n".join(lines or ["[No process was started.]"]), {"processes": all_facts})


class ReadProcessLogs:
    """What one has written."""

    name = "read_process_logs"
    description = (
        "Read what a background process has written, both streams together as they came. Without `cursor` its latest "
        "output; with the cursor that the result before gave, what is new since then. It does not wait."
    )

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self.schema = schema.record(
            process_id=PROCESS_ID, cursor=schema.optional(schema.integer("As the result before gave it."))
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        most = self._owned.policy.max_log_bytes
        process, cursor = self._owned.get(arguments["process_id"]), arguments["cursor"]
        logs = process.logs(cursor, tail_bytes=most if cursor is None else None, max_bytes=most)
        text, facts = clean(logs.text), _facts(process)
        notes = [f"[{logs.lost_bytes} bytes before this are lost.]"] if logs.lost_bytes else []
        state = f"[The process is {_state(facts)}. For what comes next pass cursor={logs.next_cursor}.]"
        if logs.ended and facts["status"] != "running":
            state = f"[The process is over: it {_state(facts)}. This is the end of its output.]"
        return success(
            "\n".join([*notes, *([text.rstrip("\n")] if text else []), state]),
            {**facts, "text": text, "next_cursor": logs.next_cursor, "lost_bytes": logs.lost_bytes},
        )


class WriteProcessInput:
    """Text for its standard input."""

    name = "write_process_input"
    description = (
        "Write text to the standard input of a background process that was started with stdin true. Most programs "
        "want a line end at the end. `close` ends its input afterwards."
    )

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self.schema = schema.record(
            process_id=PROCESS_ID,
            text=schema.string("What to write, as it is; may be empty."),
            close=schema.optional(schema.boolean("End of file after it; null: false.")),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        process = self._owned.get(arguments["process_id"])
        data = arguments["text"].encode("utf-8", "replace")
        if data:
            process.write(data, timeout=_WRITE_SECONDS, abort=abort)
        if arguments["close"]:
            process.close_stdin()
        closed = " and its input was closed" if arguments["close"] else ""
        return success(
            f"{len(data)} bytes were written to process {process.id}{closed}.",
            {"process_id": process.id, "bytes": len(data)},
        )


class StopProcess:
    """Its end."""

    name = "stop_process"
    description = "End a background process and all it has started: it is asked first and killed if it does not go."

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self.schema = schema.record(process_id=PROCESS_ID)

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        process = self._owned.get(arguments["process_id"])
        process.stop(self._owned.policy.stop_grace)
        facts = _facts(process)
        return success(f"Process {process.id} is {_state(facts)}.", facts)


class ListPorts:
    """Who listens."""

    name = "list_ports"
    description = (
        "List the TCP ports that programs in the sandbox listen on, with the address and, if it is known, the pid. An "
        "address of 127.0.0.1 is not reached through a published port: let the server listen on 0.0.0.0."
    )
    schema = schema.record()

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        found = self._session.ports.listening()[:_MAX_ENTRIES]
        lines = [f"{line(one.address)} port {one.port}" + (f", pid {one.pid}" if one.pid else "") for one in found]
        ports = [{"port": one.port, "address": clean(one.address, 100), "pid": one.pid} for one in found]
        return success("\n".join(lines or ["[Nothing listens.]"]), {"ports": ports})


class WaitForPort:
    """Until one listens."""

    name = "wait_for_port"
    description = (
        "Wait until a program in the sandbox listens on a TCP port. With `process_id` it gives up as soon as that "
        "process has ended. It gives up at the timeout, too, and says what listens instead."
    )

    def __init__(self, session: Session, owned: Owned) -> None:
        self._session, self._owned = session, owned
        self.schema = schema.record(
            port=schema.integer("From 1 to 65535."),
            timeout_seconds=schema.optional(schema.number(f"Null: 30. At most {owned.policy.max_wait:g}.")),
            process_id=schema.optional(PROCESS_ID),
        )

    def run(self, arguments: dict[str, Any], abort: Abort | None) -> ToolResult:
        port, id = arguments["port"], arguments["process_id"]
        if not 1 <= port <= 65535:
            raise ArgumentsError(f"port: {port} is not from 1 to 65535")
        timeout, lowered = seconds_within(arguments["timeout_seconds"], 30.0, self._owned.policy.max_wait, None)
        process = None if id is None else self._owned.get(id)
        self._session.ports.wait(port, timeout, abort=abort, process=process)
        return success(f"A program listens on port {port}." + (f" {lowered}" if lowered else ""), {"port": port})
