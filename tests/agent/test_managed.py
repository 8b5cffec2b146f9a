"""Managed processes: started for certain or refused with a reason, logged in a ring, stopped with their tree."""

from __future__ import annotations

import functools
import os
import signal
import struct
from pathlib import Path

import pytest

from tests.agent.conftest import StartAgent
from tests.agent.driver import BUSY, BY_ITSELF, BY_KILL, CWD, INVALID, KILL, STDIN, WINDOW, Agent, encode
from tests.agent.managed import (
    CLOSED,
    END,
    INPUT_OPEN,
    LIMIT,
    LIST,
    NOT_EXECUTABLE,
    NOT_FOUND,
    NOWAIT,
    OTHERS_LIVE,
    REQUEST,
    START,
    STOP,
    TAIL,
    UNKNOWN,
    VIEW,
    call,
    ended,
    finish,
    listed,
    logs,
    record,
    refusal,
    start,
    start_payload,
    stop,
    view,
    write,
)
from tests.agent.processes import command_line, descendants, is_alive, supervisors_of
from tests.support.waiting import wait_until


class TestStart:
    def test_a_process_runs_its_program_when_its_start_is_answered(self, any_agent: Agent) -> None:
        process = start(any_agent, "sleep", "1000")
        assert (process.id, process.ended, process.flags) == (1, False, 0)
        assert process.pid > 0
        assert process.started_at > 1_600_000_000_000_000
        if any_agent.hello["pid"] != "1":
            assert command_line(process.pid) == b"sleep\x001000\0"
        assert stop(any_agent, 1).signal == signal.SIGKILL

    def test_one_that_ends_at_once_was_started(self, agent: Agent) -> None:
        assert start(agent, "true").id == 1
        assert ended(agent, 1).code == 0

    @pytest.mark.parametrize(
        ("argv", "code", "text"),
        [
            (("no-such-program",), NOT_FOUND, "no-such-program: command not found in PATH "),
            (("./missing",), NOT_FOUND, "./missing: no such file"),
            (("/etc/passwd",), NOT_EXECUTABLE, "/etc/passwd: permission denied"),
            (("/",), NOT_EXECUTABLE, "/: it is a directory"),
        ],
    )
    def test_what_can_not_be_executed_is_refused_with_the_reason(
        self, any_agent: Agent, argv: tuple[str], code: int, text: str
    ) -> None:
        error = refusal(any_agent, call(any_agent, START, start_payload(*argv)))
        assert error.code == code
        assert error.text.startswith(text)
        assert not error.text.endswith("\n")
        assert listed(any_agent) == []

    def test_a_bad_folder_is_refused(self, agent: Agent) -> None:
        assert refusal(agent, call(agent, START, start_payload("true", cwd="missing"))).code == CWD
        assert refusal(agent, call(agent, START, start_payload("true", cwd=".."))).code == CWD
        assert listed(agent) == []

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            bytes(15),
            start_payload("true", log_size=4095),
            start_payload("true", log_size=(16 << 20) + 1),
            start_payload("true", flags=2),
            start_payload("true", flags=8),
            start_payload("true", name=b"x")[:20],
            struct.pack("<IIII", 65536, 64, 0xFFFFFFFF, 0) + b"x" * 64,
            start_payload("x" * 300_000),
        ],
    )
    def test_what_does_not_parse_is_refused(self, agent: Agent, payload: bytes) -> None:
        assert refusal(agent, call(agent, START, payload)).code == INVALID
        assert start(agent, "true").id == 1

    def test_only_those_that_run_count_against_the_limit(self, agent: Agent) -> None:
        for _ in range(3):
            ended(agent, start(agent, "true", most=1).id)
        last = start(agent, "sleep", "1000", most=1)
        assert refusal(agent, call(agent, START, start_payload("true", most=1))).code == LIMIT
        assert ended(agent, start(agent, "true", most=2).id).id == last.id + 1
        stop(agent, last.id)
        start(agent, "true", most=1)

    def test_the_oldest_that_has_ended_is_forgotten_when_the_table_is_full(self, agent: Agent) -> None:
        kept = start(agent, "sleep", "1000", most=1000)
        for _ in range(130):
            ended(agent, start(agent, "true", most=1000).id)
        found = listed(agent)
        assert len(found) == 128
        assert found[0].id == kept.id
        assert [process.id for process in found[1:]] == list(range(5, 132))
        assert refusal(agent, view(agent, 2)).code == UNKNOWN

    def test_logs_have_a_bound_all_together(self, agent: Agent) -> None:
        for _ in range(20):
            ended(agent, start(agent, "true", log_size=16 << 20).id)
        assert len(listed(agent)) == 15

    def test_the_request_is_kept_as_it_came(self, agent: Agent) -> None:
        payload = start_payload("sh", "-c", "exit 3", name=b"a name\xff", env={"A": "x" * 100_000})
        process = record(agent, call(agent, START, payload))
        assert logs(agent, process.id, REQUEST, window=70_000).data == payload
        ended(agent, process.id)
        assert logs(agent, process.id, REQUEST, cursor=7, length=9).data == payload[7:16]

    def test_a_long_request_comes_whole_whatever_the_log_s_length(self, agent: Agent) -> None:
        payload = start_payload("head", "-c", "65536", "/dev/zero", env={"LONG": "x" * 100_000})
        process = record(agent, call(agent, START, payload))
        assert ended(agent, process.id).last == 65536
        assert logs(agent, process.id, REQUEST, window=200_000).data == payload

    def test_a_killed_start_leaves_nothing(self, agent: Agent) -> None:
        made = call(agent, START, start_payload("sleep", "1000"))
        agent.send_raw(encode(made.channel, KILL, struct.pack("<I", 0)))
        assert record(agent, made).id == 1
        assert ended(agent, 1).signal == signal.SIGKILL


