"""Running one command: exit codes, signals, output, arguments, background children."""

from __future__ import annotations

import pytest

from sandboxkit import Session
from sandboxkit.errors import CommandFailedError

from ._inside import fresh, living, read, sh, wait_for_file
from ._suite import Suite, Trait, needs
from ._threads import Background
from ._watch import Stopwatch, allowed


class Commands(Suite):
    """`exec`: how a command ends and what it says."""

    def test_true_exits_with_0(self, session: Session) -> None:
        """The plainest result of all."""
        result = session.exec("true")
        assert (result.exit_code, result.signal, result.ok) == (0, None, True)
        assert (result.stdout_bytes, result.stderr_bytes) == (b"", b"")
        assert (result.timed_out, result.aborted, result.oom_killed) == (False, False, False)
        assert (result.stdout_truncated, result.stderr_truncated) == (False, False)
        assert (result.command, result.args, result.background_pids) == ("true", (), ())

    @pytest.mark.parametrize("code", [1, 2, 7, 125, 126, 127, 128, 137, 255])
    def test_a_non_zero_exit_is_a_result(self, session: Session, code: int) -> None:
        """Exits non-zero → a result; never an exception."""
        result = sh(session, f"exit {code}")
        assert (result.exit_code, result.signal, result.ok) == (code, None, False)

    def test_check_raises_for_a_result_that_is_not_ok(self, session: Session) -> None:
        """`check()` is how a caller asks for the exception."""
        assert session.exec("true").check().exit_code == 0
        with pytest.raises(CommandFailedError, match="exited with 3: why") as caught:
            sh(session, "echo why >&2; exit 3").check()
        assert caught.value.details["exit_code"] == 3

    @pytest.mark.parametrize(
        ("name", "number"), [("SIGHUP", 1), ("SIGABRT", 6), ("SIGKILL", 9), ("SIGSEGV", 11), ("SIGTERM", 15)]
    )
    def test_a_command_killed_by_a_signal_says_which(self, session: Session, name: str, number: int) -> None:
        """Killed by a signal → exit_code 128+n and its name."""
        result = sh(session, f"kill -{number} $$; sleep 10")
        assert (result.exit_code, result.signal) == (128 + number, name)
        assert (result.timed_out, result.aborted, result.ok) == (False, False, False)

    def test_a_missing_command_is_127_with_the_reason_in_stderr(self, session: Session) -> None:
        """moby#45795: one answer everywhere, on stderr, whatever the engine."""
        for command in ("no-such-program", "/no/such/program", "./no-such-program"):
            result = session.exec(command)
            assert (result.exit_code, result.signal, result.stdout_bytes) == (127, None, b"")
            assert command in result.stderr
            assert result.stderr.count("\n") == 1

    def test_a_file_that_is_not_executable_is_126_with_the_reason_in_stderr(self, session: Session) -> None:
        """Not executable → 126."""
        path = "./" + fresh()
        sh(session, 'echo "echo hello" >"$1"; chmod 644 "$1"', path).check()
        for command in (path, "/"):
            result = session.exec(command)
            assert (result.exit_code, result.signal, result.stdout_bytes) == (126, None, b"")
            assert command in result.stderr

    def test_a_script_without_an_interpreter_line_is_126(self, session: Session) -> None:
        """One executable, never a shell line; so no shell is tried for a file the kernel refuses."""
        path = "./" + fresh()
        sh(session, 'echo "echo hello" >"$1"; chmod 755 "$1"', path).check()
        assert session.exec(path).exit_code == 126

    def test_a_script_with_an_interpreter_line_runs(self, session: Session) -> None:
        """execve(2), as anywhere."""
        path = "./" + fresh()
        sh(session, 'printf \'#!/bin/sh\\necho "<$1>"\\n\' >"$1"; chmod 755 "$1"', path).check()
        assert session.exec(path, ["a b"]).check().stdout == "<a b>\n"

    def test_a_command_is_never_a_shell_line(self, session: Session) -> None:
        """`command` is one executable."""
        result = session.exec("echo hello; true")
        assert (result.exit_code, result.stdout_bytes) == (127, b"")

    def test_shell_runs_a_script(self, session: Session) -> None:
        """The explicit way to run `sh -c`."""
        result = session.shell("for i in 1 2 3; do echo $i; done | tail -1; exit 4")
        assert (result.stdout, result.exit_code, result.command) == ("3\n", 4, "sh")

    def test_stdout_and_stderr_are_kept_apart(self, session: Session) -> None:
        """Separate stdout and stderr."""
        result = sh(session, "echo out; echo err >&2; echo out2; echo err2 >&2")
        assert (result.stdout_bytes, result.stderr_bytes) == (b"out\nout2\n", b"err\nerr2\n")
        assert (result.stdout_total_bytes, result.stderr_total_bytes) == (9, 9)

    def test_the_first_bytes_of_the_output_are_never_lost(self) -> None:
        """llm-sandbox#61, docker-py#2466: the first thing a new session says arrives whole."""
        for _ in range(3):
            with self.create() as session:
                assert session.exec("echo", ["first characters"]).stdout_bytes == b"first characters\n"

    def test_the_same_output_comes_a_hundred_times(self, session: Session) -> None:
        """llm-sandbox#61: lost bytes are a matter of luck, so it is tried often."""
        results = [sh(session, "echo out; echo err >&2") for _ in range(100)]
        assert {(r.stdout_bytes, r.stderr_bytes, r.exit_code) for r in results} == {(b"out\n", b"err\n", 0)}

    def test_a_code_comes_when_nothing_is_written(self, session: Session) -> None:
        """docker-py#2450: a code even when there is no output."""
        assert sh(session, "exit 9").exit_code == 9
        assert sh(session, "exec >&- 2>&-; exit 9").exit_code == 9

    def test_the_exit_code_is_right_a_hundred_times(self, session: Session) -> None:
        """podman#25479: with auto-remove the engine's own answer is 0 half the time."""
        assert {sh(session, "exit 7").exit_code for _ in range(100)} == {7}

    def test_without_input_a_command_reads_end_of_file(self, session: Session) -> None:
        """daytona#3770: a program that reads an empty stdin gets EOF, not a hang."""
        result = session.exec("cat", timeout=5, kill_grace=0)
        assert (result.exit_code, result.stdout_bytes, result.timed_out) == (0, b"", False)

    def test_a_command_that_closes_its_output_runs_on(self, session: Session) -> None:
        """A command that closes stdout and runs on is waited for."""
        path = fresh()
        result = sh(session, 'echo before; exec >&- 2>&-; sleep 0.3; echo done >"$1"; exit 5', path)
        assert (result.exit_code, result.stdout_bytes) == (5, b"before\n")
        assert read(session, path) == "done\n"
        assert result.duration >= 0.3

    def test_nul_bytes_come_through(self, session: Session) -> None:
        """NUL bytes in output."""
        result = sh(session, "printf 'a\\000b\\000'; printf '\\000' >&2")
        assert (result.stdout_bytes, result.stderr_bytes) == (b"a\0b\0", b"\0")
        assert result.stdout == "a\0b\0"

    def test_invalid_utf_8_is_exact_as_bytes_and_replaced_as_text(self, session: Session) -> None:
        """Invalid UTF-8 in output."""
        result = sh(session, "printf 'a\\377b\\303'")
        assert result.stdout_bytes == b"a\xffb\xc3"
        assert result.stdout == "a\ufffdb\ufffd"

    def test_every_byte_value_comes_through(self, session: Session) -> None:
        """No byte means anything to the transport."""
        script = 'i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %03o $i)"; i=$((i+1)); done'
        assert sh(session, script).stdout_bytes == bytes(range(256))

    def test_times_and_memory_are_told(self, session: Session) -> None:
        """Duration, cpu_seconds, max_rss_bytes."""
        idle = session.exec("sleep", ["0.2"])
        assert 0.2 <= idle.duration <= allowed(0.2)
        assert idle.cpu_seconds < 0.1
        assert idle.max_rss_bytes > 4096
        busy = sh(session, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").check()
        assert busy.cpu_seconds > idle.cpu_seconds

    @needs(Trait.OWN_PROCESSES)
    def test_a_command_starts_from_a_clean_state(self, session: Session) -> None:
        """PROTOCOL 5.3: leader of its own session, default signals, an empty mask, descriptors 0, 1 and 2."""
        lines = session.exec("cat", ["/proc/self/status"]).check().stdout.splitlines()
        status = dict(line.split(":", 1) for line in lines)
        for name in ("SigIgn", "SigBlk"):
            assert int(status[name], 16) == 0, name
        # The last is the folder that `ls` reads.
        assert session.exec("ls", ["/proc/self/fd"]).check().stdout.split() == ["0", "1", "2", "3"]
        fields = session.exec("cat", ["/proc/self/stat"]).check().stdout.split()
        assert fields[0] == fields[4] == fields[5]


class BackgroundChildren(Suite):
    """Children that outlive their command."""

    def test_a_background_child_does_not_hold_the_return(self, session: Session) -> None:
        """moby#33039: `sleep 100 & echo hi` returns at once, although the child holds stdout open."""
        with Stopwatch() as watch:
            result = sh(session, "sleep 100 & echo hi")
        assert watch.seconds < allowed(0.05)
        assert (result.exit_code, result.stdout_bytes) == (0, b"hi\n")
        (pid,) = result.background_pids
        assert living(session, [pid]) == [pid]
        sh(session, 'kill -9 "$1"', str(pid)).check()

    def test_every_background_child_is_listed(self, session: Session) -> None:
        """Its pid is listed; those with a session of their own too."""
        result = sh(session, "sleep 100 & echo $!; setsid sleep 100 & echo $!; (setsid sleep 100 &); sleep 0.2")
        told = [int(line) for line in result.stdout.split()]
        assert len(result.background_pids) == 3
        assert set(told) <= set(result.background_pids)
        assert living(session, result.background_pids) == list(result.background_pids)
        sh(session, "kill -9 $*", *map(str, result.background_pids)).check()

    def test_a_background_child_that_writes_is_never_blocked(self, session: Session) -> None:
        """Its output is drained and dropped, so it gets through more than a pipe holds."""
        path = fresh()
        script = 'mkfifo "$1.go"; { read x <"$1.go"; head -c 4000000 /dev/zero; echo done >"$1"; } & echo hi'
        result = sh(session, script, path)
        assert (result.stdout_bytes, len(result.background_pids)) == (b"hi\n", 1)
        sh(session, 'echo >"$1.go"', path).check()
        wait_for_file(session, path)

    def test_a_background_child_reads_nothing_of_later_input(self, session: Session) -> None:
        """The input ends with its command."""
        path = fresh()
        result = sh(session, '{ cat >"$1"; echo end >>"$1"; } <&0 & echo hi', path, input=b"for both")
        assert result.exit_code == 0
        wait_for_file(session, path)
        assert sh(session, 'until grep -q end "$1"; do sleep 0.01; done', path, timeout=10).ok

    def test_a_dead_background_child_leaves_no_zombie(self, session: Session) -> None:
        """OpenHands#11801: zombies are reaped."""
        result = sh(session, "setsid sleep 0.1 & setsid sleep 0.1 & echo hi")
        assert len(result.background_pids) == 2
        wait = 'for pid; do while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done; done'
        assert sh(session, wait, *map(str, result.background_pids), timeout=20).ok

    def test_a_running_command_sees_others_come_and_go(self, session: Session) -> None:
        """Background children of one command are no matter for another."""
        path = fresh()
        waiting = Background(lambda: sh(session, 'until [ -e "$1" ]; do sleep 0.01; done; exit 3', path, timeout=30))
        result = sh(session, "sleep 100 & echo hi")
        sh(session, 'kill -9 "$1"; touch "$2"', str(result.background_pids[0]), path).check()
        assert waiting.result().exit_code == 3

    @needs(Trait.OWN_PROCESSES)
    def test_destroy_ends_background_children(self) -> None:
        """`destroy` ends it; seen by the engine having nothing left of the container."""
        session = self.create()
        result = sh(session, "setsid sleep 1000 & echo hi")
        assert living(session, result.background_pids) == list(result.background_pids)
        with Stopwatch() as watch:
            session.destroy()
        assert watch.seconds < allowed(2)
