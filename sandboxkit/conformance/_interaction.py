"""Talking with a command: its input while it runs, a terminal, callbacks."""

from __future__ import annotations

import threading

import pytest

from sandboxkit import ProcessError, Session

from ._inside import fresh, living, read, sh, wait_for_pids
from ._streams import output, script
from ._suite import Suite
from ._threads import Background
from ._watch import BEGUN, Stopwatch, allowed


class OpenInput(Suite):
    """`exec_stream(..., stdin=True)`."""

    def test_what_is_written_is_read_to_the_closing(self, session: Session) -> None:
        """`.write(bytes)`, `.close_stdin()`."""
        with session.exec_stream("cat", stdin=True) as stream:
            stream.write(b"one ")
            stream.write(b"")
            stream.write(bytearray(b"two "))
            stream.write(memoryview(b"three"))
            stream.close_stdin()
            stream.close_stdin()
            assert stream.wait().stdout_bytes == b"one two three"

    def test_a_large_write_is_read_whole(self, session: Session) -> None:
        """A write waits as a pipe would."""
        with session.exec_stream("wc", ["-c"], stdin=True) as stream:
            stream.write(bytes(5_000_000))
            stream.close_stdin()
            assert int(stream.wait().stdout) == 5_000_000

    def test_a_write_waits_for_the_command_to_read(self, session: Session) -> None:
        """Backpressure this way too: nothing piles up on the host."""
        path = fresh()
        with script(session, 'until [ -e "$1" ]; do sleep 0.01; done; exec wc -c', path, stdin=True) as stream:
            writing = Background(lambda: stream.write(bytes(5_000_000)))
            assert session.exec("sleep", ["0.2"]).ok
            assert writing.running
            session.exec("touch", [path]).check()
            writing.result()
            stream.close_stdin()
            assert int(stream.wait().stdout) == 5_000_000

    def test_without_a_writer_the_command_waits(self, session: Session) -> None:
        """The input stays open."""
        stream = session.exec_stream("cat", stdin=True, timeout=0.3)
        assert stream.wait().timed_out

    def test_writing_to_a_command_that_has_ended_is_an_error(self, session: Session) -> None:
        """A command that has gone raises a clear error, not SIGPIPE."""
        stream = session.exec_stream("true", stdin=True)
        assert stream.wait().exit_code == 0
        with pytest.raises(ProcessError, match="ended"):
            stream.write(b"x")
        stream.close_stdin()

    def test_a_write_that_waits_is_an_error_when_the_command_ends(self, session: Session) -> None:
        """The same in mid-write."""
        path = fresh()
        with script(session, 'until [ -e "$1" ]; do sleep 0.01; done', path, stdin=True) as stream:
            writing = Background(lambda: stream.write(bytes(5_000_000)))
            session.exec("touch", [path]).check()
            with pytest.raises(ProcessError, match="ended"):
                writing.result()

    def test_writing_after_the_closing_is_an_error(self, session: Session) -> None:
        """A clear error, not silence."""
        with session.exec_stream("cat", stdin=True) as stream:
            stream.close_stdin()
            with pytest.raises(ProcessError):
                stream.write(b"x")

    def test_a_command_that_closed_its_input_takes_writes_in_silence(self, session: Session) -> None:
        """PROTOCOL 5.2: no error while the command runs: what it will not read is dropped."""
        with script(session, "exec <&-; echo closed; sleep 0.3; exit 3", stdin=True) as stream:
            next(stream)
            stream.write(bytes(1_000_000))
            assert stream.wait().exit_code == 3


