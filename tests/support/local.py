"""A backend without any engine: the agent as a plain local process, for tests of everything above the backend.

The "engine" is a folder, its address `file://FOLDER`. A container is a folder in it, which holds the workspace and a
record that other processes can read; it goes when the agent ends, as an engine's own removal does it. There is
no isolation whatever: commands are the host's own and run as the caller. With `namespace=True` the agent is PID 1 of a
PID namespace of its own, so that commands that kill whatever they can reach harm nobody.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxkit.backend import (
    AgentBundle,
    ByteStream,
    ContainerSpec,
    ContainerStatus,
    EngineInfo,
    Feature,
    ProgressCallback,
)
from sandboxkit.config import Pull
from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError, SessionNotFoundError
from sandboxkit.streams import SocketStream

__all__ = ["LocalBackend"]

# Ends with the agent and takes the container's folder along, whoever else has died. Descriptor 3, because a shell
# gives a background command /dev/null as its standard input. The agent's end of the stream is not kept.
KEEPER = """
cd /
folder=$1
shift
exec 3<&0
"$@" <&3 >&3 2>"$folder/stderr" &
agent=$!
exec 3<&- 0</dev/null 1>/dev/null
echo $agent >"$folder/pid.new"
mv "$folder/pid.new" "$folder/pid"
wait $agent
mv "$folder" "$folder.gone"
rm -rf "$folder.gone"
"""

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
NAMESPACE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


class LocalStream(SocketStream):
    """The agent's socket; its standard error is a file of the container."""

    def __init__(self, sock: socket.socket, errors: Path) -> None:
        super().__init__(sock)
        self._errors = errors

    def diagnostics(self) -> str:
        """See ByteStream.diagnostics."""
        with contextlib.suppress(OSError):
            return self._errors.read_text("utf-8", "replace")[-8192:].strip()
        return ""


