"""`session.processes`: started for certain, logged, written to, waited for, stopped with all that is below them."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import (
    AbortSignal,
    ConfigError,
    Lifecycle,
    ManagedProcess,
    PathError,
    ProcessError,
    ProcessTimeoutError,
    Session,
    SessionDestroyedError,
    SessionLostError,
)
from sandboxkit.backend import Feature

from ._inside import ALL_ESCAPES, ESCAPE_SCRIPTS, fresh, living, read, shell_args, wait_for_pids
from ._lifecycle_detached import Lasting
from ._suite import Suite, needs
from ._threads import Background, ForkedChild, interrupts, together
from ._watch import MARGIN, Stopwatch, allowed, wait_until


def start(session: Session, script: str, *args: str, **options: Any) -> ManagedProcess:
    return session.processes.start("sh", shell_args(script, *args), **options)


def wait_for_log(process: ManagedProcess, text: str) -> None:
    """It has written that."""
    wait_until(lambda: text in process.logs().text, f"{process} writes {text!r}")


def reason(raised: pytest.ExceptionInfo[ProcessError]) -> object:
    return raised.value.details["reason"]


class ManagedProcesses(Suite):
    """Starting, looking, ending."""

    def test_a_process_runs_beside_commands_until_it_is_stopped(self, session: Session) -> None:
        """Start, list, get, status, stop."""
        before = time.time()
        process = start(session, "echo up; exec sleep 1000", name="sleeper")
        assert process.status == "running"
        assert (process.exit_code, process.signal, process.exit) == (None, None, None)
        assert (process.command, process.args[0], process.name) == ("sh", "-c", "sleeper")
        assert abs(process.started_at - before) < 60
        wait_for_log(process, "up")
        assert living(session, [process.pid]) == [process.pid]
        assert session.exec("echo", ["beside"]).stdout == "beside\n"
        assert process in session.processes.list()
        same = session.processes.get(process.id)
        assert (same, same.pid, same.args, same.name) == (process, process.pid, process.args, "sleeper")
        ended = process.stop()
        assert (ended.exit_code, ended.signal, ended.stopped, ended.ok) == (143, "SIGTERM", True, False)
        assert living(session, [process.pid]) == []
        assert (process.status, process.exit_code, process.signal) == ("exited", 143, "SIGTERM")
        assert process.stop() == ended
        assert process.wait(0) == ended

    def test_how_it_ended_is_told(self, session: Session) -> None:
        """Exit codes and signals, as exec tells them."""
        ended = start(session, "exit 7").wait(60)
        assert (ended.exit_code, ended.signal, ended.stopped, ended.ok) == (7, None, False, False)
        assert start(session, "true").wait(60).ok
        killed = start(session, "kill -9 $$").wait(60)
        assert (killed.exit_code, killed.signal, killed.stopped) == (137, "SIGKILL", False)
        timed = start(session, "sleep 0.2").wait(60)
        assert 0.2 <= timed.duration < 60
        assert timed.max_rss_bytes > 0

    @pytest.mark.parametrize(
        ("command", "code", "why"),
        [
            ("no-such-program", 127, "not_found"),
            ("./no-such-file", 127, "not_found"),
            ("/etc/passwd", 126, "not_executable"),
            ("/", 126, "not_executable"),
        ],
    )
    def test_one_that_can_not_start_raises_at_once(self, session: Session, command: str, code: int, why: str) -> None:
        """Acknowledged, not later: with the reason, and nothing is listed."""
        before = session.processes.list()
        with pytest.raises(ProcessError, match=command) as raised:
            session.processes.start(command)
        assert (reason(raised), raised.value.details["exit_code"]) == (why, code)
        assert session.processes.list() == before

    def test_a_bad_folder_raises_at_once(self, session: Session) -> None:
        """As for exec."""
        for cwd in ("no-such-folder", "..", "/"):
            with pytest.raises(PathError):
                session.processes.start("true", cwd=cwd)

    def test_environment_and_folder_are_as_for_exec(self, session: Session) -> None:
        """And restart keeps them."""
        session.exec("mkdir", ["place"]).check()
        process = start(session, 'echo "$NAME"; pwd', env={"NAME": "a value"}, cwd="place")
        process.wait(60)
        again = process.restart()
        again.wait(60)
        for one in (process, again):
            name, folder = one.logs().text.splitlines()
            assert (name, folder.rpartition("/")[2]) == ("a value", "place")

    def test_only_live_ones_count_against_the_limit(self) -> None:
        """`max_processes`."""
        with self.sandbox(limits=self.limits(max_processes=2)).create_session() as session:
            for _ in range(3):
                start(session, "true").wait(60)
            first, second = (start(session, "exec sleep 1000") for _ in range(2))
            with pytest.raises(ProcessError, match="max_processes, 2,") as raised:
                start(session, "true")
            assert reason(raised) == "limit"
            first.stop()
            third = start(session, "exec sleep 1000")
            assert [process.status for process in session.processes.list()] == ["exited"] * 4 + ["running"] * 2
            for process in (second, third):
                process.stop()

    def test_many_threads_start_no_more_than_the_limit(self) -> None:
        """The bound holds also when all ask at the same moment."""
        with self.sandbox(limits=self.limits(max_processes=3)).create_session() as session:

            def attempt() -> ManagedProcess | None:
                try:
                    return start(session, "exec sleep 1000")
                except ProcessError:
                    return None

            made = [process for process in together([attempt] * 12) if process is not None]
            assert len(made) == 3
            assert session.processes.list() == sorted(made, key=lambda process: int(process.id[1:]))

    def test_stop_ends_the_whole_tree(self, session: Session) -> None:
        """Whatever tried to get away: setsid, double fork, stopped, deaf to SIGTERM."""
        path, (number, script) = fresh(), ALL_ESCAPES
        process = start(session, script, path, *ESCAPE_SCRIPTS)
        pids = wait_for_pids(session, path, number)
        with Stopwatch() as watch:
            ended = process.stop(grace=0.2)
        assert watch.seconds < allowed(2)
        assert ended.stopped
        assert living(session, pids) == []

    def test_it_may_use_its_grace(self, session: Session) -> None:
        """SIGTERM first; a server that ends by itself says its own code."""
        process = start(session, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        wait_for_log(process, "ready")
        ended = process.stop(grace=60)
        assert (ended.exit_code, ended.signal, ended.stopped) == (5, None, True)
        assert "bye\n" in process.logs().text

    def test_what_it_left_in_the_background_is_logged_and_stopped_too(self, session: Session) -> None:
        """The status is the command's own, as exec's result is."""
        process = start(session, "(echo $$; echo later; exec sleep 1000) & echo $!; exit 3")
        assert process.wait(60).exit_code == 3
        wait_for_log(process, "later")
        (pid,) = {int(line) for line in process.logs().text.split() if line.isdigit()} - {process.pid}
        assert living(session, [pid]) == [pid]
        assert process.stop().exit_code == 3
        assert living(session, [pid]) == []

    def test_restart_starts_the_same_anew(self, session: Session) -> None:
        """A live one is stopped first; the new one has a log of its own."""
        path = fresh()
        process = start(session, 'echo x >>"$1"; echo started; exec sleep 1000', path, name="again")
        wait_for_log(process, "started")
        again = process.restart(grace=1)
        assert again.id != process.id
        assert (process.status, again.status, again.name) == ("exited", "running", "again")
        wait_for_log(again, "started")
        assert again.logs().text == "started\n"
        assert read(session, path) == "x\nx\n"
        again.stop(0)

    def test_waiting_has_a_bound_and_can_be_aborted(self, session: Session) -> None:
        """A TimeoutError, and the process runs on."""
        process = start(session, "exec sleep 1000")
        with Stopwatch() as watch, pytest.raises(TimeoutError, match=process.id) as raised:
            process.wait(0.1)
        assert isinstance(raised.value, ProcessTimeoutError)
        assert 0.1 <= watch.seconds < allowed(0.1)
        abort = AbortSignal()
        waiting = Background(lambda: process.wait(abort=abort))
        abort.set()
        with pytest.raises(ProcessError) as aborted:
            waiting.result()
        assert reason(aborted) == "aborted"
        assert process.status == "running"
        waiting = Background(process.wait)
        process.stop(0)
        assert waiting.result().signal == "SIGKILL"

    def test_unknown_ids_are_refused(self, session: Session) -> None:
        """ProcessError, or ConfigError for what is no id."""
        with pytest.raises(ProcessError, match="p4000000000") as raised:
            session.processes.get("p4000000000")
        assert reason(raised) == "unknown"
        bad: Any
        for bad in ("", "1", "p0", "p01", "q1", "p-1", "p99999999999", 1, None):
            with pytest.raises(ConfigError, match="id"):
                session.processes.get(bad)

    def test_processes_end_with_the_session(self) -> None:
        """Destroy does not wait for them, and later calls say so."""
        session = self.sandbox().create_session()
        process = start(session, "trap '' TERM; while :; do sleep 1; done")
        waiting = Background(process.wait)
        with Stopwatch() as watch:
            session.destroy()
        assert watch.seconds < allowed(2)
        with pytest.raises(SessionDestroyedError):
            waiting.result()
        calls: tuple[Callable[[], object], ...] = (
            lambda: process.status,
            process.logs,
            process.wait,
            process.stop,
            process.restart,
            process.follow,
            session.processes.list,
            lambda: session.processes.start("true"),
        )
        for call in calls:
            with pytest.raises(SessionDestroyedError):
                call()

    def test_ctrl_c_in_a_wait_leaves_process_and_session_alone(self, session: Session) -> None:
        """KeyboardInterrupt is raised; the next call works."""
        process = start(session, "echo up; exec sleep 1000")
        wait_for_log(process, "up")
        with interrupts() as interrupt:
            for call in (process.wait, lambda: list(process.follow())):
                with pytest.raises(KeyboardInterrupt), interrupt.after(0.05):
                    call()
        assert process.status == "running"
        process.stop(0)

    # What is interrupted in a finalizer, or between a socket and its owner, Python reports as it drops it.
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_at_any_moment_leaves_calls_usable_and_no_stray_process(self, session: Session) -> None:
        """Thirty interrupts within starting, writing, reading and stopping one."""
        dice = random.Random(7)
        process = start(session, "cat", stdin=True)
        with interrupts() as interrupt:
            for _ in range(30):
                with contextlib.suppress(KeyboardInterrupt), interrupt.after(dice.uniform(0, 0.004)):
                    for _ in range(50):
                        process.write(b"x" * 1000)
                        process.logs(tail_bytes=100)
                        session.processes.list()
                        with process.follow() as stream:
                            next(stream)
        assert process.status == "running"
        process.write(b"\nend\n", timeout=60)
        wait_for_log(process, "end")
        process.stop(0)
        with interrupts() as interrupt:
            for _ in range(30):
                with contextlib.suppress(KeyboardInterrupt), interrupt.after(dice.uniform(0, 0.004)):
                    for _ in range(50):
                        session.processes.start("sleep", ["1000"], name="stray").stop(0)
        # One that had been started when the interrupt came is the caller's, who may be in the middle of taking it.
        running = [process for process in session.processes.list() if process.status == "running"]
        for process in running:
            assert process.name == "stray"
            process.stop(0)

    def test_a_forked_childs_call_for_a_process_is_a_clear_error(self, session: Session) -> None:
        """And what it drops is still its parent's."""
        process = start(session, "read x; echo $x", stdin=True)
        stream = process.follow()

        def refusal(call: Callable[[], object]) -> str:
            try:
                call()
            except SessionDestroyedError as error:
                return str(error)
            return "it was done"

        def body(tell: Callable[[str], None]) -> None:
            nonlocal stream
            calls: tuple[Callable[[], object], ...] = (
                session.processes.list,
                lambda: session.processes.start("true"),
                lambda: process.status,
                process.logs,
                process.wait,
                process.stop,
                lambda: process.write(b"x"),
                stream.__next__,
            )
            for message in map(refusal, calls):
                tell(message)
            stream.close()
            del stream, calls
            gc.collect()
            tell("done")

        with ForkedChild(body) as child:
            for _ in range(8):
                assert "belongs to the parent" in child.read_line()
            assert child.read_line() == "done"
            assert child.wait() == 0
        process.write(b"hello\n")
        assert [event.text for event in stream] == ["hello\n"]

    def test_the_idle_clock_stands_while_one_runs(self) -> None:
        """A server is not idleness; with its end the clock runs again."""
        lifecycle = Lifecycle(idle_timeout=MARGIN)
        session = self.sandbox(lifecycle=lifecycle).create_session()
        try:
            process = start(session, f"sleep {MARGIN + 1}; echo done")
            assert process.wait(60).ok
            wait_until(lambda: session.state.value == "lost", "the idle session ends", 20)
            with pytest.raises(SessionLostError):
                process.logs()
        finally:
            session.destroy()


