"""Commands that attack the agent. Only where they can reach nothing else: each needs a PID namespace of its own."""

from __future__ import annotations

import pytest

from sandboxkit import Session
from sandboxkit.backend import Feature

from ._inside import fresh, living, read, sh, wait_for_file, wait_for_pids
from ._suite import Suite, Trait, needs
from ._threads import Background
from ._watch import HORIZON, Stopwatch, allowed


class Hostile(Suite):
    """Every exec ends with a truthful result, and the session goes on."""

    @needs(Trait.OWN_PROCESSES)
    def test_killing_everything_kills_only_commands(self, session: Session) -> None:
        """A command may kill its supervisor and every other command's; it gains nothing."""
        path = fresh()
        other = Background(lambda: sh(session, 'echo $$ >"$1"; exec sleep 1000', path))
        pids = wait_for_pids(session, path, 1)
        result = sh(session, "echo before; kill -9 -1; exec sleep 1000", timeout=30)
        # kill(-1) spares the caller alone; without a supervisor it is an escapee, which the agent kills.
        assert (result.exit_code, result.signal, result.timed_out) == (137, "SIGKILL", False)
        assert result.stdout_bytes == b"before\n"
        assert other.result().signal == "SIGKILL"
        assert living(session, pids) == []
        assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Trait.OWN_PROCESSES)
    def test_killing_everything_again_and_again_changes_nothing(self, session: Session) -> None:
        """The same twenty times, each followed by a command that must be right."""
        for number in range(20):
            sh(session, "setsid sleep 1000 & kill -9 -1", timeout=30)
            assert session.exec("echo", [str(number)]).check().stdout == f"{number}\n"

    @needs(Trait.OWN_PROCESSES)
    def test_a_command_that_kills_its_supervisor_is_ended_with_its_tree(self, session: Session) -> None:
        """A direct child of PID 1 that is no supervisor is an escapee and dies at once."""
        path = fresh()
        script = """
        echo $$ >>"$1"
        setsid sh -c 'echo $$ >>"$1"; exec sleep 1000' sh "$1" &
        until [ -e "$1.go" ]; do sleep 0.01; done
        kill -9 $PPID
        sleep 1000
        """
        running = Background(lambda: sh(session, script, path, timeout=30))
        pids = wait_for_pids(session, path, 2)
        session.exec("touch", [f"{path}.go"]).check()
        result = running.result()
        assert (result.exit_code, result.signal, result.timed_out) == (137, "SIGKILL", False)
        assert living(session, pids) == []

    @needs(Trait.OWN_PROCESSES)
    @pytest.mark.parametrize("signal", ["STOP", "TSTP", "TTIN"])
    def test_a_stopped_supervisor_holds_nothing_up(self, session: Session, signal: str) -> None:
        """A stopped supervisor is continued or its tree killed; either way the timeout holds."""
        with Stopwatch() as watch:
            result = sh(session, f"kill -{signal} $PPID; exec sleep 1000", timeout=0.5, kill_grace=0)
        assert (result.timed_out, result.exit_code, result.signal) == (True, None, "SIGKILL")
        assert watch.seconds < allowed(0.55)
        assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Trait.OWN_PROCESSES)
    def test_a_supervisor_stopped_at_the_end_does_not_lose_the_exit(self, session: Session) -> None:
        """The exec still ends with a truthful result."""
        with Stopwatch() as watch:
            result = sh(session, "echo out; kill -STOP $PPID; exit 5", timeout=30)
        assert (result.stdout_bytes, result.exit_code, result.signal) == (b"out\n", 5, None)
        assert watch.seconds < allowed(1)

    @needs(Trait.OWN_PROCESSES)
    @pytest.mark.parametrize(
        "signal", ["HUP", "INT", "QUIT", "KILL", "TERM", "STOP", "USR1", "PIPE", "CHLD", "SEGV", "WINCH"]
    )
    def test_the_agent_ignores_signals_from_inside(self, session: Session, signal: str) -> None:
        """As PID 1 it ignores what a command may send it."""
        sh(session, f"for i in 1 2 3 4 5; do kill -{signal} 1; done", timeout=30)
        assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Trait.OWN_PROCESSES)
    def test_a_daemon_that_forks_on_and_on_dies(self, session: Session) -> None:
        """Each generation leaves a new session behind and ends: what is listed is gone before it can be killed."""
        path = fresh()
        hop = 'echo x >>"$2"; setsid sh -c "$1" sh "$1" "$2" &'
        script = 'sh -c "$1" sh "$1" "$2"; exec sleep 1000'
        running = Background(lambda: sh(session, script, hop, path, timeout=HORIZON, kill_grace=0))
        wait_for_file(session, path)
        early = len(read(session, path))
        assert running.result().timed_out
        late = len(read(session, path))
        assert late > early, "it must be seen at work before it is killed"
        for _ in range(20):
            session.exec("true").check()
        assert len(read(session, path)) == late

    @needs(Trait.OWN_PROCESSES)
    def test_a_command_that_stops_all_others_stops_nothing(self, session: Session) -> None:
        """kill -STOP -1 reaches every supervisor there is."""
        path = fresh()
        other = Background(lambda: sh(session, 'touch "$1"; exec sleep 1000', path, timeout=2, kill_grace=0))
        wait_for_file(session, path)
        result = sh(session, "kill -STOP -1; exit 3", timeout=10, kill_grace=0)
        assert (result.exit_code, result.signal) == (3, None)
        ended = other.result()  # its own processes were stopped: so it ends at its timeout
        assert (ended.timed_out, ended.exit_code, ended.signal) == (True, None, "SIGKILL")
        assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Trait.OWN_PROCESSES, Feature.ISOLATION)
    def test_the_agents_memory_and_descriptors_are_closed_to_commands(self, session: Session) -> None:
        """It marks itself non-dumpable: a same-uid command cannot read its memory nor take its stream."""
        for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps"):
            result = session.exec("head", ["-c", "1", path])
            assert (result.ok, result.stdout_bytes) == (False, b""), path
        for descriptor in (0, 1, 2):
            result = sh(session, f"printf garbage >/proc/1/fd/{descriptor}")
            assert not result.ok
        assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Trait.OWN_PROCESSES, Feature.ISOLATION)
    def test_the_supervisors_memory_and_descriptors_are_closed_to_commands(self, session: Session) -> None:
        """The same for the process between the agent and the command."""
        for path in ("/proc/$PPID/mem", "/proc/$PPID/environ"):
            result = sh(session, f'head -c 1 "{path}"')
            assert (result.ok, result.stdout_bytes) == (False, b""), path

    def test_bytes_that_look_like_frames_are_only_output(self, session: Session) -> None:
        """The output cannot forge the protocol: an EXIT frame in it is output like any other."""
        frame = b"\x24\0\0\0" + b"\x01\0\0\0" + b"\x16\0\0\0" + bytes(36)
        result = session.exec("cat", input=frame * 1000)
        assert (result.stdout_bytes, result.exit_code) == (frame * 1000, 0)

    def test_a_command_that_closes_everything_still_ends(self, session: Session) -> None:
        """Nothing of the command's descriptors is needed for its end."""
        result = sh(
            session, 'i=0; while [ $i -lt 10 ]; do eval "exec $i<&-" 2>/dev/null; i=$((i+1)); done; exit 6', timeout=10
        )
        assert (result.exit_code, result.signal) == (6, None)
