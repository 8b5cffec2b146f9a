"""`session.processes`: commands that run beside the caller, with logs that wait until somebody reads them."""

from __future__ import annotations

import builtins
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Literal, NoReturn

from . import _validate as check
from ._frames import MAX_PAYLOAD, FrameType, milliseconds, printable
from ._output import continuation_head, incomplete_tail
from ._process_calls import Call, Calls, KnownLaunch, ProcessHost, shown_id
from ._process_frames import (
    MAX_LOG,
    MAX_NAME,
    MAX_PROCESSES,
    MAX_REQUEST,
    MIN_LOG,
    Launch,
    ProcessRecord,
    ViewFlag,
    encode_input,
    encode_stop,
    encode_view,
)
from .abort import Abort, checked_abort
from .errors import ProcessError, ProcessTimeoutError
from .process_results import ProcessExit, ProcessLogs, exit_of
from .process_stream import ProcessStream

__all__ = ["ManagedProcess", "SessionProcesses"]

_ID = re.compile(r"p([1-9][0-9]{0,9})")
_MARGIN = 10.0  # seconds beyond the grace for the kernel to end a tree
_MAX_CURSOR = 2**63 - 1


class SessionProcesses:
    """The managed processes of one session. Every method may be called from any thread.

    They live in the sandbox: until they end, are stopped, or the session ends; in a detached session also when no host
    is there. One that has ended is remembered with its log, the last hundred or so of them.
    """

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self._calls = Calls(host)

    def start(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        name: str | None = None,
        log_bytes: int = 1_048_576,
    ) -> ManagedProcess:
        """Start a program; it runs when this returns. `command`, `args`, `cwd` and `env` are as in `Session.exec`.

        - `stdin`: keep its input open for `ManagedProcess.write`; else it reads end of file.
        - `name`: for people; need not be unique.
        - `log_bytes`: how much of its output is kept, the newest; 4 KiB to 16 MiB, of the sandbox's memory.

        ProcessError at once for a program that is not found or can't be executed, and when `limits.max_processes` run.
        PathError for a bad `cwd`, ConfigError for a bad argument. After an exception it does not run.
        """
        check.boolean("stdin", stdin)
        request = self._host.process_request(command, args, cwd, env, stdin)
        if name is not None:
            check.text("name", name, accepted="a non-empty string without NUL, or None")
            if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME:
                check.fail("name", name, f"a name of at most {MAX_NAME} bytes")
        check.integer("log_bytes", log_bytes, minimum=MIN_LOG, maximum=MAX_LOG)
        if len(request) > MAX_REQUEST:
            check.fail("args", f"{len(request)} bytes with env", f"at most {MAX_REQUEST} for a managed process")
        launch = Launch(
            command=command,
            args=tuple(args),
            cwd=cwd,
            name=name,
            stdin=stdin,
            log_bytes=log_bytes,
            request=request,
        )
        return self._start(launch)

    def list(self) -> builtins.list[ManagedProcess]:
        """All of them, oldest first: those that run, and the ended ones that are remembered."""
        found = []
        for record in self._records():
            try:
                found.append(self._process(record))
            except ProcessError as error:
                if error.details.get("reason") != "unknown":  # forgotten between the two questions
                    raise
        return found

    def get(self, id: str) -> ManagedProcess:
        """The one of that id. ProcessError when there is none."""
        match = _ID.fullmatch(id) if isinstance(id, str) else None
        if match is None or int(match[1]) > 0xFFFF_FFFF:
            check.fail("id", id, "the id of a process, such as 'p1'")
        return self._process(self._calls.record(int(match[1])))

    def _records(self) -> Sequence[ProcessRecord]:
        before = {*self._host.launches}  # what others start meanwhile is not in the answer
        records = self._calls.records()
        for forgotten in before - {record.id for record in records}:
            self._host.launches.pop(forgotten, None)
        return records

    def _start(self, launch: Launch) -> ManagedProcess:
        if len(self._host.launches) >= 2 * MAX_PROCESSES:
            self._records()
        with self._calls.started(launch) as record:
            known = self._host.launches.setdefault(record.id, KnownLaunch(launch))
            return ManagedProcess(self._host, known, record)

    def _process(self, record: ProcessRecord) -> ManagedProcess:
        return ManagedProcess(self._host, self._calls.launch(record.id), record)


