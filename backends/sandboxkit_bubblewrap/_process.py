"""The processes of one sandbox on the host: keeper, bubblewrap's monitor, and the agent, which is PID 1 inside.

The keeper is a shell that waits for the sandbox and then removes its cgroup, whoever else has died. It is also the
parent that `--die-with-parent` means: the signal of that is bound to the thread which started the process
(PR_SET_PDEATHSIG in prctl(2)), and a thread of the host may end long before its session does. When the host itself
dies, the agent sees the end of its stream and exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from sandboxkit.errors import EngineError

__all__ = ["MARK", "Limit", "Process", "Record", "Start", "end_other", "record_of", "records"]

MARK = "SANDBOXKIT_BUBBLEWRAP"
"""The variable in the keeper's environment that holds the Record: other processes find a sandbox without any file."""

# $1 has the files of cgroups that take a process, one a line. "0" is the process that writes it.
_KEEPER = """
IFS='
'
groups=$1
shift
(
    for group in $groups; do
        echo 0 >"$group" || exit 125
    done
    exec "$@"
)
status=$?
for group in $groups; do
    rmdir "${group%/*}" || { sleep 0.05; rmdir "${group%/*}"; }
done 2>/dev/null
exit $status
"""

Limit = tuple[int, int, int]
"""One of the `resource.RLIMIT_` numbers, then its soft and its hard value."""


@attrs.frozen
class Record:
    """What another process can know of a sandbox."""

    name: str
    labels: Mapping[str, str]

    def dump(self) -> str:
        """As `load` reads it."""
        return json.dumps({"name": self.name, "labels": dict(self.labels)})

    @classmethod
    def load(cls, text: str) -> Record | None:
        """None for what is none."""
        try:
            found = json.loads(text)
            return cls(str(found["name"]), {str(name): str(value) for name, value in found["labels"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@attrs.frozen(kw_only=True)
class Start:
    """All that a start needs.

    `groups`: files of cgroups that take a process. `maps`: uid_map and gid_map of user_namespaces(7), if root makes it.
    """

    bubblewrap: Sequence[str]
    command: Sequence[str]
    descriptors: Sequence[int]
    groups: Sequence[Path]
    limits: Sequence[Limit]
    maps: tuple[str, str] | None
    record: Record


class Process:
    """A sandbox that runs, or has run. `remove` is for its owner alone."""

    def __init__(self, start: Start, end: int, errors: int, timeout: float) -> None:
        """Start it with `end` as its standard input and output. EngineError, and nothing is left, when it can't be."""
        self._timeout = timeout
        deadline = time.monotonic() + timeout
        facts, facts_end = os.pipe2(os.O_CLOEXEC)
        gate_end, gate = os.pipe2(os.O_CLOEXEC)
        try:
            self._keeper = _spawn(start, end, errors, facts_end, gate_end)
        except BaseException:
            os.close(facts)
            os.close(gate)
            raise
        finally:
            os.close(facts_end)
            os.close(gate_end)
        self._agent: int | None = None
        try:
            self.pid, self.namespaces = _read_facts(facts, deadline)
            # It waits at the gate, so it is this very process.
            self._agent = os.pidfd_open(self.pid)
            for limit in start.limits:
                _limit(self.pid, *limit)
            if start.maps is not None:
                Path(f"/proc/{self.pid}/uid_map").write_text(start.maps[0])
                Path(f"/proc/{self.pid}/gid_map").write_text(start.maps[1])
            os.write(gate, b"1")
        except BaseException as error:
            os.close(gate)
            gate = -1
            self.remove()
            if isinstance(error, (OSError, ValueError)):
                raise EngineError(f"bubblewrap could not make the sandbox: {_tail(errors) or error}") from error
            raise
        finally:
            os.close(facts)
            if gate >= 0:
                os.close(gate)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._keeper.poll() is not None

    def remove(self) -> None:
        """End it at once. Idempotent; EngineError when it is still there at the deadline."""
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._agent, signal.SIGKILL)
        elif self._keeper.poll() is None:
            # Bubblewrap's own death takes its child along, and the keeper's bubblewrap's.
            self._keeper.kill()
        try:
            self._keeper.wait(self._timeout)
        except subprocess.TimeoutExpired:
            raise EngineError(f"The sandbox is still there after {self._timeout:g} s.", retryable=True) from None
        if self._agent is not None:
            os.close(self._agent)
            self._agent = None


def _spawn(start: Start, end: int, errors: int, facts: int, gate: int) -> subprocess.Popen[bytes]:
    # Root writes the maps, and bubblewrap waits for that; else it makes its own, and waits before it becomes the agent.
    block = ["--userns-block-fd" if start.maps is not None else "--block-fd", str(gate)]
    bubblewrap = [*start.bubblewrap, "--info-fd", str(facts), *block, "--", *start.command]
    groups = "\n".join(map(str, start.groups))
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, start.record.name, groups, *bubblewrap],
            stdin=end,
            stdout=end,
            stderr=errors,
            env={"PATH": "/usr/bin:/bin", MARK: start.record.dump()},
            cwd="/",
            pass_fds=[*start.descriptors, facts, gate],
            start_new_session=True,  # out of reach of a terminal's Ctrl-C
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"bubblewrap can't be started: {error}") from error


def _read_facts(facts: int, deadline: float) -> tuple[int, Mapping[str, int]]:
    # Bubblewrap writes a JSON object; the keeper holds the other end too, so there is no end of file to wait for.
    text = b""
    while not text.endswith(b"}\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([facts], [], [], left)[0]:
            raise TimeoutError("it did not come up in time")
        chunk = os.read(facts, 4096)
        if not chunk:
            raise ValueError("it ended at once")
        text += chunk
    found = json.loads(text)
    return int(found.pop("child-pid")), found


def _limit(pid: int, number: int, soft: int, hard: int) -> None:
    # Never above what this process may give: raising a hard limit takes a capability that even root may lack.
    _, most = resource.prlimit(pid, number)
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.prlimit(pid, number, (min(soft, hard), hard))


def _tail(errors: int) -> str:
    return os.pread(errors, 8192, 0).decode("utf-8", "replace").strip()


def records() -> list[tuple[int, Record]]:
    """Every sandbox that this user may see, by its keeper's pid."""
    marked = {pid: record for pid in _all_pids() if (record := record_of(pid)) is not None}
    # Bubblewrap's monitor has the environment too; the keeper is the one whose parent has not.
    return [(pid, record) for pid, record in marked.items() if _parent(pid) not in marked]


def record_of(pid: int) -> Record | None:
    """None when it is no process of a sandbox, or gone, or another user's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(prefix):
            return Record.load(variable[len(prefix) :].decode("utf-8", "replace"))
    return None


def end_other(pid: int, record: Record, timeout: float) -> None:
    """End the sandbox of another process, whose keeper is `pid`. EngineError when it is still there at the deadline."""
    deadline = time.monotonic() + timeout
    with _handle(pid, record) as keeper:
        if keeper is None:
            return
        # Not the keeper, which has something to do still: its child, bubblewrap, which takes the agent along.
        for child in _all_pids():
            if _parent(child) == pid:
                with _handle(child, record) as handle, contextlib.suppress(ProcessLookupError):
                    if handle is not None:
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([keeper], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise EngineError(f"{record.name} is still there after {timeout:g} s.", retryable=True)


@contextlib.contextmanager
def _handle(pid: int, record: Record) -> Iterator[int | None]:
    # A pid may mean another process from one moment to the next; what a handle means is looked at after it was opened.
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if record_of(pid) == record else None
    finally:
        os.close(handle)


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
