"""`exec_stream`: output as it comes."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest

from sandboxkit import AbortSignal, Event, ExecStream, ExitEvent, ProcessError, Session, StderrEvent, StdoutEvent

from ._inside import ALL_ESCAPES, ESCAPE_SCRIPTS, fresh, living, read, sh, shell_args, wait_for_file, wait_for_pids
from ._output import CHARACTERS, FLAT, FLOOD
from ._suite import Suite
from ._threads import Background
from ._watch import BEGUN, HORIZON, PeakMemory, Stopwatch, allowed, wait_until


def script(session: Session, text: str, *args: str, **options: object) -> ExecStream:
    """A stream of a script's output."""
    return session.exec_stream("sh", shell_args(text, *args), **options)  # type: ignore[arg-type]


def output(events: list[Event]) -> tuple[bytes, bytes]:
    """What was written to stdout and to stderr."""
    out = b"".join(event.data for event in events if isinstance(event, StdoutEvent))
    return out, b"".join(event.data for event in events if isinstance(event, StderrEvent))


class Streams(Suite):
    """Events, their order and their end."""

    def test_a_stream_gives_output_and_last_one_exit(self, session: Session) -> None:
        """StdoutEvent, StderrEvent, then one ExitEvent."""
        events = list(script(session, "echo out; echo err >&2; exit 3"))
        assert output(events) == (b"out\n", b"err\n")
        assert [event.type for event in events].count("exit") == 1
        last = events[-1]
        assert isinstance(last, ExitEvent)
        assert (last.result.exit_code, last.result.stdout_bytes, last.result.stderr_bytes) == (3, b"out\n", b"err\n")

    def test_events_have_their_data_as_bytes_and_as_text(self, session: Session) -> None:
        """`.type`, `.data`, `.text`."""
        event = next(script(session, "printf é"))
        assert isinstance(event, StdoutEvent)
        assert (event.type, event.data, event.text) == ("stdout", "é".encode(), "é")

    def test_a_command_without_output_gives_its_exit_alone(self, session: Session) -> None:
        """One ExitEvent."""
        (event,) = session.exec_stream("true")
        assert isinstance(event, ExitEvent)

    def test_the_result_is_the_one_that_exec_gives(self, session: Session) -> None:
        """The same object `exec` would return: caps, totals and flags too."""
        command = shell_args("printf 12345678901; printf err >&2; exit 3")
        plain = session.exec("sh", command, max_output_bytes=10)
        stream = session.exec_stream("sh", command, max_output_bytes=10)
        events = list(stream)
        assert output(events) == (b"12345678901", b"err")
        for name in (
            "stdout_bytes",
            "stderr_bytes",
            "exit_code",
            "signal",
            "stdout_truncated",
            "stdout_total_bytes",
            "command",
            "args",
        ):
            assert getattr(stream.result, name) == getattr(plain, name), name

    def test_after_the_exit_iteration_is_over(self, session: Session) -> None:
        """An iterator stays exhausted."""
        stream = session.exec_stream("echo", ["x"])
        assert stream.result is None
        list(stream)
        assert stream.result is not None
        assert list(stream) == []

    def test_output_comes_while_the_command_runs(self, session: Session) -> None:
        """agent-governance-toolkit#2185: not buffered to the end: each answer is read before the next question."""
        with script(session, "while read line; do echo got $line; done", stdin=True) as stream:
            for number in range(5):
                stream.write(b"%d\n" % number)
                event = next(stream)
                assert isinstance(event, StdoutEvent)
                assert event.data == b"got %d\n" % number
            stream.close_stdin()
            assert stream.wait().exit_code == 0

    def test_the_order_within_each_stream_is_exact(self, session: Session) -> None:
        """Arrival order within a stream is exact."""
        text = "i=0; while [ $i -lt 3000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
        out, err = output(list(script(session, text)))
        assert out == b"".join(b"out %d\n" % number for number in range(3000))
        assert err == b"".join(b"err %d\n" % number for number in range(3000))

    def test_the_order_across_streams_follows_the_command(self, session: Session) -> None:
        """Output interleaved wrongly: what the command wrote after it had been read comes after."""
        with script(session, "echo 1; read x; echo 2 >&2; read x; echo 3", stdin=True) as stream:
            seen: list[bytes] = []
            for event in stream:
                if not isinstance(event, ExitEvent):
                    seen.append(event.data)
                    stream.write(b"\n") if len(seen) < 3 else None
        assert seen == [b"1\n", b"2\n", b"3\n"]

    def test_characters_are_never_split(self, session: Session) -> None:
        """pipeline-runner#88: a character written a byte at a time is one event's."""
        text = "for c in '\\360' '\\237' '\\230' '\\200' '\\303' '\\251' x; do printf \"$c\"; sleep 0.03; done"
        events = list(script(session, text))
        assert output(events)[0] == "😀éx".encode()
        # How many bytes come at once is the machine's business; each event decodes by itself.
        assert "".join(event.data.decode() for event in events if isinstance(event, StdoutEvent)) == "😀éx"

    def test_characters_of_a_flood_are_never_split(self, session: Session) -> None:
        """Multi-byte characters split over frames."""
        events = list(script(session, CHARACTERS))
        texts = [event.text for event in events if isinstance(event, StdoutEvent)]
        assert "".join(texts) == "x" + "€" * 100_000
        assert not any("\ufffd" in text for text in texts)

    def test_invalid_utf_8_is_not_held_back_for_ever(self, session: Session) -> None:
        """Invalid UTF-8: the bytes are exact; half a character at the end comes with the end."""
        events = list(script(session, "printf 'a\\377b\\303'"))
        assert output(events)[0] == b"a\xffb\xc3"
        assert "".join(event.text for event in events if isinstance(event, StdoutEvent)) == "a\ufffdb\ufffd"

    def test_a_background_child_does_not_hold_the_exit(self, session: Session) -> None:
        """moby#33039: a background child holding stdout open."""
        with Stopwatch() as watch:
            result = script(session, "sleep 100 & echo hi").wait()
        assert watch.seconds < allowed(0.05)
        assert (result.exit_code, len(result.background_pids)) == (0, 1)
        sh(session, "kill -9 $1", str(result.background_pids[0])).check()

    def test_wait_reads_what_is_left(self, session: Session) -> None:
        """`wait` drops the events and returns the result."""
        with script(session, "echo 1; head -c 1000000 /dev/zero; exit 3") as stream:
            next(stream)
            result = stream.wait()
            assert (result.exit_code, result.stdout_total_bytes) == (3, 1_000_002)
            assert stream.wait() is result

    def test_a_timeout_ends_a_stream_with_a_result(self, session: Session) -> None:
        """As in exec."""
        events = list(script(session, "echo hi; exec sleep 1000", timeout=BEGUN))
        last = events[-1]
        assert isinstance(last, ExitEvent)
        assert (last.result.timed_out, last.result.exit_code, last.result.stdout_bytes) == (True, None, b"hi\n")

    def test_an_abort_ends_a_stream_with_a_result(self, session: Session) -> None:
        """As in exec."""
        stop, seen = threading.Event(), []
        for event in script(session, "echo hi; exec sleep 1000", abort=stop):
            seen.append(event)
            stop.set()
        assert output(seen) == (b"hi\n", b"")
        assert isinstance(seen[-1], ExitEvent)
        assert (seen[-1].result.aborted, seen[-1].result.exit_code) == (True, None)

    def test_an_abort_set_before_gives_an_exit_alone(self, session: Session) -> None:
        """Aborted before: nothing ran."""
        stop, path = threading.Event(), fresh()
        stop.set()
        (event,) = session.exec_stream("touch", [path], abort=stop)
        assert isinstance(event, ExitEvent)
        assert event.result.aborted
        assert not session.exec("test", ["-e", path]).ok

    def test_kill_ends_the_command_and_iteration_goes_on(self, session: Session) -> None:
        """`ExecStream.kill`: to its ExitEvent, whose result is `aborted`."""
        stream = script(session, "echo hi; exec sleep 1000")
        next(stream)
        stream.kill()
        (event,) = stream
        assert isinstance(event, ExitEvent)
        assert (event.result.aborted, event.result.exit_code, event.result.signal) == (True, None, "SIGKILL")

    def test_a_kill_cuts_the_grace_of_a_timeout_short(self, session: Session) -> None:
        """PROTOCOL 5.4: a KILL during the grace of another end shortens it."""
        text = "sleep 100000 & trap 'echo term' TERM; wait; exec sleep 100000"
        with script(session, text, timeout=BEGUN, kill_grace=60) as stream:
            event = next(stream)
            assert isinstance(event, StdoutEvent)
            with Stopwatch() as watch:
                stream.kill()
                result = stream.wait()
            assert watch.seconds < allowed(0.05)
        assert (result.timed_out or result.aborted, result.exit_code, result.signal) == (True, None, "SIGKILL")

    def test_a_stream_can_be_read_on_another_thread(self, session: Session) -> None:
        """Also usable from another thread than the one that made it."""
        stream = session.exec_stream("seq", ["10000"])
        first = next(stream)
        assert isinstance(first, StdoutEvent)
        events = Background(lambda: list(stream)).result()
        assert output([first, *events])[0] == b"".join(b"%d\n" % number for number in range(1, 10_001))