def is_logged(agent: Agent, id: int, data: bytes) -> bool:
    return logs(agent, id).data == data


class TestLogs:
    def test_both_streams_in_the_order_of_their_arrival(self, agent: Agent) -> None:
        script = "echo one; read x; echo two >&2; read x; echo three; exit 3"
        process = start(agent, "sh", "-c", script, flags=STDIN)
        for seen in (b"one\n", b"one\ntwo\n"):
            wait_until(functools.partial(is_logged, agent, process.id, seen), f"{seen!r} is logged")
            finish(agent, write(agent, process.id, b"\n"))
        made = finish(agent, view(agent, process.id))
        assert made.pieces == [(1, b"one\n"), (2, b"two\n"), (1, b"three\n")]
        assert made.cursors == [0]
        final = record(agent, made)
        assert (final.ended, final.code, final.reason, final.first, final.last) == (True, 3, BY_ITSELF, 0, 14)

    def test_a_view_that_does_not_wait_ends_with_what_is_there(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "echo hello; exec sleep 1000")
        wait_until(lambda: logs(agent, process.id).data == b"hello\n", "it has written")
        assert logs(agent, process.id, cursor=2).data == b"llo\n"
        assert logs(agent, process.id, cursor=2, length=3).data == b"llo"
        assert logs(agent, process.id, NOWAIT | TAIL, cursor=3).cursors == [3]
        assert logs(agent, process.id, NOWAIT | TAIL, cursor=100).data == b"hello\n"
        beyond = logs(agent, process.id, cursor=1000)
        assert (beyond.cursors, beyond.data) == ([6], b"")
        stop(agent, process.id)

    def test_the_oldest_is_forgotten_byte_by_byte(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "seq 100000", log_size=4096)
        final = ended(agent, process.id)
        everything = b"".join(b"%d\n" % number for number in range(1, 100_001))
        made = logs(agent, process.id)
        assert final.last == len(everything)
        assert 4096 - 16 <= final.last - final.first <= 4096
        assert made.cursors == [final.first]
        assert made.data == everything[final.first :]

    def test_nobody_reads_and_it_is_never_blocked(self, agent: Agent) -> None:
        process = start(agent, "head", "-c", "20000000", "/dev/zero", log_size=4096)
        assert ended(agent, process.id).last == 20_000_000

    def test_a_view_without_credit_is_overtaken_and_told_of_the_gap(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "echo 123456789; read line; seq 100000", log_size=4096, flags=STDIN)
        slow = view(agent, process.id, window=10)
        slow.auto_grant = False
        while len(slow.data) < 10:
            assert agent.step()
        finish(agent, write(agent, process.id, b"\n"))
        final = ended(agent, process.id)
        agent.ping()
        assert len(slow.data) == 10
        agent.grant(slow, 1 << 20)
        finish(agent, slow)
        assert slow.cursors == [0, final.first]
        assert slow.at == final.last

    def test_many_views_each_get_everything(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "read line; seq 50000", log_size=1 << 20, flags=STDIN)
        views = [view(agent, process.id, window=70_000) for _ in range(20)]
        finish(agent, write(agent, process.id, b"\n"))
        expected = b"".join(b"%d\n" % number for number in range(1, 50_001))
        for made in views:
            assert finish(agent, made).data == expected

    def test_a_killed_view_ends_and_the_process_lives(self, agent: Agent) -> None:
        process = start(agent, "sleep", "1000")
        for flags in (0, END):
            made = view(agent, process.id, flags)
            agent.send_raw(encode(made.channel, KILL, bytes(4)))
            assert record(agent, made).ended is False
            agent.send_raw(encode(made.channel, WINDOW, struct.pack("<I", 1)))  # crosses with the end
        stop(agent, process.id)

    def test_what_the_background_writes_later_is_logged_too(self, agent: Agent, workspace: Path) -> None:
        process = start(agent, "sh", "-c", "(while [ ! -e go ]; do sleep 0.01; done; echo late) & exit 0")
        final = ended(agent, process.id)
        assert (final.code, final.flags) == (0, OTHERS_LIVE)
        (workspace / "go").touch()
        wait_until(lambda: listed(agent)[0].flags == 0, "it is gone")
        assert logs(agent, process.id).data == b"late\n"

    def test_requests_about_an_unknown_process_are_refused(self, agent: Agent) -> None:
        for kind, payload in (
            (VIEW, struct.pack("<IIIIQQ", 1, 0, 0, 0, 0, 0)),
            (STOP, struct.pack("<II", 1, 0)),
            (LIST, struct.pack("<I", 9)),
        ):
            assert refusal(agent, call(agent, kind, payload)).code == UNKNOWN
            assert refusal(agent, call(agent, kind, payload + b"x")).code == INVALID
        assert refusal(agent, write(agent, 1, b"x")).code == UNKNOWN

    def test_too_many_requests_at_once_are_refused(self, agent: Agent) -> None:
        process = start(agent, "sleep", "1000")
        waiting = [view(agent, process.id, END) for _ in range(256)]
        assert refusal(agent, view(agent, process.id, END)).code == BUSY
        agent.send_raw(encode(waiting[0].channel, KILL, bytes(4)))
        record(agent, waiting[0])
        stop(agent, process.id)
        assert all(record(agent, made).ended for made in waiting[1:])