class Terminals(Suite):
    """`tty=True`."""

    def test_a_command_has_a_terminal(self, session: Session) -> None:
        """For programs that insist on a terminal; the streams merge."""
        events = list(script(session, "test -t 0 && test -t 1 && test -t 2 && echo yes; echo err >&2", tty=True))
        assert output(events) == (b"yes\r\nerr\r\n", b"")

    def test_without_tty_there_is_none(self, session: Session) -> None:
        """The default is plain pipes."""
        assert sh(session, "test -t 0 || test -t 1 || test -t 2 || echo none").stdout == "none\n"

    def test_the_terminal_has_the_size_asked_for(self, session: Session) -> None:
        """Rows and columns."""
        assert output(list(session.exec_stream("stty", ["size"], tty=True)))[0] == b"24 80\r\n"
        assert output(list(session.exec_stream("stty", ["size"], tty=True, rows=50, columns=132)))[0] == b"50 132\r\n"

    def test_resize_is_told_to_the_command(self, session: Session) -> None:
        """`resize(rows, cols)`: SIGWINCH, and the new size is in force."""
        text = "sleep 100000 & trap 'stty size; kill $!; exit 3' WINCH; echo ready; wait"
        with script(session, text, tty=True) as stream:
            assert output([next(stream)])[0] == b"ready\r\n"
            stream.resize(11, 222)
            assert output([next(stream)])[0] == b"11 222\r\n"
            assert stream.wait().exit_code == 3

    def test_typed_lines_are_echoed_and_read(self, session: Session) -> None:
        """A terminal's own line editing."""
        with script(session, "read line; echo got $line", tty=True, stdin=True) as stream:
            stream.write(b"hello\n")
            out, _ = output(list(stream))
        assert out == b"hello\r\ngot hello\r\n"

    def test_typed_ctrl_c_interrupts_the_command(self, session: Session) -> None:
        """The terminal is the command's controlling one."""
        with script(session, "echo ready; exec sleep 1000", tty=True, stdin=True) as stream:
            assert output([next(stream)])[0] == b"ready\r\n"
            stream.write(b"\x03")
            result = stream.wait()
        assert (result.exit_code, result.signal) == (130, "SIGINT")

    def test_typed_ctrl_d_is_end_of_file(self, session: Session) -> None:
        """And so is close_stdin."""
        for end in ("type", "close"):
            with session.exec_stream("cat", tty=True, stdin=True) as stream:
                stream.write(b"x\n\x04" if end == "type" else b"x\n")
                if end == "close":
                    stream.close_stdin()
                result = stream.wait()
            assert (result.exit_code, result.timed_out) == (0, False), end
            assert result.stdout_bytes.startswith(b"x\r\nx\r\n"), end

    def test_a_command_with_a_terminal_can_be_killed(self, session: Session) -> None:
        """Timeouts and aborts hold as everywhere, and what was shown is kept."""
        path = fresh()
        stream = script(
            session, 'echo $$ >"$1"; echo hi; setsid sleep 1000 & exec sleep 1000', path, tty=True, timeout=60
        )
        pids = wait_for_pids(session, path, 1)
        stream.kill()
        result = stream.wait()
        assert living(session, pids) == []
        assert (result.aborted, result.stdout_bytes) == (True, b"hi\r\n")


class Callbacks(Suite):
    """`on_stdout` and `on_stderr`."""

    def test_callbacks_get_the_text_and_the_result_is_whole(self, session: Session) -> None:
        """`on_stdout` / `on_stderr` callbacks on `exec`."""
        out, err = list[str](), list[str]()
        result = sh(session, "echo é; echo err >&2; exit 3", on_stdout=out.append, on_stderr=err.append)
        assert ("".join(out), "".join(err)) == ("é\n", "err\n")
        assert (result.stdout, result.stderr, result.exit_code) == ("é\n", "err\n", 3)

    def test_one_callback_will_do(self, session: Session) -> None:
        """The other stream is kept as ever."""
        out = list[str]()
        result = sh(session, "echo out; echo err >&2", on_stdout=out.append)
        assert ("".join(out), result.stderr) == ("out\n", "err\n")

    def test_callbacks_run_on_the_calling_thread(self, session: Session) -> None:
        """ipykernel#1186: prints from other threads land in the wrong cell."""
        threads = set[int]()

        def note(text: str) -> None:
            threads.add(threading.get_ident())

        sh(session, "echo a; echo b >&2", on_stdout=note, on_stderr=note).check()
        assert threads == {threading.get_ident()}

    def test_callbacks_come_while_the_command_runs(self, session: Session) -> None:
        """The callback's own doing lets the command go on."""
        path = fresh()
        result = sh(
            session,
            'echo hi; until [ -e "$1" ]; do sleep 0.01; done; exit 3',
            path,
            on_stdout=lambda _: session.exec("touch", [path]).check(),
            timeout=30,
        )
        assert result.exit_code == 3

    def test_characters_given_to_callbacks_are_never_split(self, session: Session) -> None:
        """pipeline-runner#88."""
        out = list[str]()
        sh(session, "printf '\\303'; sleep 0.05; printf '\\251'", on_stdout=out.append).check()
        assert out == ["é"]

    def test_an_error_in_a_callback_kills_the_command_and_propagates(self, session: Session) -> None:
        """An exception in a callback kills the command and propagates."""
        path = fresh()

        def fail(text: str) -> None:
            raise RuntimeError(text)

        with pytest.raises(RuntimeError, match="hi"):
            sh(session, 'echo $$ >"$1"; echo hi; exec sleep 1000', path, on_stdout=fail)
        assert living(session, [int(read(session, path))]) == []

    def test_a_slow_callback_loses_nothing(self, session: Session) -> None:
        """Backpressure, as in a stream."""
        sizes = list[int]()

        def slow(text: str) -> None:
            if not sizes:
                session.exec("sleep", ["0.2"]).check()
            sizes.append(len(text))

        session.exec("head", ["-c", "5000000", "/dev/zero"], on_stdout=slow).check()
        assert sum(sizes) == 5_000_000

    def test_a_timeout_holds_with_callbacks(self, session: Session) -> None:
        """As without."""
        out = list[str]()
        with Stopwatch() as watch:
            result = sh(session, "echo hi; exec sleep 1000", on_stdout=out.append, timeout=BEGUN)
        assert (result.timed_out, out) == (True, ["hi\n"])
        assert watch.seconds < allowed(BEGUN + 0.05)