class Backpressure(Suite):
    """A consumer that is slow, or has gone."""

    def blocked(self, session: Session, path: str) -> int:
        """Wait until the command gets no further; how many lines it has written."""
        last = [""]

        def stands() -> bool:
            session.exec("sleep", ["0.1"]).check()
            now = read(session, path)
            stood, last[0] = now == last[0] and now != "", now
            return stood

        wait_until(stands, "the command is blocked", 20)
        return last[0].count("\n")

    def test_a_consumer_that_sleeps_blocks_the_command_and_loses_nothing(self, session: Session) -> None:
        """A slow consumer blocks the command, as a pipe does: no growth, no loss."""
        path = fresh()
        text = 'i=0; while [ $i -lt 500 ]; do head -c 8192 /dev/zero; echo $i >>"$1"; i=$((i+1)); done'
        with script(session, text, path, timeout=120) as stream:
            written = self.blocked(session, path)
            assert 0 < written < 400
            out, _ = output(list(stream))
        assert out == bytes(500 * 8192)

    def test_a_slow_stream_of_a_gibibyte_takes_flat_memory(self, session: Session) -> None:
        """1 GiB through a slow `exec_stream` grows the host process by at most 16 MiB."""
        for _ in session.exec_stream("head", ["-c", "4000000", "/dev/zero"]):
            pass
        total = pauses = 0
        with PeakMemory() as memory:
            for event in session.exec_stream("head", ["-c", str(FLOOD), "/dev/zero"], timeout=300):
                if isinstance(event, StdoutEvent):
                    total += len(event.data)
                    if total >> 27 > pauses:  # eight times in all the consumer stands still
                        pauses += 1
                        session.exec("sleep", ["0.05"]).check()
        assert (total, pauses) == (FLOOD, 8)
        assert memory.growth <= FLAT

    def test_a_stream_that_is_not_read_holds_no_other_command_up(self, session: Session) -> None:
        """A slow exec_stream never stalls another exec."""
        with session.exec_stream("cat", ["/dev/zero"]), session.exec_stream("cat", ["/dev/zero"]):
            for number in range(20):
                assert session.exec("echo", [str(number)]).stdout == f"{number}\n"
            assert session.exec("head", ["-c", "5000000", "/dev/zero"]).stdout_total_bytes == 5_000_000

    def test_a_timeout_kills_although_the_consumer_sleeps(self, session: Session) -> None:
        """The agent keeps the time; the tree is dead while nobody reads."""
        path = fresh()
        stream = script(session, 'echo $$ >"$1"; exec cat /dev/zero', path, timeout=HORIZON, kill_grace=0)
        pids = wait_for_pids(session, path, 1)
        wait_until(lambda: not living(session, pids), "the command is dead", allowed(HORIZON))
        assert stream.wait().timed_out

    def test_an_abort_signal_kills_although_the_consumer_sleeps(self, session: Session) -> None:
        """AbortSignal needs no polling: the thread that sets it sends the kill."""
        stop, path = AbortSignal(), fresh()
        stream = script(session, 'echo $$ >"$1"; exec cat /dev/zero', path, abort=stop)
        pids = wait_for_pids(session, path, 1)
        with Stopwatch() as watch:
            stop.set()
            wait_until(lambda: not living(session, pids), "the command is dead")
        assert watch.seconds < allowed(0.05)
        assert stream.wait().aborted

    @pytest.mark.parametrize("way", ["close", "with", "exception", "break"])
    def test_leaving_a_stream_kills_the_tree(self, session: Session, way: str) -> None:
        """Leaving the loop early kills the command: all were seen alive, all are gone."""
        path = fresh()
        number, text = ALL_ESCAPES
        stream = script(session, "echo hi; " + text, path, *ESCAPE_SCRIPTS)
        pids = wait_for_pids(session, path, number)
        if way == "close":
            stream.close()
            stream.close()
        elif way == "with":
            with stream:
                next(stream)
        elif way == "exception":
            with contextlib.suppress(ZeroDivisionError), stream:
                for _ in stream:
                    raise ZeroDivisionError
        else:
            for _ in stream:
                break
            del stream
            gc.collect()
            wait_until(lambda: not living(session, pids), "the dropped stream's command is dead")
        assert living(session, pids) == []
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_collecting_a_stream_kills_the_tree(self, session: Session) -> None:
        """Garbage collection of the iterator kills the command's tree; here in mid-flood and in a cycle."""
        path = fresh()
        stream = script(session, 'echo $$ >"$1"; exec cat /dev/zero', path)
        pids = wait_for_pids(session, path, 1)
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle
        gc.collect()
        wait_until(lambda: not living(session, pids), "the command is dead")

    def test_a_closed_stream_has_no_result(self, session: Session) -> None:
        """It was closed before its command ended."""
        stream = session.exec_stream("sleep", ["1000"])
        stream.close()
        assert (stream.result, list(stream)) == (None, [])
        with pytest.raises(ProcessError, match="closed"):
            stream.wait()

    def test_streams_left_early_cost_nothing_in_the_end(self, session: Session) -> None:
        """Each gives its place back: more of them than may run at once."""
        for _ in range(300):
            with session.exec_stream("cat", ["/dev/zero"]) as stream:
                next(stream)
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_a_stream_opened_and_not_read_ends_with_its_file(self, session: Session) -> None:
        """What a command does does not wait for a reader, as long as the pipe holds what it says."""
        path = fresh()
        with script(session, 'echo hi; touch "$1"', path) as stream:
            wait_for_file(session, path)
            assert stream.wait().exit_code == 0
