"""The processes of one sandbox on the host: keeper, bubblewrap's monitor, and the agent, which is PID 1 inside.

The keeper is a shell that waits for the sandbox and then removes its cgroup, whoever else has died. It is also the
parent that `--die-with-parent` means: the signal of that is bound to the thread which started the process
(PR_SET_PDEATHSIG in prctl(2)), and a thread of the host may end long before its session does. When the host itself
dies, the agent sees the end of its stream and exits.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from sandboxkit.errors import EngineError

__all__ = ["Process", "Record", "Start", "end_all", "records"]

MARK = "SANDBOXKIT_BUBBLEWRAP"
"""The variable in the keeper's environment that holds the Record: other processes find a sandbox without any file."""

# $1 has orders about cgroups, one a line: +FOLDER to make and later to remove, =FILE<tab>VALUE to write,
# ?FILE<tab>VALUE to write where there is such a file, @FILE to enter ("0" is the process that writes it). Made here and
# not by the host: whenever that is killed, somebody is there to remove them.
_KEEPER = """
set -f
cd /
IFS='
'
orders=$1
shift
folders=
for order in $orders; do
    case $order in
        +*) folders="$folders${order#+}$IFS" ;;
    esac
done
remove() {
    [ -z "$folders" ] || rmdir $folders 2>/dev/null || { sleep 0.05; rmdir $folders 2>/dev/null; }
}
fail() {
    remove
    exit 125
}
[ -z "$folders" ] || mkdir $folders || fail
for order in $orders; do
    file=${order#?}
    value=${file#*\t}
    file=${file%%\t*}
    case $order in
        =*) echo "$value" >"$file" || fail ;;
        \\?*) [ ! -e "$file" ] || echo "$value" >"$file" || fail ;;
    esac
done
(
    for order in $orders; do
        case $order in
            @*) echo 0 >"${order#@}" || exit 125 ;;
        esac
    done
    exec "$@"
)
status=$?
remove
exit $status
"""

Limit = tuple[int, int, int]
"""One of the `resource.RLIMIT_` numbers, then its soft and its hard value."""

_KEEPER_GRACE = 2.0


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

    `orders`: about cgroups, see _KEEPER. `maps`: uid_map and gid_map of user_namespaces(7), where root makes it.
    """

    bubblewrap: Sequence[str]
    command: Sequence[str]
    descriptors: Sequence[int]
    orders: Sequence[str]
    limits: Sequence[Limit]
    maps: tuple[str, str] | None
    record: Record


class Process:
    """A sandbox that runs, or has run. Methods may be called from any thread."""

    def __init__(self, start: Start, end: int, errors: int, timeout: float) -> None:
        """Start it with `end` as its standard input and output. EngineError, and nothing is left, when it can't be."""
        self._timeout = timeout
        self._record = start.record
        self._lock = threading.Lock()
        self._keeper = _Child()
        self._agent: int | None = None
        deadline = time.monotonic() + timeout
        with contextlib.ExitStack() as open_files:
            facts, facts_end = _pipe(open_files)
            gate_end, gate = _pipe(open_files)
            try:
                self._keeper.spawn(start, (end, end, errors), (facts, facts_end), gate_end)
                self.pid, self.namespaces = _read_facts(facts, self._keeper, deadline)
                # It waits at the gate, so it is this very process.
                self._agent = os.pidfd_open(self.pid)
                for limit in start.limits:
                    _limit(self.pid, *limit)
                if start.maps is not None:
                    Path(f"/proc/{self.pid}/uid_map").write_text(start.maps[0])
                    Path(f"/proc/{self.pid}/gid_map").write_text(start.maps[1])
                os.write(gate, b"1")
            except BaseException as error:
                open_files.close()
                self.remove()
                if isinstance(error, (OSError, ValueError)):
                    raise EngineError(f"bubblewrap could not make the sandbox: {_tail(errors) or error}") from error
                raise

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        with self._lock:
            return self._keeper.wait(0)

    def remove(self) -> None:
        """End it at once. Idempotent; EngineError when it is still there at the deadline."""
        with self._lock:
            if self._agent is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._agent, signal.SIGKILL)
            else:
                end_all(self._record, self._timeout)
            if not self._keeper.wait(self._timeout):
                raise EngineError(f"The sandbox is still there after {self._timeout:g} s.", retryable=True)
            if self._agent is not None:
                os.close(self._agent)
                self._agent = None


