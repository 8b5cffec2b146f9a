"""The Session protocol: what every session offers, whatever runs it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, runtime_checkable

from typing_extensions import Self

from ._input import InputSource
from ._snapshot import Snapshot
from .abort import Abort
from .backend import EngineInfo
from .config import Limits
from .exec_stream import ExecStream
from .files import SessionFiles
from .ports import SessionPorts
from .processes import SessionProcesses
from .results import ExecResult, Program

__all__ = ["Session", "SessionState"]

OutputCallback = Callable[[str], object]


class SessionState(str, enum.Enum):
    """Where a session is in its life; a session object begins as RUNNING, once all has been proved.

    STOPPED is a kept session's, see `stop`; CREATED is a container's that has not run yet. DETACHED: this
    object let go of it. LOST: the container, the engine or the
    connection ended by itself; a detached or kept session of that id may live on.
    """

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DETACHED = "detached"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    LOST = "lost"


@runtime_checkable
class Session(Protocol):
    """A disposable workspace in a container, and commands in it. Every method may be called from any thread.

    A context manager: leaving the block destroys the session. In a process forked from the one that made it every
    method raises SessionDestroyedError, and the parent's session is not disturbed.
    """

    @property
    def id(self) -> str:
        """Unique on its engine."""
        ...

    @property
    def state(self) -> SessionState:
        """Where it is in its life; asks nobody."""
        ...

    @property
    def workspace(self) -> str:
        """The absolute path of the workspace inside the sandbox."""
        ...

    @property
    def limits(self) -> Limits:
        """The bounds it was made with."""
        ...

    @property
    def engine(self) -> EngineInfo:
        """What runs it."""
        ...

    @property
    def files(self) -> SessionFiles:
        """Its workspace's files, read and written without any program in the image."""
        ...

    @property
    def ports(self) -> SessionPorts:
        """What listens inside, its servers for the host, and services of the host for it; with the network off, too."""
        ...

    @property
    def processes(self) -> SessionProcesses:
        """Servers and other programs that run beside the caller, with their logs."""
        ...

    def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        input: InputSource = None,
        timeout: float | None = None,
        kill_grace: float | None = None,
        abort: Abort | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Run one program to its end. A non-zero exit is a result; only infrastructure raises.

        - `command`: one executable, looked up in the sandbox's PATH, or a path relative to `cwd`; never a shell line.
        - `cwd`: relative to the workspace, or absolute inside it.
        - `env`: set over the session's and the image's environment.
        - `input`: bytes, text (as UTF-8), a binary file or an iterator of bytes, read as the command reads it. Without
          it the command reads end of file at once. A source that blocks delays the return.
        - `timeout`: seconds; `None` means `limits.timeout`. At the timeout the whole tree of processes gets SIGTERM,
          after `kill_grace` (default 2 s) SIGKILL; the result is `timed_out`, with the output so far.
        - `abort`: a `threading.Event` or an AbortSignal. When it is set, before or during, the tree gets SIGKILL (with
          a `kill_grace`, SIGTERM first) and the result is `aborted`.
        - `on_stdout`, `on_stderr`: called on this thread with text as it comes; an exception from one kills the command
          and propagates.
        - `max_output_bytes`: keep less of each stream than `limits.max_output_bytes`.

        Raises ConfigError for bad arguments and PathError for a bad `cwd`: nothing ran. SessionLostError,
        SessionDestroyedError: there is no session any more. KeyboardInterrupt: the tree is dead, the session usable.
        """
        ...

    def exec_stream(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        input: InputSource = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        columns: int = 80,
        timeout: float | None = None,
        kill_grace: float | None = None,
        abort: Abort | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecStream:
        """Start one program and iterate over its output: StdoutEvent, StderrEvent, and last one ExitEvent.

        The command is started before this returns. `stdin=True` keeps its input open for `ExecStream.write`; `tty=True`
        gives it a terminal of `rows` by `columns` (its streams then merge into stdout). A slow consumer blocks the
        command, as a pipe does. Leaving the loop, an exception in it, or dropping the iterator kills the command's
        tree. The rest is as in `exec`.
        """
        ...

    def shell(
        self,
        script: str,
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        input: InputSource = None,
        timeout: float | None = None,
        kill_grace: float | None = None,
        abort: Abort | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """`exec("sh", ["-c", script])`: for text you trust, never for text with somebody's input pasted in."""
        ...

    def which(
        self,
        commands: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> dict[str, tuple[Program, ...]]:
        """For each command the programs of that name that the session's user may execute, in the order of PATH.

        The first is the one `exec` would run with the same `cwd` and `env`, unless the kernel refuses its format; none:
        an empty tuple. A command with a slash is looked for in its one place. PathError for a bad `cwd`.
        """
        ...

    def destroy(self) -> None:
        """End every process, remove the container and its workspace; waiting calls raise SessionDestroyedError.

        Idempotent and safe from several threads: afterwards the engine has nothing of the session. On an error it can
        be called again. A lost session is cleaned up as well.
        """
        ...

    def stop(self, grace: float = 5.0) -> None:
        """End what runs and keep the files, for `Sandbox.resume(id)`; only with `create_session(keep=True)`.

        Running commands and managed processes get SIGTERM, and SIGKILL after `grace` seconds; background processes
        SIGKILL. Who waits for one is told how it ended (a command's result is `aborted`); later calls raise
        SessionLostError. Leaving the `with` block does not destroy a stopped session. Idempotent.
        """
        ...

    def snapshot(self, tag: str) -> Snapshot:
        """Make an image of the root filesystem and the workspace; `Sandbox(tag)` makes sessions that begin with both.

        `tag` is `name` or `name:version`; an older snapshot of that tag loses it. What is being written at the moment
        may be there by halves. A workspace that is a folder of the host is left out; UnsupportedError for one in
        memory. Of the session's environment nothing is kept. Remove it with `sandboxkit.remove_snapshot(tag)`.
        """
        ...

    def detach(self) -> None:
        """Let go of the session, for `sandboxkit.attach(id)`; only with `create_session(detached=True)`.

        It lives on with its files, managed and background processes; commands that run are killed. Calls that wait, and
        later ones on this object, raise SessionLostError; leaving its `with` block does not destroy it. Idempotent.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