class LastingProcesses(Lasting):
    """Managed processes of sessions that outlive their host."""

    @needs(Feature.DETACHED)
    def test_the_next_host_continues_them(self) -> None:
        """Their state, their logs from a cursor, their input, and a restart with the first one's command."""
        session = self.lasting(detached=True, env={"NAME": "value"})
        script = 'echo "$NAME"; while read line; do echo "got $line"; done; exit 4'
        process = start(session, script, stdin=True, name="server")
        ended = start(session, "echo gone; exit 9")
        ended.wait(60)
        process.write(b"one\n")
        wait_for_log(process, "got one")
        cursor = process.logs().next_cursor
        session.detach()
        with pytest.raises(SessionLostError):
            process.logs()
        session = self.attached_when_free(session.id)
        found, other = session.processes.list()
        assert (found.id, found.pid, found.name, found.status) == (process.id, process.pid, "server", "running")
        assert (found.command, found.args, found.started_at) == ("sh", process.args, process.started_at)
        assert (other.id, other.exit_code, other.logs().text) == (ended.id, 9, "gone\n")
        found.write(b"two\n")
        wait_for_log(found, "got two")
        assert found.logs(since=cursor).text == "got two\n"
        again = found.restart(grace=1)
        wait_for_log(again, "value")
        again.close_stdin()
        assert again.wait(60).exit_code == 4
        session.destroy()

    @needs(Feature.DETACHED)
    def test_they_live_on_when_their_host_is_killed(self) -> None:
        """And write on meanwhile, into their logs."""

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox()
            sandbox._backend = backend
            session = sandbox.create_session(id="killed-processes", detached=True)
            process = start(session, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
            for _ in process.follow():
                tell(process.id)
                signal.pause()

        with self.child(body) as child:
            id = child.read_line()
            child.kill()
        session = self.attached_when_free("killed-processes")
        process = session.processes.get(id)
        assert process.status == "running"
        cursor = process.logs().next_cursor
        wait_until(lambda: process.logs(since=cursor).data, "it writes on")
        numbers = [int(line) for line in process.logs().text.split()]
        assert numbers == list(range(1, len(numbers) + 1))
        process.stop(0)
        session.destroy()

    @needs(Feature.RESUME)
    def test_stopping_a_session_gives_them_their_grace(self) -> None:
        """Like commands; the resumed session has none."""
        path = fresh()
        session = self.lasting(keep=True)
        process = start(session, "trap 'echo ended >\"$1\"; exit' TERM; echo up; while :; do sleep 0.01; done", path)
        wait_for_log(process, "up")
        session.stop(grace=30)
        resumed = self.resumed(session.id)
        assert read(resumed, path) == "ended\n"
        assert resumed.processes.list() == []
        resumed.destroy()
