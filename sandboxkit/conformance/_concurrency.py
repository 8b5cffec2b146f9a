"""Many at once, and many in a row."""

from __future__ import annotations

import os
import threading

import pytest

from sandboxkit import Session, SessionBusyError
from sandboxkit.backend import Feature

from ._inside import process_count, sh
from ._streams import output
from ._suite import POOLED_SOCKETS, Suite, Trait, needs
from ._threads import Background, together
from ._watch import Stopwatch, allowed, host_processes, open_files, thread_names, wait_until

EXECS = int(os.environ.get("SANDBOXKIT_TEST_EXECS", "100"))
"""Commands that each of 64 threads runs."""


CYCLES = int(os.environ.get("SANDBOXKIT_TEST_CYCLES", "20"))
"""How many sessions are made and destroyed."""


class Concurrency(Suite):
    """Any number of threads on one session."""

    def test_64_threads_run_100_commands_each(self, session: Session) -> None:
        """Every result of 64 threads x 100 execs in one session is right. Dial: SANDBOXKIT_TEST_EXECS."""

        def work(worker: int) -> int:
            right = 0
            for number in range(EXECS):
                text = f"{worker} {number}\n"
                result = session.exec("cat", input=text.encode(), timeout=60)
                right += (result.stdout, result.stderr, result.exit_code) == (text, "", 0)
            return right

        assert together([lambda n=n: work(n) for n in range(64)]) == [EXECS] * 64  # type: ignore[misc]

    def test_outputs_of_many_commands_never_mix(self, session: Session) -> None:
        """Output interleaved wrongly; here between commands."""

        def work(worker: int) -> bool:
            script = 'i=0; while [ $i -lt 500 ]; do echo "$1 $i"; echo "$1 err $i" >&2; i=$((i+1)); done'
            result = sh(session, script, str(worker), timeout=60)
            return result.stdout == "".join(f"{worker} {n}\n" for n in range(500)) and result.stderr == "".join(
                f"{worker} err {n}\n" for n in range(500)
            )

        assert together([lambda n=n: work(n) for n in range(12)]) == [True] * 12  # type: ignore[misc]

    def test_exec_and_streams_mix(self, session: Session) -> None:
        """Both kinds at once, flooding."""

        def stream() -> int:
            return len(output(list(session.exec_stream("head", ["-c", "10000000", "/dev/zero"], timeout=60)))[0])

        def whole() -> int:
            return session.exec("head", ["-c", "10000000", "/dev/zero"], timeout=60).stdout_total_bytes

        assert together([stream, whole] * 4) == [10_000_000] * 8

    def test_a_command_over_the_limit_waits_for_its_turn(self) -> None:
        """Max_concurrent_execs with waiting."""
        with self.create(limits=self.limits(max_concurrent_execs=1)) as session:
            with session.exec_stream("cat", stdin=True) as stream:
                waiting = Background(lambda: session.exec("echo", ["its turn"]))
                stream.write(b"x")
                next(stream)
                assert waiting.running
                stream.close_stdin()
                stream.wait()
            assert waiting.result().stdout == "its turn\n"

    def test_over_the_limit_an_error_is_raised_where_that_is_wanted(self) -> None:
        """When_busy="error": a clear error."""
        with self.create(limits=self.limits(max_concurrent_execs=1, when_busy="error")) as session:
            with session.exec_stream("cat", stdin=True) as stream:
                with pytest.raises(SessionBusyError, match="max_concurrent_execs") as caught:
                    session.exec("true")
                assert caught.value.retryable
                stream.close_stdin()
                stream.wait()
            assert session.exec("true").ok

    def test_waiting_for_a_turn_ends_at_the_timeout(self) -> None:
        """Within its own timeout."""
        with self.create(limits=self.limits(max_concurrent_execs=1)) as session, session.exec_stream("cat", stdin=True):
            with Stopwatch() as watch, pytest.raises(SessionBusyError, match="max_concurrent_execs"):
                session.exec("true", timeout=0.3)
            assert 0.3 <= watch.seconds < allowed(0.35)

    def test_waiting_for_a_turn_ends_at_an_abort(self) -> None:
        """An abort is an abort: nothing ran."""
        with self.create(limits=self.limits(max_concurrent_execs=1)) as session, session.exec_stream("cat", stdin=True):
            stop = threading.Event()
            waiting = Background(lambda: session.exec("true", abort=stop))
            assert waiting.running
            stop.set()
            result = waiting.result()
            assert (result.aborted, result.exit_code) == (True, None)

    def test_more_commands_at_once_than_may_run_all_finish(self) -> None:
        """Every turn is given back, also by those that time out or are aborted."""
        with self.create(limits=self.limits(max_concurrent_execs=3)) as session:

            def work(number: int) -> bool:
                if number % 3 == 0:
                    return session.exec("sleep", ["1000"], timeout=0.05, kill_grace=0).timed_out
                return session.exec("echo", [str(number)], timeout=60).stdout == f"{number}\n"

            # Those that wait longer than their own short timeout are told so: they are retried.
            def stubborn(number: int) -> bool:
                while True:
                    try:
                        return work(number)
                    except SessionBusyError:
                        continue

            assert together([lambda n=n: stubborn(n) for n in range(24)]) == [True] * 24  # type: ignore[misc]


