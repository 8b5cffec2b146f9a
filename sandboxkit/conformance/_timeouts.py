"""Commands that take too long."""

from __future__ import annotations

import math

import pytest

from sandboxkit import Session
from sandboxkit.errors import ConfigError

from ._inside import ALL_ESCAPES, ESCAPE_SCRIPTS, fresh, living, sh, wait_for_pids
from ._suite import Suite
from ._threads import Background
from ._watch import BEGUN, HORIZON, Stopwatch, allowed


class Timeouts(Suite):
    """`timeout` and `kill_grace`."""

    def test_a_timeout_keeps_the_output_so_far(self, session: Session) -> None:
        """inspect_ai#1979, SWE-ReX#29: partial output is kept; exit_code is None."""
        result = sh(session, "echo out; echo err >&2; sleep 1000", timeout=BEGUN)
        assert (result.timed_out, result.aborted, result.exit_code, result.ok) == (True, False, None, False)
        assert (result.stdout_bytes, result.stderr_bytes) == (b"out\n", b"err\n")
        assert BEGUN <= result.duration <= allowed(BEGUN + 0.05)

    def test_a_timeout_leaves_no_process(self, session: Session) -> None:
        """inspect_ai#2779 and #4971, E2B#500, llm-sandbox#43: all were alive, and all are gone when exec returns."""
        path = fresh()
        number, script = ALL_ESCAPES
        running = Background(lambda: sh(session, script, path, *ESCAPE_SCRIPTS, timeout=HORIZON, kill_grace=0.1))
        pids = wait_for_pids(session, path, number)
        result = running.result()
        assert living(session, pids) == []
        assert (result.timed_out, result.background_pids) == (True, ())

    def test_a_busy_loop_ends_at_its_timeout(self, session: Session) -> None:
        """inspect_ai#1585: a busy loop ends within timeout + grace."""
        with Stopwatch() as watch:
            result = sh(session, "while :; do :; done", timeout=0.3, kill_grace=0.2)
        assert (result.timed_out, result.exit_code, result.signal) == (True, None, "SIGTERM")
        assert watch.seconds < allowed(0.55)

    def test_sigterm_comes_first_and_a_command_may_finish(self, session: Session) -> None:
        """SIGTERM, grace, SIGKILL. What it says after SIGTERM is kept, and the grace is not sat out."""
        script = "sleep 100000 & trap 'echo bye; exit 3' TERM; echo hi; wait"
        with Stopwatch() as watch:
            result = sh(session, script, timeout=BEGUN, kill_grace=60)
        assert (result.timed_out, result.exit_code, result.stdout_bytes) == (True, None, b"hi\nbye\n")
        assert watch.seconds < allowed(BEGUN + 0.05)

    def test_the_whole_tree_gets_sigterm(self, session: Session) -> None:
        """For the whole tree, not for the leader alone."""
        script = "sh -c 'sleep 100000 & trap \"echo child; exit\" TERM; wait' & trap : TERM; wait; wait; echo leader"
        result = sh(session, script, timeout=HORIZON, kill_grace=60)
        assert result.timed_out
        assert sorted(result.stdout.splitlines()) == ["child", "leader"]

    def test_children_of_a_leader_that_ends_by_sigterm_get_it_too(self, session: Session) -> None:
        """The leader may be gone before its children are looked for: they must not sit out the grace. Tried often."""
        with Stopwatch() as watch:
            for _ in range(30):
                result = sh(session, "sleep 100000 & trap 'exit 3' TERM; wait", timeout=0.02, kill_grace=60)
                assert result.timed_out
        assert watch.seconds < 30 * allowed(0.1)

    def test_what_ignores_sigterm_is_killed_after_the_grace(self, session: Session) -> None:
        """Never later than timeout + kill_grace + 50 ms; and not before the grace."""
        with Stopwatch() as watch:
            result = sh(session, "trap '' TERM; while :; do sleep 0.01; done", timeout=BEGUN, kill_grace=0.5)
        assert (result.timed_out, result.signal) == (True, "SIGKILL")
        assert BEGUN + 0.5 <= watch.seconds < allowed(BEGUN + 0.55)

    def test_the_grace_is_two_seconds_unless_said(self, session: Session) -> None:
        """`kill_grace` (default 2 s for a timeout)."""
        with Stopwatch() as watch:
            result = sh(session, "trap '' TERM; while :; do sleep 0.01; done", timeout=BEGUN)
        assert result.timed_out
        assert BEGUN + 2 <= watch.seconds < allowed(BEGUN + 2.05)

    def test_without_grace_sigkill_comes_at_once(self, session: Session) -> None:
        """Kill_grace=0: no trap runs."""
        script = "sleep 100000 & trap 'echo bye; exit 3' TERM; echo hi; wait"
        with Stopwatch() as watch:
            result = sh(session, script, timeout=BEGUN, kill_grace=0)
        assert (result.timed_out, result.signal, result.stdout_bytes) == (True, "SIGKILL", b"hi\n")
        assert watch.seconds < allowed(BEGUN + 0.05)

    def test_a_timeout_holds_in_mid_flood(self, session: Session) -> None:
        """Output that never ends does not delay the end."""
        with Stopwatch() as watch:
            result = session.exec("cat", ["/dev/zero"], timeout=BEGUN, kill_grace=0)
        assert result.timed_out
        assert result.stdout_total_bytes > 1024 * 1024
        assert watch.seconds < allowed(BEGUN + 0.05)

    def test_a_child_in_the_background_does_not_outlive_its_commands_timeout(self, session: Session) -> None:
        """daytona#2602: what was started in the background before the timeout is part of the tree."""
        result = sh(session, "setsid sleep 1000 & echo $!; exec sleep 1000", timeout=BEGUN, kill_grace=0)
        assert result.timed_out
        assert living(session, [int(result.stdout)]) == []

    def test_a_command_that_ends_in_time_is_not_timed_out(self, session: Session) -> None:
        """The flag is the agent's word, not a guess of the clock's."""
        result = sh(session, "sleep 0.1; exit 3", timeout=60)
        assert (result.timed_out, result.exit_code) == (False, 3)

    def test_a_tiny_timeout_is_a_timeout(self, session: Session) -> None:
        """Rounded up, never to "none"."""
        result = session.exec("sleep", ["1000"], timeout=0.0001)
        assert (result.timed_out, result.exit_code) == (True, None)

    def test_the_sessions_timeout_holds_when_a_call_names_none(self) -> None:
        """`timeout` applies when a call names none."""
        with self.create(limits=self.limits(timeout=0.3)) as session:
            assert session.exec("sleep", ["1000"]).timed_out
            assert session.exec("sleep", ["0.5"], timeout=60).exit_code == 0

    def test_max_timeout_is_the_ceiling(self) -> None:
        """Trusted code above it gets ConfigError, and it holds where nothing else does."""
        with self.create(limits=self.limits(timeout=None, max_timeout=BEGUN)) as session:
            assert session.exec("sleep", ["1000"]).timed_out
            for timeout in (BEGUN + 0.01, math.inf):
                with pytest.raises(ConfigError, match=r"^timeout is"):
                    session.exec("true", timeout=timeout)
            assert session.exec("sleep", ["0"], timeout=BEGUN).exit_code == 0

    def test_without_any_timeout_a_command_runs_on(self) -> None:
        """None means no bound of ours; infinity says so for one call."""
        with self.create(limits=self.limits(timeout=None)) as session:
            assert session.exec("sleep", ["0.4"]).exit_code == 0
        with self.create(limits=self.limits(timeout=0.1)) as session:
            assert session.exec("sleep", ["0.4"], timeout=math.inf).exit_code == 0

    def test_the_session_is_usable_after_a_timeout(self, session: Session) -> None:
        """Twenty times in a row."""
        for number in range(20):
            assert session.exec("sleep", ["1000"], timeout=0.001, kill_grace=0).timed_out
            assert session.exec("echo", [str(number)]).stdout == f"{number}\n"