class ManagedProcess:
    """One managed process; made by `session.processes`. What tells of its state asks the sandbox, each time anew.

    Equal to another object that stands for the same process.
    """

    def __init__(self, host: ProcessHost, known: KnownLaunch, record: ProcessRecord) -> None:
        self._host = host
        self._calls = Calls(host)
        self._known = known
        self._number = record.id
        self._record = record

    @property
    def id(self) -> str:
        """Unique in its session: p1, p2, ..."""
        return shown_id(self._number)

    @property
    def pid(self) -> int:
        """Its number inside the sandbox."""
        return self._record.pid

    @property
    def command(self) -> str:
        """As it was started."""
        return self._known.launch.command

    @property
    def args(self) -> tuple[str, ...]:
        """As it was started."""
        return self._known.launch.args

    @property
    def name(self) -> str | None:
        """As it was started."""
        return self._known.launch.name

    @property
    def log_bytes(self) -> int:
        """How much of its output is kept."""
        return self._record.log_bytes

    @property
    def started_at(self) -> float:
        """When, by the sandbox's clock: seconds since 1970."""
        return self._record.started_at

    @property
    def status(self) -> Literal["running", "exited"]:
        """Whether its command runs."""
        return "running" if self.exit is None else "exited"

    @property
    def exit(self) -> ProcessExit | None:
        """How it ended; None while it runs."""
        if self._record.exit is None:
            self._record = self._calls.record(self._number)
        return exit_of(self._record)

    @property
    def exit_code(self) -> int | None:
        """See ProcessExit; None while it runs."""
        found = self.exit
        return None if found is None else found.exit_code

    @property
    def signal(self) -> str | None:
        """What killed it, such as "SIGKILL"."""
        found = self.exit
        return None if found is None else found.signal

    def logs(
        self, since: int | None = None, *, tail_bytes: int | None = None, max_bytes: int = 1_048_576
    ) -> ProcessLogs:
        """What it wrote, from the cursor `since` on (None: the oldest that is kept), or the last `tail_bytes`.

        At most `max_bytes`. A UTF-8 character is not cut at either end: one that is not whole yet comes with the next
        piece. A `since` from the future counts as the end.
        """
        check.integer("since", since, minimum=0, maximum=_MAX_CURSOR, optional=True)
        check.integer("tail_bytes", tail_bytes, minimum=0, maximum=MAX_LOG, optional=True)
        check.integer("max_bytes", max_bytes, minimum=4, maximum=MAX_LOG)
        if since is not None and tail_bytes is not None:
            check.fail("tail_bytes", tail_bytes, "None with since=")
        flags = ViewFlag.NONE if tail_bytes is None else ViewFlag.TAIL
        cursor = (since or 0) if tail_bytes is None else min(tail_bytes, max_bytes)
        data, sink, record = self._calls.read(self._number, flags, cursor=cursor, length=max_bytes)
        start = sink.start
        end = start + len(data)
        if tail_bytes is not None or start > cursor:
            cut = continuation_head(bytes(data[:3]))
            start += cut
            del data[:cut]
        ended = record.exit is not None and end >= record.last
        held = 0 if ended else incomplete_tail(data)
        if 0 < held < len(data) or (held and not ended):
            end -= held
            del data[len(data) - held :]
        lost = 0 if tail_bytes is not None else max(start - cursor, 0)
        return ProcessLogs(data=bytes(data), start=start, next_cursor=end, lost_bytes=lost, ended=ended)

    def follow(self, since: int = 0, *, abort: Abort | None = None) -> ProcessStream:
        """Its output from the cursor `since` on, as it comes; the iteration ends with the process, or with `abort`.

        The process never waits for whoever follows it: one that falls behind by more than the log holds loses the
        oldest, which `ProcessStream.lost_bytes` counts. Leaving the loop leaves the process alone.
        """
        check.integer("since", since, minimum=0, maximum=_MAX_CURSOR)
        checked_abort("abort", abort)
        return ProcessStream(self._calls, self._host, self._number, since, abort)

    def write(
        self, data: bytes | bytearray | memoryview, *, timeout: float | None = None, abort: Abort | None = None
    ) -> None:
        """Write all of `data` to its input; returns when the pipe has taken it.

        ProcessError when it was started without `stdin=True`, has ended, or has closed its input; ProcessTimeoutError
        when it has not read enough within `timeout` seconds (None: wait as long as it runs). How much was written
        then is unknown.
        """
        view = check.octets("data", data, "bytes; encode text first")
        check.number("timeout", timeout, optional=True)
        checked_abort("abort", abort)
        self._input(view, False, timeout, abort)

    def close_stdin(self) -> None:
        """It reads end of file. Idempotent; no error when it has ended."""
        try:
            self._input(memoryview(b""), True, None, None)
        except ProcessError as error:
            if error.details.get("reason") != "closed":
                raise

    def wait(self, timeout: float | None = None, *, abort: Abort | None = None) -> ProcessExit:
        """Wait for its end. ProcessTimeoutError, which is a TimeoutError, after `timeout` seconds: it runs on.

        ProcessError when `abort` is set; then, too, it runs on.
        """
        check.number("timeout", timeout, minimum=0, exclusive=False, optional=True)
        checked_abort("abort", abort)
        begun = time.monotonic()
        if (ended := self.exit) is not None:
            return ended
        left = None if timeout is None else max(timeout - (time.monotonic() - begun), 0.0)
        call = Call(self._host.connection, process=self._number)
        payload = encode_view(self._number, ViewFlag.END)
        what = f"Process {self.id} did not end"
        try:
            return self._final(call, FrameType.VIEW, payload, what=what, timeout=left, abort=abort)
        except ProcessTimeoutError as error:
            error.args = (f"{what} within {timeout:g} s. It runs on: wait longer, or stop it.",)
            raise

    def stop(self, grace: float = 5.0) -> ProcessExit:
        """End it with every process below it: SIGTERM to all, and SIGKILL to what is left after `grace` seconds.

        Returns when none is left. For one that has ended: what it left in the background dies, and the result is how it
        ended. Idempotent.
        """
        check.number("grace", grace, minimum=0, exclusive=False)
        call = Call(self._host.connection, process=self._number)
        payload = encode_stop(self._number, milliseconds(grace))
        what = f"Process {self.id} could not be ended"
        return self._final(call, FrameType.STOP, payload, what=what, timeout=grace + _MARGIN, abort=None)

    def restart(self, grace: float = 5.0) -> ManagedProcess:
        """Stop it, if it runs, and start the same command anew: the new process, with a new id and an empty log."""
        self.stop(grace)
        return SessionProcesses(self._host)._start(self._known.launch)

    def _final(
        self, call: Call, kind: FrameType, payload: bytes, *, what: str, timeout: float | None, abort: Abort | None
    ) -> ProcessExit:
        (self._record,) = self._calls.ask(call, kind, payload, what=what, timeout=timeout, abort=abort)
        ended = exit_of(self._record)
        if ended is None:
            raise ProcessError(f"{what}: the sandbox gave up.", details={"reason": "malformed", "process": self.id})
        return ended

    def _input(self, data: memoryview, end: bool, timeout: float | None, abort: Abort | None) -> None:
        if not self._known.launch.stdin:
            details = {"reason": "closed", "process": self.id}
            raise ProcessError(f"Process {self.id} has no input: start it with stdin=True.", details=details)
        due = None if timeout is None else time.monotonic() + timeout
        # Ctrl-C may come between any two bytecodes, and at the jump of a loop CPython 3.12 is outside of the `try`: so
        # the lock is taken as a frame is sent (see Connection), and the loops are in functions of their own.
        held: list[bool] = []
        try:
            self._take_turn(held, due, abort)
            self._send_all(data, end, due, abort)
        finally:
            if True in held:
                self._known.writing.release()

    def _send_all(self, data: memoryview, end: bool, due: float | None, abort: Abort | None) -> None:
        last = False
        while len(data) or (end and not last):
            piece, data = data[:MAX_PAYLOAD], data[MAX_PAYLOAD:]
            last = end and not len(data)
            self._calls.ask(
                Call(self._host.connection, process=self._number),
                FrameType.INPUT,
                encode_input(self._number, piece, end=last),
                what=f"Process {self.id} did not read what was written",
                timeout=None if due is None else max(due - time.monotonic(), 0.0),
                abort=abort,
            )

    def _take_turn(self, held: builtins.list[bool], due: float | None, abort: Abort | None) -> None:
        # The bytes of two writers don't mix.
        while True:
            held.extend(map(self._known.writing.acquire, (True,), (0.05,)))
            if True in held:
                return
            self._host.connection.raise_if_unusable()
            if abort is not None and abort.is_set():
                self._gave_up("aborted")
            if due is not None and time.monotonic() >= due:
                self._gave_up("timeout")

    def _gave_up(self, reason: str) -> NoReturn:
        kind = ProcessTimeoutError if reason == "timeout" else ProcessError
        raise kind(
            f"Nothing was written to process {self.id}: another write to it was not done ({reason}).",
            retryable=True,
            details={"reason": reason, "process": self.id},
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ManagedProcess):
            return NotImplemented
        return (self._host.id, self._number) == (other._host.id, other._number)

    def __hash__(self) -> int:
        return hash((self._host.id, self._number))

    def __repr__(self) -> str:
        line = printable(shlex.join((self.command, *self.args)))  # another host may have started it
        return f"<ManagedProcess {self.id} {line if len(line) <= 80 else line[:77] + '...'}>"