class ManyInARow(Suite):
    """What must stay flat."""

    @staticmethod
    def are_flat(files: tuple[list[str], int], threads: list[str]) -> None:
        """No more is held than before; what another test let go of may be closed meanwhile."""
        now = open_files()
        assert now[0] == files[0]
        assert now[1] <= files[1]
        assert thread_names() == threads

    def test_500_commands_leave_files_and_threads_flat(self, session: Session) -> None:
        """OpenHands#4538: 500 execs, open files flat."""
        session.exec("true").check()
        files, threads = open_files(), thread_names()
        for number in range(500):
            result = session.exec("echo", [str(number)])
            assert result.stdout == f"{number}\n"
        self.are_flat(files, threads)

    def test_500_streams_leave_files_and_threads_flat(self, session: Session) -> None:
        """The same for streams, read to the end or not."""
        files, threads = open_files(), thread_names()
        for number in range(500):
            with session.exec_stream("echo", ["x"]) as stream:
                if number % 2:
                    list(stream)
        self.are_flat(files, threads)

    def test_200_commands_add_no_process_to_the_host(self, session: Session) -> None:
        """podman#15377: an engine's own exec leaves two processes for five minutes each: here there are none."""
        session.exec("true").check()
        before = len(host_processes())
        for _ in range(200):
            session.exec("true").check()
        assert len(host_processes()) - before < 100  # others work on the host as well; the engine's own would be 400

    def test_many_sessions_in_a_row_leave_nothing(self) -> None:
        """What each brought goes with it, on the engine and in this process. Dial: SANDBOXKIT_TEST_CYCLES."""
        self.create().destroy()
        leftovers, threads = set(self.leftovers(self.backend)), thread_names()
        files, sockets = open_files()
        sandbox = self.sandbox()
        for number in range(CYCLES):
            with sandbox.create_session() as session:
                assert session.exec("echo", [str(number)]).stdout == f"{number}\n"
        assert set(self.leftovers(self.backend)) == leftovers
        after = open_files()
        assert after[0] == files
        assert after[1] <= sockets + POOLED_SOCKETS
        assert thread_names() == threads

    @needs(Trait.OWN_PROCESSES)
    def test_200_commands_add_no_process_inside(self, session: Session) -> None:
        """OpenHands#11801: no zombies, no supervisors left."""
        before = process_count(session)
        for number in range(200):
            sh(session, "(exit 3) & setsid true & true")
            session.exec("no-such-program" if number % 2 else "true")
        wait_until(lambda: process_count(session) <= before, "all of them are gone")

    @needs(Feature.CRASH_CLEANUP)
    def test_three_sessions_in_a_row_leave_files_and_threads_flat(self) -> None:
        """A session gives everything back."""
        self.create().destroy()
        files, threads = open_files()[0], thread_names()
        for _ in range(3):
            session = self.create()
            session.exec("true").check()
            session.destroy()
        assert open_files()[0] == files
        assert thread_names() == threads
