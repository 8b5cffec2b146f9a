"""What a command gives back: its result, and the events of a stream."""

from __future__ import annotations

import html
import shlex
from typing import Literal

import attrs

from .errors import CommandFailedError

__all__ = ["Event", "ExecResult", "ExitEvent", "Program", "StderrEvent", "StdoutEvent"]


@attrs.frozen(kw_only=True)
class ExecResult:
    """How a command ended and what it wrote. Times are seconds, sizes bytes.

    `exit_code` is None when sandboxkit ended the command (`timed_out` or `aborted`); it is 128 + n for a command killed
    by signal n, whose name is in `signal`, 127 for one that was not found and 126 for one that can't be executed.
    `stdout_bytes` and `stderr_bytes` are what was kept: all of it, or head, a marker line and tail when `*_truncated`;
    `*_total_bytes` counts all that was written. `background_pids` are processes (at most 64) that the command left
    running, as numbered inside the sandbox. `cpu_seconds` and `max_rss_bytes` are of the command and the children it
    waited for.
    """

    command: str
    args: tuple[str, ...] = ()
    stdout_bytes: bytes = attrs.field(default=b"", repr=False)
    stderr_bytes: bytes = attrs.field(default=b"", repr=False)
    exit_code: int | None
    signal: str | None = None
    duration: float
    timed_out: bool = False
    aborted: bool = False
    oom_killed: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    background_pids: tuple[int, ...] = ()

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8; undecodable bytes become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as UTF-8; undecodable bytes become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0

    def check(self) -> ExecResult:
        """The result itself when `ok`, else CommandFailedError with the end of stderr in its message."""
        if self.ok:
            return self
        line = shlex.join((self.command, *self.args))
        shown = line if len(line) <= 200 else line[:197] + "..."
        tail = self.stderr[-2000:].strip()
        raise CommandFailedError(
            f"{shown} {self.outcome}" + (f": {tail}" if tail else ""),
            details={
                "exit_code": self.exit_code,
                "signal": self.signal,
                "timed_out": self.timed_out,
                "aborted": self.aborted,
                "oom_killed": self.oom_killed,
            },
        )

    @property
    def outcome(self) -> str:
        """A phrase for people: `exited with 3`, `timed out after 1.0 s`, ..."""
        if self.timed_out:
            return f"timed out after {self.duration:.1f} s"
        if self.aborted:
            return f"was aborted after {self.duration:.1f} s"
        if self.oom_killed:
            return "was killed because the sandbox ran out of memory"
        if self.signal is not None:
            return f"was killed by {self.signal}"
        return f"exited with {self.exit_code}"

    def _repr_html_(self) -> str:
        line = html.escape(shlex.join((self.command, *self.args)))
        colour = "green" if self.ok else "crimson"
        outcome = f'<span style="color:{colour}">{html.escape(self.outcome)}</span>'
        parts = [f"<div><code>{line}</code> {outcome} in {self.duration:.3f} s</div>"]
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            if text:
                shown = text if len(text) <= 20_000 else text[:10_000] + "\n...\n" + text[-10_000:]
                parts.append(f"<div><small>{name}</small><pre>{html.escape(shown)}</pre></div>")
        return "".join(parts)


@attrs.frozen
class _OutputEvent:
    data: bytes

    @property
    def text(self) -> str:
        """The data as UTF-8. Characters are never split between events; undecodable bytes become U+FFFD."""
        return self.data.decode("utf-8", "replace")


@attrs.frozen
class StdoutEvent(_OutputEvent):
    """Bytes the command wrote to its standard output."""

    type: Literal["stdout"] = attrs.field(default="stdout", init=False)


@attrs.frozen
class StderrEvent(_OutputEvent):
    """Bytes the command wrote to its standard error."""

    type: Literal["stderr"] = attrs.field(default="stderr", init=False)


@attrs.frozen
class ExitEvent:
    """The last event: the result that `exec` would have returned."""

    result: ExecResult
    type: Literal["exit"] = attrs.field(default="exit", init=False)


Event = StdoutEvent | StderrEvent | ExitEvent


@attrs.frozen(kw_only=True)
class Program:
    """Where a command's program is in the sandbox.

    `path` is what is executed, absolute or relative to the working folder, never a bare name; `real_path` is absolute
    and without links. Two with the same `device` and `inode` are one file. `in_workspace`: the real path is.
    """

    path: str
    real_path: str
    device: int
    inode: int
    in_workspace: bool