class TestInput:
    def test_it_is_answered_when_the_process_has_taken_it(self, agent: Agent) -> None:
        process = start(agent, "cat", flags=STDIN, log_size=1 << 20)
        assert process.flags == INPUT_OPEN
        for data in (b"one\n", b"two\n", b"x" * 65536):
            assert finish(agent, write(agent, process.id, data)).records is not None
        assert record(agent, write(agent, process.id, b"end", end=True)).flags == 0
        assert ended(agent, process.id).last == 65547
        assert logs(agent, process.id, length=8).data == b"one\ntwo\n"

    def test_a_full_pipe_holds_the_answer_back_and_a_second_one_is_refused(self, agent: Agent) -> None:
        process = start(agent, "sleep", "1000", flags=STDIN)
        first = write(agent, process.id, b"x" * 65536)
        record(agent, first)
        second = write(agent, process.id, b"y" * 65536)
        assert refusal(agent, write(agent, process.id, b"z")).code == BUSY
        assert not second.done
        agent.send_raw(encode(second.channel, KILL, bytes(4)))
        record(agent, second)
        third = write(agent, process.id, b"z" * 65536)
        agent.ping()
        assert not third.done
        stop(agent, process.id)
        assert refusal(agent, third).code == CLOSED

    def test_input_that_is_given_up_still_ends_if_it_was_to_end(self, agent: Agent, workspace: Path) -> None:
        process = start(agent, "sh", "-c", "until test -e go; do sleep 0.01; done; exec wc -c", flags=STDIN)
        record(agent, write(agent, process.id, b"x" * 65536))
        second = write(agent, process.id, b"y" * 65536, end=True)
        agent.send_raw(encode(second.channel, KILL, bytes(4)))
        record(agent, second)
        (workspace / "go").touch()
        assert ended(agent, process.id).code == 0
        assert logs(agent, process.id).data == b"65536\n"

    def test_one_without_input_refuses_it(self, agent: Agent) -> None:
        process = start(agent, "sleep", "1000")
        assert refusal(agent, write(agent, process.id, b"x")).code == CLOSED
        stop(agent, process.id)
        assert refusal(agent, write(agent, process.id, b"x")).code == CLOSED

    def test_one_that_closed_its_input_refuses_it(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "exec <&-; echo closed; exec sleep 1000", flags=STDIN)
        wait_until(lambda: logs(agent, process.id).data == b"closed\n", "it has closed it")
        assert refusal(agent, write(agent, process.id, b"x")).code == CLOSED
        assert refusal(agent, write(agent, process.id, b"x")).code == CLOSED
        stop(agent, process.id)


