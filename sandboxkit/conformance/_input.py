"""What a command reads."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import pytest

from sandboxkit import Session
from sandboxkit.errors import ConfigError

from ._inside import fresh, living, sh, wait_for_pids
from ._suite import Suite
from ._threads import Background
from ._watch import PeakMemory, Stopwatch, allowed

MIB = 1024 * 1024


class Blocks(Iterator[bytes]):
    """Blocks of zeros that counts how many were asked for."""

    def __init__(self, number: int, size: int = 64 * 1024) -> None:
        self.left = number
        self.taken = 0
        self._block = bytes(size)

    def __next__(self) -> bytes:
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.taken += 1
        return self._block


class Input(Suite):
    """`input=` of every kind, read, half read and not read."""

    @pytest.mark.parametrize(
        "source",
        [b"a\0b\xff\n", bytearray(b"a\0b\xff\n"), memoryview(b"a\0b\xff\n")],
        ids=["bytes", "bytearray", "memoryview"],
    )
    def test_bytes_arrive_exactly(self, session: Session, source: bytes) -> None:
        """Input."""
        assert session.exec("cat", input=source).stdout_bytes == b"a\0b\xff\n"

    def test_text_arrives_as_utf_8(self, session: Session) -> None:
        """Input."""
        assert session.exec("cat", input="é€😀\n").stdout_bytes == "é€😀\n".encode()

    def test_a_file_arrives_to_its_end(self, session: Session) -> None:
        """`input=` takes a file object."""
        assert session.exec("cat", input=io.BytesIO(b"x" * 200_000)).stdout_bytes == b"x" * 200_000

    def test_an_iterator_arrives_to_its_end(self, session: Session) -> None:
        """`input=` takes an iterator of bytes; empty pieces are no end."""
        pieces = [b"one ", b"", b"two ", bytes(100_000), b" three"]
        assert session.exec("cat", input=iter(pieces)).stdout_bytes == b"".join(pieces)

    @pytest.mark.parametrize("source", [b"", "", io.BytesIO(), iter(())], ids=["bytes", "text", "file", "iterator"])
    def test_empty_input_is_end_of_file(self, session: Session, source: bytes) -> None:
        """daytona#3770: a program that reads an empty stdin gets EOF, not a hang."""
        result = session.exec("cat", input=source, timeout=10)
        assert (result.exit_code, result.stdout_bytes, result.timed_out) == (0, b"", False)

    def test_a_hundred_mebibytes_of_input_arrive(self, session: Session) -> None:
        """Stdin of 100 MiB; from an iterator it passes through flat memory."""
        session.exec("wc", ["-c"], input=Blocks(10)).check()
        with PeakMemory() as memory:
            result = session.exec("wc", ["-c"], input=Blocks(1600), timeout=120)
        assert int(result.check().stdout) == 100 * MIB
        assert memory.growth <= 16 * MIB

    def test_input_and_output_of_any_size_do_not_deadlock(self, session: Session) -> None:
        """Writing much without reading deadlocks: both ways are pumped."""
        result = session.exec("cat", input=bytes(20 * MIB), timeout=120)
        assert (result.exit_code, result.stdout_total_bytes) == (0, 20 * MIB)

    def test_input_that_is_never_read_is_no_error(self, session: Session) -> None:
        """Stdin never read, and larger than the pipe: no deadlock, no error."""
        with Stopwatch() as watch:
            result = sh(session, "echo hi; exit 3", input=bytes(20 * MIB), timeout=30)
        assert (result.exit_code, result.signal, result.stdout_bytes) == (3, None, b"hi\n")
        assert watch.seconds < allowed(1)

    def test_input_is_not_read_further_than_the_command_reads(self, session: Session) -> None:
        """Streams it without reading it all: what the pipes on the way hold, and no more."""
        source, taken = Blocks(1_000_000), list[int]()
        result = sh(
            session,
            "head -c 10 >/dev/null; sleep 0.2; echo now; exit 3",
            input=source,
            on_stdout=lambda _: taken.append(source.taken),
            timeout=60,
        )
        assert result.exit_code == 3
        assert len(taken) == 1
        assert taken[0] <= 16

    def test_a_command_may_end_before_its_input_is_consumed(self, session: Session) -> None:
        """Exit before stdin is consumed."""
        source = Blocks(10_000_000)
        result = session.exec("head", ["-c", "10"], input=source, timeout=30)
        assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (0, bytes(10), b"")
        assert source.left > 0

    def test_a_command_that_closes_its_input_runs_on(self, session: Session) -> None:
        """PROTOCOL 5.2: a command that has closed its input is no error."""
        result = sh(session, "exec <&-; sleep 0.1; echo hi; exit 4", input=bytes(5 * MIB), timeout=30)
        assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (4, b"hi\n", b"")

    def test_an_error_in_the_source_ends_the_command_and_propagates(self, session: Session) -> None:
        """On any exception the tree is dead."""
        path = fresh()
        seen: list[int] = []

        def source() -> Iterator[bytes]:
            yield b"some"
            seen.extend(wait_for_pids(session, path, 1))
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            sh(session, 'echo $$ >"$1"; cat >/dev/null; sleep 1000', path, input=source())
        assert living(session, seen) == []

    def test_text_from_an_iterator_is_refused_and_the_command_ended(self, session: Session) -> None:
        """Text where bytes are needed → ConfigError naming the argument."""
        with pytest.raises(ConfigError, match=r"^input is 'text'"):
            session.exec("cat", input=iter(["text"]))  # type: ignore[arg-type]
        assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_a_timeout_holds_while_input_is_not_read(self, session: Session) -> None:
        """Nothing about the input delays the end."""
        with Stopwatch() as watch:
            result = session.exec("sleep", ["1000"], input=bytes(5 * MIB), timeout=0.3, kill_grace=0)
        assert result.timed_out
        assert watch.seconds < allowed(0.35)

    def test_an_abort_holds_while_a_source_gives_on_and_on(self, session: Session) -> None:
        """A source without end does not starve the abort."""
        stop = threading.Event()
        running = Background(lambda: session.exec("cat", input=Blocks(10**9), abort=stop, timeout=60))
        assert running.running
        stop.set()
        assert running.result().aborted