class LocalBackend:
    """See the module's docstring, and `sandboxkit.backend.Backend`, which documents every method."""

    name = "local"
    features: frozenset[Feature] = frozenset({Feature.CRASH_CLEANUP})

    def __init__(self, folder: Path, *, namespace: bool = False, timeout: float = 60.0) -> None:
        self._folder = folder
        self._namespace = namespace
        self._timeout = timeout
        # Plain dicts, each of whose calls is one step for other threads and for interrupts.
        self._ends: dict[str, socket.socket] = {}
        self._agents: dict[str, AgentBundle] = {}
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._keepers: dict[str, int] = {}

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> LocalBackend:
        """At `file://FOLDER`; without a `url` in a new temporary folder, if `may_start`."""
        if url is None:
            if not may_start:
                raise EngineUnavailableError("There is no folder yet.", details={"tried": ["a folder: none was named"]})
            return cls(Path(tempfile.mkdtemp(prefix="local-")), timeout=timeout)
        if not url.startswith("file:///"):
            raise ConfigError(f"url is {url!r}; accepted: file:///FOLDER", details={"field": "url"})
        folder = Path(url.removeprefix("file://"))
        if not folder.is_dir():
            raise EngineUnavailableError(
                f"Nothing answers at {url}: make the folder.", details={"tried": [f"{url}: no such folder"]}
            )
        return cls(folder, timeout=timeout)

    def info(self) -> EngineInfo:
        return EngineInfo(
            backend=self.name,
            url=self._folder.as_uri(),
            version="1",
            api_version="1",
            arch=platform.machine(),
            rootless=os.geteuid() != 0,
            cgroup_version=2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
            storage_driver="folder",
            enforceable=frozenset(),
        )

    def ensure_image(self, image: str, pull: Pull, progress: ProgressCallback | None = None) -> None:
        """Whatever the image is called, it is the host."""

    def install_agent(self, agent: AgentBundle, image: str) -> None:
        """It runs from where it is."""

    def create(self, spec: ContainerSpec) -> str:
        folder = self._folder / spec.name
        agent = str(spec.agent.paths[platform.machine()])
        command = [agent, "--workspace", str(folder / "workspace"), *spec.agent_args[2:]]
        environment = {**ENVIRONMENT, "HOME": str(folder / "workspace"), **spec.env}
        # The record is complete before the name shows it: `list` may look at any moment.
        fresh = self._folder / f".new-{spec.name}-{os.getpid()}-{threading.get_ident()}"
        made: int | None = None
        try:
            fresh.joinpath("workspace").mkdir(parents=True)
            fresh.joinpath("labels.json").write_text(json.dumps(dict(spec.labels)))
            made = fresh.stat().st_ino
            try:
                os.rename(fresh, folder)
            except OSError:
                if not folder.exists():
                    raise
                raise ConfigError(
                    f"id: a session of that name exists already ({spec.name}); accepted: another id, or none",
                    details={"field": "id"},
                ) from None
            self._commands[spec.name] = ([*NAMESPACE, *command] if self._namespace else command, environment)
            return spec.name
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            if made is not None and folder.exists() and folder.stat().st_ino == made:
                _discard(folder)
            raise

    def attach(self, container_id: str) -> ByteStream:
        ours, theirs = socket.socketpair()
        self._ends[container_id] = theirs
        return LocalStream(ours, self._folder / container_id / "stderr")

    def start(self, container_id: str) -> None:
        theirs, (command, environment) = self._ends.pop(container_id), self._commands[container_id]
        folder = self._folder / container_id
        folder.joinpath("started").mkdir()
        keeper = ["sh", "-c", KEEPER, "sh", str(folder), *command]
        spawn = functools.partial(
            os.posix_spawn,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,  # out of reach of a terminal's Ctrl-C, as a container is
        )
        with theirs:
            try:
                # No interrupt can come between the spawning and the noting: it is all C. (Nor is it a Popen, which
                # complains when an interrupt parts it from its owner.)
                pids = map(spawn, ("/bin/sh",), (keeper,), (environment,))
                self._keepers.update(zip((container_id,), pids, strict=True))
            except OSError as error:
                raise EngineError(f"The agent can't be started: {error}") from error

    def inspect(self, container_id: str) -> ContainerStatus:
        deadline = time.monotonic() + self._timeout
        while (found := self._status(self._folder / container_id)) is not None:
            # Its keeper writes the number down a moment after it has started it.
            if not found.running or found.pid is not None or self._namespace or time.monotonic() > deadline:
                return found
        raise SessionNotFoundError(f"There is no container {container_id}.")

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        found = [self._status(folder) for folder in sorted(self._folder.glob("sandboxkit-*"))]
        return [status for status in found if status is not None and _has(status.labels, labels)]

    def remove(self, container_id: str) -> None:
        folder = self._folder / container_id
        end = self._ends.pop(container_id, None)
        ours = self._commands.pop(container_id, None) is not None
        keeper = self._keepers.pop(container_id, None)
        if end is not None:
            end.close()
        if keeper is None and (ours or not folder.joinpath("started").exists()):
            _discard(folder)  # it never ran
            return
        # If the stream has ended the agent is going already; else, or when it has very much to end, it goes like this.
        if not _gone(folder, 0.3 if keeper is not None else 0.0):
            deadline = time.monotonic() + self._timeout
            while (agent := _read_pid(folder)) is None and not _gone(folder, 0.01) and time.monotonic() < deadline:
                pass
            if agent is not None:
                _kill_tree(agent)
            if not _gone(folder, self._timeout):
                raise EngineError(f"{container_id} is still there after {self._timeout:g} s.", retryable=True)
        if keeper is not None:
            with contextlib.suppress(ChildProcessError):  # a forked child removes what its parent started
                os.waitpid(keeper, 0)

    def close(self) -> None:
        for end in self._ends.values():
            end.close()
        self._ends.clear()
        for keeper in self._keepers.values():  # of sessions that were dropped or lost: they have ended by now
            with contextlib.suppress(ChildProcessError):
                os.waitpid(keeper, os.WNOHANG)
        self._keepers.clear()

    def _status(self, folder: Path) -> ContainerStatus | None:
        if folder.name.endswith(".gone"):
            return None
        try:
            labels = json.loads(folder.joinpath("labels.json").read_text())
        except FileNotFoundError:
            return None
        running = folder.joinpath("started").exists()
        # The agent that is PID 1 somewhere else is not found by that number here: it stays on the stream it has.
        pid = _read_pid(folder) if running and not self._namespace else None
        return ContainerStatus(id=folder.name, name=folder.name, running=running, pid=pid, labels=labels)


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(name in labels and value in ("", labels[name]) for name, value in wanted.items())


def _read_pid(folder: Path) -> int | None:
    try:
        return int(folder.joinpath("pid").read_text())
    except (OSError, ValueError):
        return None


def _gone(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while folder.exists() or folder.with_name(folder.name + ".gone").exists():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def _discard(folder: Path) -> None:
    gone = folder.with_name(folder.name + ".gone")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _kill_tree(root: int) -> None:
    # All are stopped before the next count, until one finds nobody new: then none can fork any more.
    stopped: set[int] = set()
    while new := {root, *_descendants(root)} - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
