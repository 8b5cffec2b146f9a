"""What managed processes give back: pieces of their logs, and how they ended."""

from __future__ import annotations

import attrs

from ._process_frames import ProcessRecord
from ._run import signal_name

__all__ = ["ProcessExit", "ProcessLogs"]


@attrs.frozen(kw_only=True)
class ProcessExit:
    """How a managed process ended. Times are seconds, sizes bytes.

    `exit_code` is 128 + n for one killed by signal n, whose name is in `signal`. `stopped`: `stop` ended it, or was at
    it; a server that ends by itself on SIGTERM says its own exit code then.
    """

    exit_code: int
    signal: str | None = None
    stopped: bool = False
    oom_killed: bool = False
    duration: float = 0.0
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0


@attrs.frozen(kw_only=True)
class ProcessLogs:
    """A piece of a process's log: standard output and error in the order of their arrival.

    `start` and `next_cursor` count the bytes of both since the process began; `logs(since=next_cursor)` reads on.
    `lost_bytes` of what was asked for had been forgotten. `ended`: nothing more will come.
    """

    data: bytes = attrs.field(repr=False)
    start: int
    next_cursor: int
    lost_bytes: int
    ended: bool

    @property
    def text(self) -> str:
        """The data as UTF-8; undecodable bytes become U+FFFD."""
        return self.data.decode("utf-8", "replace")


def exit_of(record: ProcessRecord) -> ProcessExit | None:
    """None while it runs."""
    ended = record.exit
    if ended is None:
        return None
    code = ended.exit_code if ended.signal is None else 128 + ended.signal
    assert code is not None
    return ProcessExit(
        exit_code=code,
        signal=None if ended.signal is None else signal_name(ended.signal),
        stopped=ended.reason == ended.KILLED,
        oom_killed=ended.oom_killed,
        duration=record.duration,
        cpu_seconds=ended.cpu_seconds,
        max_rss_bytes=ended.max_rss_bytes,
    )