class _Child:
    """The keeper, a child of this process that is waited for by its handle: `subprocess` would look every few ms."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._handles: list[int] = []

    def spawn(self, start: Start, standard: tuple[int, int, int], facts: tuple[int, int], gate: int) -> None:
        # Root writes the maps, and bubblewrap waits for them; else it makes its own, and waits before it becomes the
        # agent.
        block = ["--userns-block-fd" if start.maps is not None else "--block-fd", str(gate)]
        bubblewrap = [*start.bubblewrap, "--info-fd", str(facts[1]), *block, "--", *start.command]
        orders = "\n".join(start.orders)
        # Both ends of the facts: were this process killed now, writing them would fail and bubblewrap end at once,
        # before it has told its child to go on, which then waits for ever.
        kept = [*start.descriptors, *facts, gate]
        if min(*standard, *kept) < len(standard):
            raise EngineError("Standard input, output and error of this process must be open.")
        spawn = functools.partial(
            os.posix_spawn,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(standard)),
                *((os.POSIX_SPAWN_DUP2, each, each) for each in kept),  # so that the execution does not close it
            ],
            setsid=True,  # out of reach of a terminal's Ctrl-C
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
            setsigmask=[],
        )
        arguments = ["/bin/sh", "-c", _KEEPER, start.record.name, orders, *bubblewrap]
        environment = {"PATH": "/usr/bin:/bin", MARK: start.record.dump()}
        # So that Ctrl-C can't come before the pid is known here.
        self._pids.extend(map(spawn, ("/bin/sh",), (arguments,), (environment,)))
        self._handles.extend(map(os.pidfd_open, self._pids))

    def wait(self, seconds: float) -> bool:
        # Whether it has ended.
        if not self._pids:
            return True
        if self._handles and not _readable(self._handles[0], seconds):
            return False
        with contextlib.suppress(ChildProcessError):  # it was waited for already, and Ctrl-C came before it was noted
            os.waitpid(self._pids[0], 0)
        self._pids.clear()
        while self._handles:
            os.close(self._handles.pop())
        return True


def _pipe(owner: contextlib.ExitStack) -> tuple[int, int]:
    # Owned before it is there: Ctrl-C can't come between the two.
    made: list[tuple[int, int]] = []
    owner.callback(_close_pipes, made)
    made.extend(map(os.pipe2, (os.O_CLOEXEC,)))
    return made[0]


def _close_pipes(made: list[tuple[int, int]]) -> None:
    for ends in made:
        for end in ends:
            os.close(end)


def _readable(descriptor: int, seconds: float) -> bool:
    # `poll` takes descriptors of any number, which `select` does not.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))


def _read_facts(facts: int, keeper: _Child, deadline: float) -> tuple[int, Mapping[str, int]]:
    # A JSON object. The keeper holds the other end too, and so does this process: there is no end of file to wait for.
    text = b""
    while not text.endswith(b"}\n"):
        if _readable(facts, 0.05):
            text += os.read(facts, 4096)
        elif keeper.wait(0):
            raise ValueError("it ended at once")
        elif time.monotonic() > deadline:
            raise TimeoutError("it did not come up in time")
    found = json.loads(text)
    return int(found.pop("child-pid")), found


def _limit(pid: int, number: int, soft: int, hard: int) -> None:
    # Never above what this process may give: raising a hard limit takes a capability that even root may lack.
    _, most = resource.prlimit(pid, number)
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.prlimit(pid, number, (min(soft, hard), hard))


def _tail(errors: int) -> str:
    return os.pread(errors, 8192, 0).decode("utf-8", "replace").strip()


def records() -> list[Record]:
    """Every sandbox that this user may see."""
    found: list[Record] = []
    for record in _marked().values():
        if record not in found:
            found.append(record)
    return found


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


def end_all(record: Record, timeout: float) -> None:
    """End a sandbox by its mark, whoever made it and at whatever stage. EngineError when it is there at the deadline.

    Bubblewrap and its child have the mark until that has become the agent, which dies with bubblewrap from then on.
    Killing bubblewrap alone would not do: a child that is still being set up waits for it for ever.
    """
    started = time.monotonic()
    while marked := {pid for pid, found in _marked().items() if found == record}:
        passed = time.monotonic() - started
        if passed > timeout:
            raise EngineError(f"{record.name} is still there after {timeout:g} s.", retryable=True)
        # The keeper has something to do when the others are gone.
        keepers = {pid for pid in marked if _parent(pid) not in marked and _is_shell(pid)}
        for pid in marked - keepers if passed < _KEEPER_GRACE else marked:
            with _handle(pid, record) as handle, contextlib.suppress(ProcessLookupError):
                if handle is not None:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        time.sleep(0.005)


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


def _marked() -> dict[int, Record]:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {pid: record for pid in pids if (record := record_of(pid)) is not None}


def _is_shell(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0")
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