GRANDCHILDREN = """
setsid sh -c 'echo $$; exec sleep 1000' &
sh -c 'setsid sh -c "echo \\$\\$; exec sleep 1000" &' &
sh -c 'echo $$; kill -STOP $$; exec sleep 1000' &
trap '' TERM
wait; exec sleep 1000
"""


class TestStop:
    def grandchildren(self, agent: Agent, id: int) -> list[int]:
        wait_until(lambda: logs(agent, id).data.count(b"\n") == 3, "all have said who they are")
        return [int(pid) for pid in logs(agent, id).data.split()]

    def test_the_whole_tree_dies(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", GRANDCHILDREN)
        pids = self.grandchildren(agent, process.id)
        assert all(is_alive(pid) for pid in pids)
        final = stop(agent, process.id, 50)
        assert (final.signal, final.reason, final.flags) == (signal.SIGKILL, BY_KILL, 0)
        assert not any(is_alive(pid) for pid in [*pids, process.pid])

    def test_it_may_end_in_its_grace(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done")
        wait_until(lambda: logs(agent, process.id).data == b"ready\n", "it is ready")
        final = stop(agent, process.id, 30_000)
        assert (final.how, final.code, final.reason) == (0, 7, BY_KILL)
        assert b"bye\n" in logs(agent, process.id).data
        assert stop(agent, process.id) == final

    def test_what_an_ended_command_left_behind_dies_too(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "sleep 1000 & echo $!; exit 5")
        first = ended(agent, process.id)
        assert (first.code, first.reason, first.flags) == (5, BY_ITSELF, OTHERS_LIVE)
        pid = int(logs(agent, process.id).data)
        assert is_alive(pid)
        final = stop(agent, process.id)
        assert (final.code, final.reason, final.flags) == (5, BY_ITSELF, 0)
        assert not is_alive(pid)

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
    def test_the_end_is_told_truthfully_whatever_is_done_to_the_supervisor(
        self, pid1: Agent, how: signal.Signals
    ) -> None:
        process = start(pid1, "sh", "-c", "echo up; exec sleep 1000")
        wait_until(lambda: logs(pid1, process.id).data == b"up\n", "it runs")
        (command,) = [pid for pid in descendants(pid1.process.pid) if command_line(pid) == b"sleep\x001000\0"]
        (supervisor,) = [pid for pid in supervisors_of(pid1) if command in descendants(pid)[:1]]
        os.kill(supervisor, how)
        if how == signal.SIGKILL:
            final = ended(pid1, process.id)
            assert (final.signal, final.reason) == (signal.SIGKILL, BY_ITSELF)
        else:
            final = stop(pid1, process.id, 10)
            assert (final.signal, final.reason) == (signal.SIGTERM, BY_KILL)
        assert not is_alive(command)
        assert start(pid1, "true").id == process.id + 1

    def test_processes_end_with_the_session(self, agent: Agent) -> None:
        process = start(agent, "sh", "-c", "trap '' TERM; setsid sleep 1000 & wait")
        below = descendants(agent.process.pid)
        assert process.pid in below
        assert agent.close() == 0
        wait_until(lambda: not any(is_alive(pid) for pid in below), "all are gone")

    def test_a_start_is_tried_again_when_its_process_was_killed_too_early(self, pid1: Agent) -> None:
        """Whatever it hits: refused, or ended by that signal, or running; never a start that is not answered."""
        killer = pid1.start("sh", "-c", f"for i in {' '.join('x' * 20)}; do kill -9 -1; done")
        answers = [finish(pid1, call(pid1, START, start_payload("sleep", "1000"))) for _ in range(20)]
        pid1.wait(killer)
        assert len([made for made in answers if made.done]) == 20
        for process in listed(pid1):
            stop(pid1, process.id)


def test_sessions_do_not_grow(start_agent: StartAgent) -> None:
    agent = start_agent()
    files = f"/proc/{agent.process.pid}/fd"
    for _ in range(5):
        stop(agent, start(agent, "sleep", "1000").id)
    before = len(os.listdir(files))
    for _ in range(200):
        made = view(agent, start(agent, "sh", "-c", "echo hi; sleep 1000").id)
        stop(agent, listed(agent)[-1].id)
        assert finish(agent, made).data in (b"hi\n", b"")
    wait_until(lambda: len(os.listdir(files)) <= before + 8, "descriptors are given back")
