"""The one implementation of Session: commands through the agent's channel, on any backend."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType

import attrs
from typing_extensions import Self

from . import _validate as check
from ._applets import checked_cwd
from ._channel import Connection
from ._input import Input, InputSource
from ._process_calls import Call, KnownLaunch, stop_all
from ._programs import find_programs
from ._relay import Relay
from ._run import Collector, Request, Run
from ._snapshot import Snapshot, take_snapshot
from ._way_out import open_way_out
from .abort import Abort, checked_abort
from .backend import WORKSPACE_FOLDER, Backend, EngineInfo, Feature
from .backend_parts import running_of
from .config import Limits, Network
from .errors import ConfigError, SandboxError, SessionBusyError, SessionDestroyedError, SessionLostError
from .exec_stream import ExecStream
from .files import SessionFiles
from .port_results import PublishedPort
from .ports import SessionPorts
from .processes import SessionProcesses
from .results import ExecResult, Program, StderrEvent, StdoutEvent
from .session import OutputCallback, SessionState

__all__ = ["AgentSession"]

TIMEOUT_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL after a timeout, unless a call says otherwise."""

_LOOK = 0.02  # seconds between two looks at the abort of a command that waits for its turn


class AgentSession:
    """See `sandboxkit.session.Session`, which documents every method here. Owns the connection and the container."""

    def __init__(
        self,
        *,
        session_id: str,
        container_id: str,
        backend: Backend,
        connection: Connection,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str = WORKSPACE_FOLDER,
        on_removed: Callable[[], object] | None = None,
        detached: bool = False,
        keep: bool = False,
        published: Mapping[int, PublishedPort] | None = None,
        network: Network | None = None,
        knows_proxy: bool = False,
    ) -> None:
        self.published = MappingProxyType(dict(published or {}))
        self._on_removed = on_removed
        self._detached, self._keep = detached, keep
        self._id = session_id
        self._container = container_id
        self._backend = backend
        self._connection = connection
        self.relay = Relay(connection.tunnels)  # of its ports; it has no thread before it is needed
        self._limits = limits
        self._workspace = workspace
        self.launches: dict[int, KnownLaunch] = {}
        self._env = {**open_way_out(self.relay, network or Network.none(), is_told=knows_proxy), **env}
        self._destroying = threading.RLock()  # a signal handler may destroy the session amid a destroy
        self._state = SessionState.RUNNING

    @property
    def id(self) -> str:
        return self._id

    @property
    def state(self) -> SessionState:
        if self._state is SessionState.RUNNING and self._connection.lost is not None:
            return SessionState.LOST
        return self._state

    @property
    def workspace(self) -> str:
        return self._workspace

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def engine(self) -> EngineInfo:
        return self._backend.info()

    @property
    def files(self) -> SessionFiles:
        return SessionFiles(self)  # made anew each time: a cycle would delay the end of a session that is dropped

    @property
    def ports(self) -> SessionPorts:
        return SessionPorts(self)

    def raise_if_unusable(self) -> None:
        """See PortsHost."""
        self._connection.raise_if_unusable()

    @property
    def processes(self) -> SessionProcesses:
        return SessionProcesses(self)

    @property
    def connection(self) -> Connection:
        """See ProcessHost."""
        return self._connection

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
        for name, callback in (("on_stdout", on_stdout), ("on_stderr", on_stderr)):
            if callback is not None and not callable(callback):
                check.fail(name, callback, "a callable that takes one str, or None")
        request = self._request(
            command,
            args,
            cwd=cwd,
            env=env,
            input=input,
            timeout=timeout,
            kill_grace=kill_grace,
            abort=abort,
            max_output_bytes=max_output_bytes,
        )
        if on_stdout is not None or on_stderr is not None:
            return self._exec_with_callbacks(request, on_stdout, on_stderr)
        run = Run(self._connection, request, stream=False)
        try:
            return run.result() if self._started(run, request) else request.never_ran()
        except BaseException:
            run.abandon()
            raise

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
        check.boolean("stdin", stdin)
        check.boolean("tty", tty)
        check.integer("rows", rows, minimum=1, maximum=65535)
        check.integer("columns", columns, minimum=1, maximum=65535)
        if stdin and input is not None:
            raise ConfigError("input and stdin=True were both given; accepted: one of them", details={"field": "stdin"})
        request = self._request(
            command,
            args,
            cwd=cwd,
            env=env,
            input=input,
            interactive=stdin,
            tty=(rows, columns) if tty else None,
            timeout=timeout,
            kill_grace=kill_grace,
            abort=abort,
            max_output_bytes=max_output_bytes,
        )
        return self._stream(request, stdin=stdin)

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
        return self.exec(
            "sh",
            ["-c", check.text("script", script, accepted="a string of shell commands without NUL", empty=True)],
            cwd=cwd,
            env=env,
            input=input,
            timeout=timeout,
            kill_grace=kill_grace,
            abort=abort,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output_bytes=max_output_bytes,
        )

    def which(
        self,
        commands: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> dict[str, tuple[Program, ...]]:
        return find_programs(self, commands, cwd=cwd, env=self._merged(env), timeout=timeout, abort=abort)

    def destroy(self) -> None:
        self._connection.raise_if_forked()
        with self._destroying:
            if self._state is SessionState.DESTROYED:
                return
            self._state = SessionState.DESTROYING
            # The stream first: an attached stream that nobody reads makes the engines slow to remove (moby#41827), and
            # its end is the agent's own signal to go.
            self._connection.close(SessionDestroyedError(f"Session {self._id} was destroyed. Create a new session."))
            try:
                self._backend.remove(self._container)
                if self._on_removed is not None:
                    self._on_removed()
            except SandboxError as error:
                error.details.setdefault("session", self._id)
                raise
            self._state = SessionState.DESTROYED

    def stop(self, grace: float = 5.0) -> None:
        check.number("grace", grace, minimum=0, exclusive=False)
        self._connection.raise_if_forked()
        if not self._keep:
            raise ConfigError(
                f"Session {self._id} goes when it ends and can't be stopped: make it with create_session(keep=True).",
                details={"session": self._id},
            )
        with self._destroying:
            if self._state is SessionState.STOPPED:
                return
            self._raise_if_over()
            self._state = SessionState.STOPPING
            try:
                self._end_all(grace)
                lost = f"Session {self._id} was stopped. Use Sandbox.resume({self._id!r})."
                self._connection.close(SessionLostError(lost))
                running_of(self._backend, Feature.RESUME, "stop").stop(self._container)
                self._state = SessionState.STOPPED
            finally:
                if self._state is SessionState.STOPPING:
                    self._state = SessionState.RUNNING  # or lost, if it came so far; it can be called again

    def snapshot(self, tag: str) -> Snapshot:
        self._connection.raise_if_forked()
        self._raise_if_over()
        return take_snapshot(self._backend, self._container, self._id, tag)

    def detach(self) -> None:
        self._connection.raise_if_forked()
        if not self._detached:
            raise ConfigError(
                f"Session {self._id} ends with its process. To let go of one, use create_session(detached=True).",
                details={"session": self._id},
            )
        with self._destroying:
            if self._state is SessionState.DETACHED:
                return
            self._raise_if_over()
            self._state = SessionState.DETACHED
            lost = f"This process let go of session {self._id}. Use sandboxkit.attach({self._id!r})."
            self._connection.close(SessionLostError(lost))

    def _end_all(self, grace: float) -> None:
        # SIGTERM to what runs, SIGKILL to what is left after the grace; returns when nothing runs, or a little later.
        connection, processes = self._connection, list[Call]()
        end = time.monotonic() + grace + 1.0
        with contextlib.suppress(SandboxError):
            for channel in connection.open_channels:
                channel.kill(grace)
            processes += stop_all(self, grace)
        pause = threading.Event()
        while connection.lost is None and time.monotonic() < end:
            if not connection.open_channels and all(call.outcome is not None for call in processes):
                return
            pause.wait(0.005)

    def _raise_if_over(self) -> None:
        if self._state is SessionState.DESTROYED:
            raise SessionDestroyedError(f"Session {self._id} was destroyed. Create a new session.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Let go of, or stopped, it lives on. In a forked child that leaves the block the session is its parent's.
        if self._state not in (SessionState.DETACHED, SessionState.STOPPED) and not self._connection.forked:
            self.destroy()

    def __del__(self) -> None:
        # Never waits: the agent ends with its stream, the engine removes the container. `destroy` is the way to know it
        # is done.
        state = getattr(self, "_state", SessionState.DESTROYED)
        ended = (SessionState.DESTROYED, SessionState.DETACHED, SessionState.STOPPED)
        if state not in ended and not self._connection.forked:
            self._connection.shutdown()
            if self._detached:
                return
            with contextlib.suppress(Exception):
                warnings.warn(f"session {self._id} was never destroyed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Session {self._id} on {self._backend.name}, {self.state.value}>"

    # What calls have in common.

    def _request(
        self,
        command: str,
        args: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] | None,
        input: InputSource,
        timeout: float | None,
        kill_grace: float | None,
        abort: Abort | None,
        max_output_bytes: int | None,
        interactive: bool = False,
        tty: tuple[int, int] | None = None,
    ) -> Request:
        # Everything is checked before anything runs; in this order, so that the first wrong argument is the one named.
        checked_command, checked_args = check.command(command), check.args(args)
        merged = self._merged(env)
        checked_abort("abort", abort)
        check.number("kill_grace", kill_grace, minimum=0, exclusive=False, optional=True)
        cap = self._limits.max_output_bytes
        if max_output_bytes is not None:
            check.integer("max_output_bytes", max_output_bytes, minimum=0)
            cap = min(cap, max_output_bytes)
        return Request(
            command=checked_command,
            args=checked_args,
            cwd=checked_cwd(cwd, self._workspace),
            env=merged,
            input=Input.of(input),
            interactive=interactive,
            timeout=self._timeout(timeout),
            timeout_grace=TIMEOUT_GRACE if kill_grace is None else kill_grace,
            abort_grace=0.0 if kill_grace is None else kill_grace,
            abort=abort,
            max_output_bytes=cap,
            tty=tty,
        )

    def _merged(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return self._env if env is None else {**self._env, **check.environment("env", env)}

    def _timeout(self, asked: float | None) -> float | None:
        limits = self._limits
        if asked is None:
            return limits.timeout if limits.timeout is not None else limits.max_timeout
        if isinstance(asked, float) and asked == math.inf and limits.max_timeout is None:
            return None
        check.number("timeout", asked)
        if limits.max_timeout is not None and asked > limits.max_timeout:
            check.fail("timeout", asked, f"at most limits.max_timeout, {limits.max_timeout:g} s")
        return asked

    def _started(self, run: Run, request: Request) -> bool:
        # Start it, when its turn has come. False when the abort came first: nothing ran.
        limit, waited = self._limits.max_concurrent_execs, False
        deadline = math.inf if request.timeout is None else time.monotonic() + request.timeout
        try:
            while True:
                self._connection.raise_if_unusable()
                if request.abort is not None and request.abort.is_set():
                    return False
                if run.start(limit):
                    return True
                if self._limits.when_busy == "error":
                    raise SessionBusyError(
                        f"{limit} commands run already in session {self._id}. "
                        "Wait for one to end, or raise limits.max_concurrent_execs."
                    )
                if time.monotonic() > deadline:
                    raise SessionBusyError(
                        f"No command of session {self._id} ended within {request.timeout:g} s, and "
                        f"{limit} run already. Raise limits.max_concurrent_execs."
                    )
                waited = True
                self._connection.ended.wait(min(_LOOK, deadline - time.monotonic()))
        finally:
            if waited:
                self._connection.ended.set()  # for the next that waits: one wake may stand for several ends

    def process_request(
        self, command: str, args: Sequence[str], cwd: str, env: Mapping[str, str] | None, stdin: bool
    ) -> bytes:
        """See ProcessHost: for `processes`."""
        request = self._request(
            command,
            args,
            cwd=cwd,
            env=env,
            input=None,
            interactive=stdin,
            timeout=None,
            kill_grace=0,
            abort=None,
            max_output_bytes=None,
        )
        return attrs.evolve(request, timeout=None).payload(0)

    def start_applet(
        self,
        name: str,
        args: Sequence[str],
        *,
        sink: Collector,
        input: bytes | memoryview | Iterator[bytes] | None,
        timeout: float | None,
        abort: Abort | None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> Run | None:
        """See AppletHost."""
        request = Request(
            command=name,
            args=tuple(args),
            cwd=cwd,
            env=dict(env or {}),
            input=Input.of(input),
            interactive=False,
            timeout=self._timeout(timeout),
            timeout_grace=0.0,
            abort_grace=0.0,
            abort=abort,
            max_output_bytes=0,
            applet=True,
        )
        run = Run(self._connection, request, stream=False, sink=sink)
        try:
            return run if self._started(run, request) else None
        except BaseException:
            run.abandon()
            raise

    def _stream(self, request: Request, *, stdin: bool) -> ExecStream:
        run, tty = Run(self._connection, request, stream=True), request.tty is not None
        try:
            if not self._started(run, request):
                return ExecStream.ended(request.never_ran(), stdin=stdin, tty=tty)
            return ExecStream(run, stdin=stdin, tty=tty)
        except BaseException:
            run.abandon()
            raise

    def _exec_with_callbacks(
        self, request: Request, on_stdout: OutputCallback | None, on_stderr: OutputCallback | None
    ) -> ExecResult:
        with self._stream(request, stdin=False) as stream:
            for event in stream:
                if isinstance(event, StdoutEvent) and on_stdout is not None:
                    on_stdout(event.text)
                elif isinstance(event, StderrEvent) and on_stderr is not None:
                    on_stderr(event.text)
            return stream.wait()
