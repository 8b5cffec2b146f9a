"""The host process: interrupted, forked, killed."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable

import pytest

from sandboxkit import Session, SessionDestroyedError, StdoutEvent
from sandboxkit.backend import Feature

from ._inside import ALL_ESCAPES, ESCAPE_SCRIPTS, fresh, living, read, sh, wait_for_file, wait_for_pids
from ._suite import RUN, RUN_LABEL, Rig, Suite, needs
from ._threads import Background, ForkedChild, interrupts
from ._watch import BEGUN, Stopwatch, allowed, wait_until

INTERRUPTS = int(os.environ.get("SANDBOXKIT_TEST_INTERRUPTS", "150"))
"""How often a command is interrupted at a random moment."""


class HostProcess(Suite):
    """What the classes below share."""

    def names(self) -> set[str]:
        """The suite's containers."""
        return {status.name for status in self.backend.list({RUN_LABEL: RUN})}

    def own_session(self, id: str | None = None) -> Session:
        """For a forked child: over a connection of its own."""
        return Rig(type(self)).sandbox("shell").create_session(id=id)


class KeyboardInterrupts(HostProcess):
    """Ctrl-C: the tree is dead, the exception goes on, the next exec works."""

    def test_ctrl_c_in_exec_kills_the_tree_and_is_raised_again(self, session: Session) -> None:
        """KeyboardInterrupt; all were seen alive, and all are gone."""
        path, found = fresh(), list[int]()
        number, script = ALL_ESCAPES

        def alive() -> bool:
            found.extend(wait_for_pids(session, path, number))
            return True

        with interrupts() as interrupt:
            interrupt.when(alive, "the command runs")
            with Stopwatch() as watch, pytest.raises(KeyboardInterrupt):
                sh(session, script, path, *ESCAPE_SCRIPTS, timeout=60)
        assert watch.seconds < 20
        assert len(found) == number
        assert living(session, found) == []
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_ctrl_c_in_a_stream_kills_the_tree_and_is_raised_again(self, session: Session) -> None:
        """KeyboardInterrupt anywhere in exec_stream."""
        path, found, events = fresh(), list[int](), list[bytes]()

        def alive() -> bool:
            found.extend(wait_for_pids(session, path, 1))
            return bool(events)

        with interrupts() as interrupt:
            interrupt.when(alive, "the command runs and its output has come")
            stream = session.exec_stream("sh", ["-c", 'echo $$ >"$1"; echo hi; exec sleep 1000', "sh", path])
            with pytest.raises(KeyboardInterrupt):
                events.extend(event.data for event in stream if isinstance(event, StdoutEvent))
        assert events == [b"hi\n"]
        assert living(session, found[:1]) == []
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_ctrl_c_in_a_callback_kills_the_tree_and_is_raised_again(self, session: Session) -> None:
        """Anywhere in exec; callbacks run on the calling thread."""
        path = fresh()
        with interrupts() as interrupt, pytest.raises(KeyboardInterrupt):
            sh(session, 'echo $$ >"$1"; echo hi; exec sleep 1000', path, on_stdout=lambda text: interrupt.now())
        assert living(session, [int(read(session, path))]) == []

    def test_ctrl_c_while_the_grace_runs_ends_it(self, session: Session) -> None:
        """The tree is killed, whatever else was going on."""
        path = fresh()
        script = "sleep 100000 & trap 'echo $$ >\"$1\"' TERM; wait; exec sleep 100000"
        with interrupts() as interrupt:
            interrupt.when(lambda: read(session, path), "SIGTERM has come")
            with Stopwatch() as watch, pytest.raises(KeyboardInterrupt):
                sh(session, script, path, timeout=BEGUN, kill_grace=60)
        assert watch.seconds < 20
        assert living(session, [int(read(session, path))]) == []

    def test_ctrl_c_in_a_write_kills_the_command(self, session: Session) -> None:
        """Anywhere in exec_stream; here in a write that waits for the command to read."""
        path = fresh()
        with interrupts() as interrupt:
            interrupt.when(lambda: read(session, path), "the command runs")
            with (
                pytest.raises(KeyboardInterrupt),
                session.exec_stream("sh", ["-c", 'echo $$ >"$1"; exec sleep 1000', "sh", path], stdin=True) as stream,
            ):
                stream.write(bytes(50_000_000))
        assert living(session, [int(read(session, path))]) == []

    def test_interrupts_at_any_moment_never_spoil_the_session(self, session: Session) -> None:
        """KeyboardInterrupt anywhere: the next exec works. Dial: SANDBOXKIT_TEST_INTERRUPTS."""
        seed = random.randrange(2**32)
        dice = random.Random(seed)
        before = sum(1 for _ in range(20) if session.exec("true").ok)
        assert before == 20
        hits = 0
        with interrupts() as interrupt:
            for number in range(INTERRUPTS):
                try:
                    with interrupt.after(dice.uniform(0, 0.004)):
                        if number % 3 == 0:
                            session.exec("cat", input=b"x" * 100_000)
                        elif number % 3 == 1:
                            session.exec("sleep", ["0.003"])
                        else:
                            for _ in session.exec_stream("echo", ["hi"]):
                                pass
                except KeyboardInterrupt:
                    hits += 1
                result = session.exec("echo", [str(number)])
                assert (result.stdout, result.exit_code) == (f"{number}\n", 0), f"seed {seed}"
        assert hits > INTERRUPTS // 10, "too few came in time to prove anything"

    def test_interrupted_file_transfers_leave_whole_files_and_no_drafts(self, session: Session) -> None:
        """KeyboardInterrupt anywhere in `files`: the old content or the new one, nothing beside it, the next works."""
        folder = fresh()
        contents = [bytes([number]) * 4_000_000 for number in range(2)]
        session.files.write(f"{folder}/file", contents[0], parents=True)
        dice, hits = random.Random(11), 0
        with interrupts() as interrupt:
            for number in range(INTERRUPTS // 5):
                try:
                    with interrupt.after(dice.uniform(0, 0.02)):
                        session.files.write(f"{folder}/file", contents[number % 2])
                        assert session.files.read(f"{folder}/file") in contents
                        session.files.list(folder)
                except KeyboardInterrupt:
                    hits += 1
                assert session.files.read(f"{folder}/file") in contents
        assert hits > INTERRUPTS // 50, "too few came in time to prove anything"
        wait_until(lambda: [entry.name for entry in session.files.list(folder).entries] == ["file"], "no draft is left")

    # An interrupt may hit between a socket's making and its first owner: that one is collected, with a warning.
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_interrupted_creations_leave_nothing(self) -> None:
        """On any error of create_session, Ctrl-C included, nothing is left behind."""
        before = self.names()

        def once() -> None:
            self.sandbox().create_session().destroy()

        with Stopwatch() as watch:
            once()
        hits = 0
        with interrupts() as interrupt:
            for step in range(8):
                try:
                    with interrupt.after(watch.seconds * step / 8):
                        once()
                except KeyboardInterrupt:
                    hits += 1
        gc.collect()
        assert hits
        wait_until(lambda: self.names() == before, "no container is left")


class Forks(HostProcess):
    """A child process that inherited a session."""

    def test_a_forked_child_gets_a_clear_error(self, session: Session) -> None:
        """A child process that inherited a session gets a clear error."""

        def body(tell: Callable[[str], None]) -> None:
            for call in (session.exec, session.exec_stream, session.shell):
                try:
                    call("true")
                except SessionDestroyedError as error:
                    tell(f"{error.code.value}: {error}")
            try:
                session.destroy()
            except SessionDestroyedError as error:
                tell(f"{error.code.value}: {error}")

        with ForkedChild(body) as child:
            for _ in range(4):
                assert "session_destroyed: This session belongs to the parent" in child.read_line()
            assert child.wait() == 0
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_a_forked_childs_end_does_not_disturb_the_parent(self, session: Session) -> None:
        """Its exit does not disturb the parent's session; nor does leaving the block or collecting it."""
        path = fresh()
        with session.exec_stream("sh", ["-c", 'touch "$1"; cat', "sh", path], stdin=True) as stream:
            wait_for_file(session, path)

            def body(tell: Callable[[str], None]) -> None:
                nonlocal session, stream
                with session:
                    pass
                del stream
                session = None  # type: ignore[assignment]
                gc.collect()
                tell("done")

            with ForkedChild(body) as child:
                assert child.read_line() == "done"
                assert child.wait() == 0
            stream.write(b"still open")
            stream.close_stdin()
            assert stream.wait().stdout == "still open"
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_a_fork_in_the_middle_of_a_command_disturbs_nothing(self, session: Session) -> None:
        """The parent's result is right while a child holds copies of everything."""
        path = fresh()
        running = Background(lambda: sh(session, 'echo one; until [ -e "$1" ]; do sleep 0.01; done; echo two', path))
        with ForkedChild(lambda tell: tell("up")) as child:
            assert child.read_line() == "up"
            session.exec("touch", [path]).check()
            assert running.result().stdout == "one\ntwo\n"

    def test_a_forked_child_makes_a_session_of_its_own(self) -> None:
        """The error's own advice: create a session in the process that uses it."""

        def body(tell: Callable[[str], None]) -> None:
            with self.own_session() as own:
                tell(own.exec("echo", ["own"]).stdout.strip())

        with ForkedChild(body) as child:
            assert child.read_line() == "own"
            assert child.wait() == 0


class Crashes(HostProcess):
    """A host process that is killed."""

    @needs(Feature.CRASH_CLEANUP)
    def test_a_killed_host_process_leaves_nothing(self) -> None:
        """smolagents#2050, OpenHands#4759, SWE-ReX#177: SIGKILL in mid-exec; container and volume gone within 2 s."""
        before, leftovers = self.names(), set(self.leftovers(self.backend))

        def body(tell: Callable[[str], None]) -> None:
            session = self.own_session()
            stream = session.exec_stream("sh", ["-c", "echo up; setsid sleep 1000 & exec sleep 1000"], timeout=600)
            assert isinstance(next(stream), StdoutEvent)
            tell("up")
            stream.wait()

        with ForkedChild(body) as child:
            assert child.read_line() == "up"
            assert len(self.names() - before) == 1, "the container must be seen before its owner is killed"
            os.kill(child.pid, signal.SIGKILL)
            with Stopwatch() as watch:
                wait_until(lambda: self.names() == before, "the container is gone", 10)
                wait_until(lambda: set(self.leftovers(self.backend)) == leftovers, "its volume is gone", 10)
            assert watch.seconds < allowed(2)
            assert child.wait() == -signal.SIGKILL

    @needs(Feature.CRASH_CLEANUP)
    def test_a_host_process_killed_in_mid_flood_leaves_nothing(self) -> None:
        """The same while output waits in every pipe on the way."""
        before = self.names()

        def body(tell: Callable[[str], None]) -> None:
            session = self.own_session()
            stream = session.exec_stream("cat", ["/dev/zero"], timeout=600)
            next(stream)
            tell("up")
            session.exec("cat", ["/dev/zero"], timeout=600)

        with ForkedChild(body) as child:
            assert child.read_line() == "up"
            assert len(self.names() - before) == 1
            os.kill(child.pid, signal.SIGKILL)
            with Stopwatch() as watch:
                wait_until(lambda: self.names() == before, "the container is gone", 10)
            assert watch.seconds < allowed(2)

    @needs(Feature.CRASH_CLEANUP)
    def test_a_run_after_a_killed_one_is_clean(self) -> None:
        """smolagents#2050: killed script, next run clean: the same id can be taken again."""

        def body(tell: Callable[[str], None]) -> None:
            session = self.own_session("again")
            tell(session.id)
            session.exec("sleep", ["1000"], timeout=600)

        with ForkedChild(body) as child:
            assert child.read_line() == "again"
            child.kill()
        wait_until(lambda: not self.backend.list({"sandboxkit.session": "again"}), "the container is gone", 10)
        with self.create(id="again") as session:
            assert sh(session, "ls -A").stdout == ""
