"""What is kept of a command's output, however much it is and however it is written."""

from __future__ import annotations

import pytest

from sandboxkit import Session

from ._inside import fresh, read, sh
from ._suite import Suite
from ._watch import PeakMemory, Stopwatch, allowed

MIB = 1024 * 1024
FLOOD = 1024 * MIB
FLAT = 16 * MIB
"""A 1 GiB flood grows the host process by at most this."""


CHARACTERS = """
printf x
i=0; while [ $i -lt 1000 ]; do s=${s}€; i=$((i+1)); done
i=0; while [ $i -lt 100 ]; do printf %s $s; i=$((i+1)); done
"""
"""Writes 100,000 characters of three bytes at an odd offset."""


def marker(missing: int) -> bytes:
    """The line between head and tail."""
    return b"\n[... %d bytes left out ...]\n" % missing


class Output(Suite):
    """Caps, order, and bytes that are hard to carry."""

    @pytest.mark.parametrize("size", [0, 1, 999, 1000])
    def test_output_up_to_the_cap_is_whole(self, session: Session, size: int) -> None:
        """Exactly at the cap → not truncated."""
        result = sh(session, 'head -c "$1" /dev/zero | tr "\\0" x', str(size), max_output_bytes=1000)
        assert result.stdout_bytes == b"x" * size
        assert (result.stdout_truncated, result.stdout_total_bytes) == (False, size)

    def test_output_over_the_cap_keeps_head_and_tail_with_a_marker_between(self, session: Session) -> None:
        """inspect_ai#1979, daytona#5144: bounded, and both ends are there."""
        result = sh(session, "printf 'abcdefghijk'", max_output_bytes=10)
        assert result.stdout_bytes == b"abcde" + marker(1) + b"ghijk"
        assert (result.stdout_truncated, result.stdout_total_bytes) == (True, 11)
        assert (result.stderr_truncated, result.stderr_total_bytes) == (False, 0)
        assert result.exit_code == 0

    def test_each_stream_has_a_cap_of_its_own(self, session: Session) -> None:
        """`max_output_bytes` a stream."""
        result = sh(session, "printf 1234567890; printf 12345678901 >&2", max_output_bytes=10)
        assert (result.stdout_bytes, result.stdout_truncated) == (b"1234567890", False)
        assert (result.stderr_bytes, result.stderr_truncated) == (b"12345" + marker(1) + b"78901", True)
        assert (result.stdout_total_bytes, result.stderr_total_bytes) == (10, 11)

    def test_a_cap_of_nothing_counts_only(self, session: Session) -> None:
        """The total is counted whatever is kept."""
        result = sh(session, "printf 12345", max_output_bytes=0)
        assert (result.stdout_bytes, result.stdout_truncated, result.stdout_total_bytes) == (marker(5), True, 5)

    def test_a_call_can_narrow_the_cap_and_not_widen_it(self) -> None:
        """Limits compose as min(session, call)."""
        with self.create(limits=self.limits(max_output_bytes=10)) as session:
            assert sh(session, "printf 12345678901", max_output_bytes=4).stdout_bytes == b"12" + marker(7) + b"01"
            assert (
                sh(session, "printf 12345678901", max_output_bytes=99).stdout_bytes == b"12345" + marker(1) + b"78901"
            )
            assert sh(session, "printf 12345678901").stdout_bytes == b"12345" + marker(1) + b"78901"

    def test_truncation_never_splits_a_character(self, session: Session) -> None:
        """SWE-ReX#157: cut between UTF-8 characters on both sides of the marker."""
        for cap in range(8, 16):
            result = sh(session, "for i in 1 2 3 4 5 6 7 8 9; do printf 'é€😀'; done", max_output_bytes=cap)
            assert result.stdout_truncated
            assert "\ufffd" not in result.stdout, cap
            head, _, rest = result.stdout.partition("\n[... ")
            tail = rest.partition(" bytes left out ...]\n")[2]
            assert result.stdout_bytes == head.encode() + marker(81 - len((head + tail).encode())) + tail.encode()

    def test_a_command_over_the_cap_runs_on_to_its_end(self, session: Session) -> None:
        """The command runs on, at full speed."""
        path = fresh()
        result = sh(session, 'head -c 3000000 /dev/zero; echo done >"$1"; exit 6', path, max_output_bytes=1000)
        assert (result.exit_code, result.stdout_total_bytes) == (6, 3_000_000)
        assert read(session, path) == "done\n"

    def test_a_gibibyte_without_a_newline_is_counted_in_flat_memory(self, session: Session) -> None:
        """A 1 GiB flood through `exec` (cap 1 MiB) grows the host process by at most 16 MiB."""
        session.exec("head", ["-c", str(4 * MIB), "/dev/zero"]).check()
        with PeakMemory() as memory:
            result = session.exec("head", ["-c", str(FLOOD), "/dev/zero"], timeout=300)
        assert (result.exit_code, result.stdout_total_bytes, result.stdout_truncated) == (0, FLOOD, True)
        assert result.stdout_bytes == bytes(MIB // 2) + marker(FLOOD - MIB) + bytes(MIB // 2)
        assert memory.growth <= FLAT

    def test_a_hundred_thousand_one_byte_writes_come_whole(self, session: Session) -> None:
        """100,000 one-byte writes."""
        result = sh(session, "dd if=/dev/zero bs=1 count=100000 2>/dev/null", timeout=120)
        assert result.stdout_bytes == bytes(100_000)
        assert (result.stdout_total_bytes, result.stdout_truncated) == (100_000, False)

    def test_the_order_within_a_stream_is_exact(self, session: Session) -> None:
        """Output interleaved wrongly; here 100,000 numbered lines."""
        result = session.exec("seq", ["100000"])
        assert result.stdout_bytes == b"".join(b"%d\n" % number for number in range(1, 100_001))

    def test_alternating_streams_keep_their_own_order(self, session: Session) -> None:
        """Output interleaved wrongly; here both streams at once."""
        script = "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
        result = sh(session, script)
        assert result.stdout_bytes == b"".join(b"out %d\n" % number for number in range(2000))
        assert result.stderr_bytes == b"".join(b"err %d\n" % number for number in range(2000))

    def test_both_streams_flooded_at_once_do_not_deadlock(self, session: Session) -> None:
        """A reader of one stream alone stands still when the other is full."""
        script = "head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait"
        result = sh(session, script, timeout=60)
        assert (result.exit_code, result.stdout_total_bytes, result.stderr_total_bytes) == (0, 20_000_000, 20_000_000)

    def test_a_character_written_a_byte_at_a_time_arrives_whole(self, session: Session) -> None:
        """pipeline-runner#88: "é" a byte at a time."""
        result = sh(session, "printf '\\303'; sleep 0.05; printf '\\251'; sleep 0.05; printf '\\303'; printf '\\251'")
        assert (result.stdout_bytes, result.stdout) == ("éé".encode(), "éé")

    def test_characters_across_frames_arrive_whole(self, session: Session) -> None:
        """inspect_k8s_sandbox#206, SWE-ReX#161: characters split over frames; here 300 KB at an odd offset."""
        assert sh(session, CHARACTERS).stdout == "x" + "€" * 100_000

    def test_output_just_before_the_exit_is_there(self, session: Session) -> None:
        """PROTOCOL 5.5: all output that was in the pipes when the command ended comes before its end."""
        for size in (1, 4096, 65_536, 65_537):
            assert len(session.exec("head", ["-c", str(size), "/dev/zero"]).stdout_bytes) == size

    def test_a_silent_command_is_bounded(self, session: Session) -> None:
        """testcontainers-python#972: the timeout holds for a command that says nothing."""
        with Stopwatch() as watch:
            result = session.exec("sleep", ["1000"], timeout=0.3)
        assert (result.timed_out, result.stdout_bytes) == (True, b"")
        assert watch.seconds < allowed(0.35)
