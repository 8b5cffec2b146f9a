"""Processes that outlive the tool which started them, and the record that lets a later run end those and no others.

A pid alone names nothing: the kernel hands it out again. A process here is a pid with its start time (in clock ticks
since boot) and the boot it belongs to, and it is signalled through a pidfd that was opened before the start time was
compared, so that the pid can't change hands between the check and the signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from _system import replace_file


@dataclass(frozen=True)
class Process:
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The living process with that pid; a zombie is dead."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    def is_alive(self) -> bool:
        return Process.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended."""
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                if self.is_alive():
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state on. The name before it may hold spaces and brackets, so split after the last."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def name_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_pid(path: Path, name: str) -> Process | None:
    """The process that a daemon's own pid file names; None when it is dead or its pid is another program's by now."""
    try:
        pid = int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return Process.of(pid) if name_of(pid) == name else None


def descendants(root: Process) -> list[Process]:
    """Its living children and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[Process] = []
    pending = [root.pid]
    while pending:
        for pid in children.get(pending.pop(0), []):
            pending.append(pid)
            if (process := Process.of(pid)) is not None:
                found.append(process)
    return found


def with_arguments(arguments: Sequence[str], uid: int) -> list[Process]:
    """A user's living processes with exactly that command line."""
    wanted = b"".join(argument.encode() + b"\0" for argument in arguments)
    found = []
    for entry in Path("/proc").iterdir():
        # Any process may end between two of these looks.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if entry.name.isdigit() and entry.stat().st_uid == uid and (entry / "cmdline").read_bytes() == wanted:
                found.append(Process.of(int(entry.name)))
    return [process for process in found if process is not None]


def spawn(command: Sequence[str], log: Path, *, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a process that nothing ties to this one: a session of its own, no input, its output in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n".encode())
        output.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )


def write_record(path: Path, processes: Iterable[Process]) -> None:
    record = {"boot": _boot(), "processes": [[process.pid, process.started] for process in processes]}
    replace_file(path, (json.dumps(record) + "\n").encode())


def read_record(path: Path) -> list[Process]:
    """The recorded processes that still live, the service itself first if it does."""
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    if record["boot"] != _boot():
        return []
    processes = [Process(pid, started) for pid, started in record["processes"]]
    return [process for process in processes if process.is_alive()]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def end(processes: Sequence[Process], *, grace: float) -> None:
    """End the first one, then what it leaves behind: asked at first, then killed.

    The first goes alone, since a daemon ends its own helpers in its own order and needs them for it. What descends
    from it is noted before, because an orphan no longer says whose child it was.
    """
    if not processes:
        return
    family = list(dict.fromkeys([*processes, *(child for process in processes for child in descendants(process))]))
    for group, patience in ((family[:1], grace), (family[1:], 5.0)):
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
            for process in group:
                process.send(number)
            deadline = time.monotonic() + seconds
            while any(process.is_alive() for process in group) and time.monotonic() < deadline:
                time.sleep(0.05)
