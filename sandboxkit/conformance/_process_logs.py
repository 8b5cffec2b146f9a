"""What managed processes write and read: logs by cursor and by tail, `follow`, and input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import AbortSignal, ConfigError, ProcessError, ProcessTimeoutError, Session, StderrEvent, StdoutEvent

from ._managed_processes import reason, start, wait_for_log
from ._suite import Suite
from ._threads import Background, interrupts, together
from ._watch import Stopwatch, allowed, wait_until


class ProcessOutput(Suite):
    """Logs by cursor and by tail, `follow`, and input."""

    def test_logs_are_read_by_cursor(self, session: Session) -> None:
        """Each piece goes on where the one before ended; both streams, in order."""
        process = start(session, "echo one; read x; echo two >&2; read x; echo three", stdin=True)
        wait_for_log(process, "one")
        first = process.logs()
        assert (first.data, first.start, first.next_cursor, first.lost_bytes, first.ended) == (b"one\n", 0, 4, 0, False)
        process.write(b"\n")
        wait_for_log(process, "two")
        second = process.logs(since=first.next_cursor)
        assert (second.text, second.start, second.ended) == ("two\n", 4, False)
        assert process.logs(since=second.next_cursor).data == b""
        process.write(b"\n")
        process.wait(60)
        third = process.logs(since=second.next_cursor)
        assert (third.text, third.next_cursor, third.ended) == ("three\n", 14, True)
        assert process.logs(since=1_000_000).next_cursor == 14
        assert process.logs(max_bytes=5).text == "one\nt"
        assert process.logs(max_bytes=5).ended is False

    def test_a_log_keeps_the_newest_and_counts_what_is_lost(self, session: Session) -> None:
        """A ring of the size that was asked for; it stays after the exit."""
        process = start(session, "seq 1 100000", log_bytes=4096)
        process.wait(60)
        everything = b"".join(b"%d\n" % number for number in range(1, 100_001))
        found = process.logs()
        assert 4000 <= len(found.data) <= 4096
        assert everything.endswith(found.data)
        assert found.lost_bytes == found.start == len(everything) - len(found.data)
        assert (found.next_cursor, found.ended) == (len(everything), True)
        tail = process.logs(tail_bytes=14)
        assert (tail.text, tail.lost_bytes) == ("99999\n100000\n"[-14:], 0) or tail.text.endswith("100000\n")
        assert len(tail.data) <= 14
        stream = process.follow(since=10)
        assert b"".join(event.data for event in stream) == found.data
        assert (stream.lost_bytes, stream.cursor) == (found.start - 10, len(everything))

    def test_characters_are_not_cut(self, session: Session) -> None:
        """A tail begins with a whole one; one that is not whole yet comes later."""
        process = start(session, r"printf 'a\303\251\360\237\246\200\303'; read x; printf '\251z'", stdin=True)
        wait_until(lambda: process.logs(tail_bytes=100).next_cursor == 7, "it has written")
        assert process.logs().text == "aé🦀"
        for size, text in ((1, ""), (2, ""), (4, ""), (5, "🦀"), (6, "🦀"), (7, "é🦀"), (8, "aé🦀")):
            assert process.logs(tail_bytes=size).text.rstrip("\N{REPLACEMENT CHARACTER}") == text
        assert process.logs(max_bytes=6).text == "aé"
        process.write(b"\n")
        process.wait(60)
        assert process.logs(since=7).text == "éz"
        assert "".join(event.text for event in process.follow()) == "aé🦀éz"

    def test_follow_gives_output_as_it_comes_and_ends_with_the_process(self, session: Session) -> None:
        """Events as of exec_stream, and how it ended."""
        process = start(session, "echo one; read x; echo two >&2; exit 3", stdin=True)
        stream = process.follow()
        assert next(stream) == StdoutEvent(b"one\n")
        assert (stream.cursor, stream.exit) == (4, None)
        process.write(b"\n")
        assert list(stream) == [StderrEvent(b"two\n")]
        assert stream.exit is not None
        assert stream.exit.exit_code == 3
        assert b"".join(event.data for event in process.follow(since=4)) == b"two\n"
        assert list(process.follow(since=8)) == []

    def test_follow_of_one_that_writes_nothing_ends_too(self, session: Session) -> None:
        """0 bytes."""
        process = start(session, "exit 0")
        stream = process.follow()
        assert list(stream) == []
        assert (stream.cursor, stream.lost_bytes) == (0, 0)
        assert stream.exit is not None

    def test_leaving_or_aborting_a_follow_leaves_the_process_alone(self, session: Session) -> None:
        """Nor is anything of the followers left."""
        process = start(session, "while :; do echo line; sleep 0.01; done")
        for _ in process.follow():
            break
        with process.follow() as stream:
            next(stream)
        assert list(stream) == []
        for _ in range(300):  # dropped, each ends at once: more would be too many for the agent
            next(process.follow())
        abort = AbortSignal.after(0.2)
        with Stopwatch() as watch:
            stream = process.follow(abort=abort)
            assert all(event.data for event in stream)
        assert 0.1 < watch.seconds < allowed(0.2)
        assert stream.exit is None
        assert process.status == "running"
        process.stop(0)

    def test_a_slow_reader_never_blocks_the_process(self, session: Session) -> None:
        """It is overtaken, and told by how much; every byte is either given out or counted as lost."""
        script = "echo begin; read x; head -c 20000000 /dev/zero; echo end"
        process = start(session, script, stdin=True, log_bytes=65536)
        stream = process.follow()
        first = next(stream)
        process.write(b"\n")
        process.wait(120)
        rest = b"".join(event.data for event in stream)
        assert rest.endswith(b"end\n")
        assert stream.lost_bytes > 0
        assert len(first.data) + len(rest) + stream.lost_bytes == 20_000_010 == stream.cursor

    def test_many_follow_one(self, session: Session) -> None:
        """Each gets everything, whether it comes early or late."""
        process = start(session, "read x; seq 1 50000", stdin=True)
        following = [Background(lambda: b"".join(event.data for event in process.follow())) for _ in range(8)]
        process.write(b"\n")
        expected = b"".join(b"%d\n" % number for number in range(1, 50_001))
        assert [one.result() for one in following] == [expected] * 8

    def test_input_is_written_and_closed(self, session: Session) -> None:
        """More than any pipe holds; and the end of it."""
        process = start(session, "cat; echo; echo done", stdin=True)
        process.write(b"x" * 300_000)
        process.write(b"")
        process.close_stdin()
        process.close_stdin()
        assert process.wait(60).ok
        assert process.logs(tail_bytes=10).text == "xxxx\ndone\n"
        with pytest.raises(ProcessError) as raised:
            process.write(b"x")
        assert reason(raised) == "closed"
        process.close_stdin()

    def test_writes_of_many_threads_do_not_mix(self, session: Session) -> None:
        """Each one's bytes stay together, also beyond one frame."""
        process = start(session, "cat", stdin=True)
        lines = [bytes([65 + number]) * 100_000 + b"\n" for number in range(6)]
        together([lambda line=line: process.write(line) for line in lines])  # type: ignore[misc]
        process.close_stdin()
        process.wait(60)
        assert sorted(process.logs().data.splitlines(keepends=True)) == lines

    def test_one_that_does_not_read_makes_a_write_wait_within_bounds(self, session: Session) -> None:
        """A timeout, an abort, or its end; then the next write works as if nothing had been."""
        process = start(session, "exec sleep 1000", stdin=True)
        with pytest.raises(ProcessTimeoutError):
            process.write(b"x" * 1_000_000, timeout=0.1)
        abort = AbortSignal.after(0.1)
        with pytest.raises(ProcessError) as raised:
            process.write(b"x" * 1_000_000, abort=abort)
        assert reason(raised) == "aborted"
        with interrupts() as interrupt, pytest.raises(KeyboardInterrupt), interrupt.after(0.1):
            process.write(b"x" * 1_000_000)
        waiting = Background(lambda: process.write(b"x" * 1_000_000))
        process.stop(0)
        with pytest.raises(ProcessError) as closed:
            waiting.result()
        assert reason(closed) == "closed"

    def test_one_without_input_reads_its_end_and_refuses_writes(self, session: Session) -> None:
        """As a command of exec."""
        process = start(session, "cat; echo ended")
        assert process.wait(60).ok
        assert process.logs().text == "ended\n"
        with pytest.raises(ProcessError, match="stdin=True"):
            process.write(b"x")

    def test_bad_arguments_are_refused_before_anything_runs(self, session: Session) -> None:
        """ConfigError naming the field."""
        before = session.processes.list()
        start: Any = session.processes.start
        cases: list[tuple[str, Callable[[], object]]] = [
            ("command", lambda: start("")),
            ("command", lambda: start(7)),
            ("args", lambda: start("true", "x")),
            ("env", lambda: start("true", env={"A=B": "x"})),
            ("stdin", lambda: start("true", stdin=b"x")),
            ("name", lambda: start("true", name="")),
            ("name", lambda: start("true", name="x" * 256)),
            ("log_bytes", lambda: start("true", log_bytes=4095)),
            ("log_bytes", lambda: start("true", log_bytes=(16 << 20) + 1)),
            ("log_bytes", lambda: start("true", log_bytes=1e6)),
            ("args", lambda: start("true", ["x" * 100_000] * 3)),
        ]
        for field, call in cases:
            with pytest.raises(ConfigError, match=field):
                call()
        assert session.processes.list() == before
        process: Any = session.processes.start("true")
        for field, call in (
            ("since", lambda: process.logs(since=-1)),
            ("since", lambda: process.follow(since="0")),
            ("tail_bytes", lambda: process.logs(tail_bytes=-1)),
            ("tail_bytes", lambda: process.logs(since=0, tail_bytes=1)),
            ("max_bytes", lambda: process.logs(max_bytes=3)),
            ("data", lambda: process.write("text")),
            ("timeout", lambda: process.write(b"x", timeout=0)),
            ("timeout", lambda: process.wait(-1)),
            ("abort", lambda: process.wait(abort=True)),
            ("grace", lambda: process.stop(-1)),
        ):
            with pytest.raises(ConfigError, match=field):
                call()
