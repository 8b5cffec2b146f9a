"""Commands that are no longer wanted."""

from __future__ import annotations

import threading

import pytest

from sandboxkit import AbortSignal, Session

from ._inside import ESCAPES, fresh, living, sh, wait_for_file, wait_for_pids
from ._suite import Suite
from ._threads import Background, together
from ._watch import Stopwatch, allowed, wait_until


class Aborts(Suite):
    """`abort=` with a plain Event and with an AbortSignal."""

    @pytest.mark.parametrize("kind", [threading.Event, AbortSignal])
    def test_an_abort_set_before_runs_nothing(self, session: Session, kind: type[threading.Event]) -> None:
        """Abort event set, before → aborted=True, exit_code=None."""
        stop, path = kind(), fresh()
        stop.set()
        result = sh(session, 'touch "$1"', path, abort=stop)
        assert (result.aborted, result.timed_out, result.exit_code, result.ok) == (True, False, None, False)
        assert not session.exec("test", ["-e", path]).ok

    @pytest.mark.parametrize("kind", [threading.Event, AbortSignal])
    def test_an_abort_ends_a_command_and_keeps_its_output(self, session: Session, kind: type[threading.Event]) -> None:
        """Abort event set, during → output so far; dead and returned within 50 ms of `set()`."""
        stop, path = kind(), fresh()
        running = Background(
            lambda: sh(session, 'echo out; echo err >&2; echo $$ >"$1"; exec sleep 1000', path, abort=stop)
        )
        pids = wait_for_pids(session, path, 1)
        with Stopwatch() as watch:
            stop.set()
            result = running.result()
        assert watch.seconds < allowed(0.05)
        assert living(session, pids) == []
        assert (result.aborted, result.timed_out, result.exit_code, result.signal) == (True, False, None, "SIGKILL")
        assert (result.stdout_bytes, result.stderr_bytes) == (b"out\n", b"err\n")

    @pytest.mark.parametrize("escape", ESCAPES)
    def test_nothing_gets_away(self, session: Session, escape: str) -> None:
        """A child that ignores SIGTERM, called setsid, double-forked or is stopped dies too."""
        (number, script), stop, path = ESCAPES[escape], threading.Event(), fresh()
        running = Background(lambda: sh(session, script, path, abort=stop))
        pids = wait_for_pids(session, path, number)
        stop.set()
        assert running.result().aborted
        assert living(session, pids) == []

    @pytest.mark.parametrize("kind", [threading.Event, AbortSignal])
    def test_with_a_grace_sigterm_comes_first(self, session: Session, kind: type[threading.Event]) -> None:
        """Kill_grace (0 for an abort unless said)."""
        stop, path = kind(), fresh()
        # No fork after the trap: a copy of the shell would run it as well.
        script = "sleep 100000 & trap 'echo bye; exit 3' TERM; : >\"$1\"; wait"
        running = Background(lambda: sh(session, script, path, abort=stop, kill_grace=60))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            stop.set()
            result = running.result()
        assert (result.aborted, result.exit_code, result.stdout_bytes) == (True, None, b"bye\n")
        assert watch.seconds < allowed(0.05)

    def test_the_grace_of_an_abort_ends_in_sigkill(self, session: Session) -> None:
        """SIGTERM, kill_grace, SIGKILL."""
        stop, path = threading.Event(), fresh()
        script = "trap '' TERM; touch \"$1\"; while :; do sleep 0.01; done"
        running = Background(lambda: sh(session, script, path, abort=stop, kill_grace=0.4))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            stop.set()
            result = running.result()
        assert (result.aborted, result.signal) == (True, "SIGKILL")
        assert 0.35 <= watch.seconds < allowed(0.45)

    def test_an_abort_after_the_end_changes_nothing(self, session: Session) -> None:
        """The result is what happened."""
        stop = threading.Event()
        result = sh(session, "exit 3", abort=stop)
        stop.set()
        assert (result.exit_code, result.aborted) == (3, False)

    def test_an_abort_holds_in_mid_flood(self, session: Session) -> None:
        """Output that never ends does not delay the end."""
        stop, path = threading.Event(), fresh()
        running = Background(lambda: sh(session, 'touch "$1"; cat /dev/zero', path, abort=stop, timeout=60))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            stop.set()
            assert running.result().aborted
        assert watch.seconds < allowed(0.05)

    def test_one_event_ends_a_hundred_commands(self, session: Session) -> None:
        """One event may cancel a hundred commands at once."""
        stop, folder = threading.Event(), fresh("folder")
        session.exec("mkdir", [folder]).check()

        def run(number: int) -> bool:
            script = 'echo $$ >"$1/$2.new"; mv "$1/$2.new" "$1/$2"; exec sleep 1000'
            return sh(session, script, folder, str(number), abort=stop, timeout=120).aborted

        running = Background(lambda: together([lambda number=number: run(number) for number in range(100)]))  # type: ignore[misc]
        pids = wait_until(lambda: _numbers(session, folder, 100), "a hundred commands run", 60)
        assert len(living(session, pids)) == 100
        with Stopwatch() as watch:
            stop.set()
            assert running.result() == [True] * 100
        assert watch.seconds < allowed(2)
        assert living(session, pids) == []

    def test_the_session_is_usable_after_an_abort(self, session: Session) -> None:
        """The session stays usable; fifty times in a row."""
        for number in range(50):
            assert session.exec("sleep", ["1000"], abort=AbortSignal.after(0.001)).aborted
            assert session.exec("echo", [str(number)]).stdout == f"{number}\n"


class AbortSignals(Suite):
    """What an AbortSignal adds."""

    def test_a_signal_after_seconds_ends_a_command_then(self, session: Session) -> None:
        """`AbortSignal.after(seconds)`."""
        with Stopwatch() as watch:
            result = session.exec("sleep", ["1000"], abort=AbortSignal.after(0.3))
        assert result.aborted
        assert 0.3 <= watch.seconds < allowed(0.35)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_any_of_several_ends_a_command(self, session: Session, which: int) -> None:
        """`AbortSignal.any(...)`, of signals and of plain Events."""
        sources, path = (AbortSignal(), threading.Event(), AbortSignal()), fresh()
        either = AbortSignal.any(*sources)
        running = Background(lambda: sh(session, 'touch "$1"; exec sleep 1000', path, abort=either))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            sources[which].set()
            assert running.result().aborted
        assert watch.seconds < allowed(0.05)
        assert either.is_set()

    def test_the_reason_is_told(self, session: Session) -> None:
        """AbortSignal with a reason."""
        first, second = AbortSignal(), AbortSignal()
        either = AbortSignal.any(first, second)
        second.set("the user left")
        assert session.exec("true", abort=either).aborted
        assert either.reason == "the user left"

    def test_its_callbacks_are_called_once(self, session: Session) -> None:
        """AbortSignal with callbacks."""
        stop, calls = AbortSignal(), []
        stop.add_callback(lambda: calls.append("called"))
        for _ in range(10):
            assert session.exec("true", abort=stop).ok
        stop.set()
        assert calls == ["called"]
        assert session.exec("true", abort=stop).aborted


def _numbers(session: Session, folder: str, number: int) -> list[int]:
    # The numbers in that many files, or none.
    result = sh(session, 'cd "$1" && ls | grep -vc new; cat $(ls | grep -v new)', folder)
    lines = [int(line) for line in result.stdout.split()]
    return lines[1:] if lines and lines[0] == number else []
