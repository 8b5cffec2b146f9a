"""Broken on purpose: each breaks one promise, and names the tests of the suite that must notice."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from sandboxkit import ExecResult, ExecStream, ManagedProcess, ProcessStream, SessionLostError, processes
from sandboxkit import _output as output
from sandboxkit import _process_calls as process_calls
from sandboxkit import _process_frames as process_frames
from sandboxkit import _run as run
from sandboxkit import _validate as validate
from sandboxkit._channel import Channel
from sandboxkit._session import AgentSession
from sandboxkit.backend import ContainerSpec, Feature
from sandboxkit.sandbox import Sandbox
from tests.support import local
from tests.support.local import LocalBackend

Break = Callable[[pytest.MonkeyPatch], None]


@attrs.frozen
class Mutant:
    """`apply` breaks it; `tests` are the names of those that must then fail."""

    name: str
    apply: Break
    tests: tuple[str, ...]


MUTANTS: list[Mutant] = []


def noticed_by(*tests: str) -> Callable[[Break], Break]:
    def register(apply: Break) -> Break:
        MUTANTS.append(Mutant(apply.__name__, apply, tests))
        return apply

    return register


def change_results(patch: pytest.MonkeyPatch, change: Callable[[ExecResult], ExecResult]) -> None:
    """Every result of `exec` is changed on its way to the caller."""
    original = AgentSession.exec

    def changed(self: AgentSession, *args: Any, **options: Any) -> ExecResult:
        return change(original(self, *args, **options))

    patch.setattr(AgentSession, "exec", changed)


def change_calls(
    patch: pytest.MonkeyPatch, change: Callable[[str, list[str], dict[str, Any]], tuple[str, list[str]]]
) -> None:
    """Every call of `exec` is changed on its way in; the options are changed in place."""
    original = AgentSession.exec

    def changed(self: AgentSession, command: str, args: Any = (), **options: Any) -> ExecResult:
        command, args = change(command, list(args), options)
        return original(self, command, args, **options)

    patch.setattr(AgentSession, "exec", changed)


# How commands end.


@noticed_by("test_a_non_zero_exit_is_a_result[1]", "test_the_exit_code_is_right_a_hundred_times")
def exit_code_off_by_one(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, exit_code=r.exit_code + 1) if r.exit_code else r)


@noticed_by("test_a_non_zero_exit_is_a_result[7]")
def non_zero_exit_raises(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: r.check() if r.exit_code == 7 else r)


@noticed_by("test_a_command_killed_by_a_signal_says_which[SIGKILL-9]")
def signal_as_negative_code(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, exit_code=128 - r.exit_code) if r.signal and r.exit_code else r)


@noticed_by("test_a_missing_command_is_127_with_the_reason_in_stderr")
def missing_command_is_126(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, exit_code=126) if r.exit_code == 127 else r)


@noticed_by("test_a_missing_command_is_127_with_the_reason_in_stderr")
def reason_on_stdout(patch: pytest.MonkeyPatch) -> None:
    def swap(result: ExecResult) -> ExecResult:
        if result.exit_code != 127:
            return result
        return attrs.evolve(result, stdout_bytes=result.stderr_bytes, stderr_bytes=b"")

    change_results(patch, swap)


@noticed_by("test_a_command_is_never_a_shell_line")
def command_is_a_shell_line(patch: pytest.MonkeyPatch) -> None:
    change_calls(patch, lambda c, a, o: ("sh", ["-c", f'{c} "$@"', "sh", *a]) if " " in c else (c, a))


@noticed_by("test_a_background_child_does_not_hold_the_return")
def waits_for_background_children(patch: pytest.MonkeyPatch) -> None:
    def wait(result: ExecResult) -> ExecResult:
        time.sleep(2 if result.background_pids else 0)
        return result

    change_results(patch, wait)


@noticed_by("test_without_input_a_command_reads_end_of_file")
def input_stays_open(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession._request
    patch.setattr(AgentSession, "_request", lambda self, *a, **o: original(self, *a, **{**o, "interactive": True}))


# Output.


@noticed_by("test_stdout_and_stderr_are_kept_apart", "test_callbacks_get_the_text_and_the_result_is_whole")
def stderr_is_dropped(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, stderr_bytes=b"") if r.exit_code != 127 else r)


@noticed_by("test_the_first_bytes_of_the_output_are_never_lost", "test_the_same_output_comes_a_hundred_times")
def first_bytes_are_lost(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, stdout_bytes=r.stdout_bytes[8:]) if len(r.stdout_bytes) < 20 else r)


@noticed_by("test_output_up_to_the_cap_is_whole[1000]")
def the_cap_itself_is_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output.HeadTail, "truncated", property(lambda self: self.total >= self._cap))


@noticed_by("test_output_over_the_cap_keeps_head_and_tail_with_a_marker_between")
def only_the_head_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output.HeadTail, "render", lambda self: bytes(self._head))


@noticed_by("test_a_call_can_narrow_the_cap_and_not_widen_it")
def a_call_widens_the_cap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit._session.min", lambda first, second: second, raising=False)


@noticed_by("test_truncation_never_splits_a_character")
def truncation_splits_characters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output, "incomplete_tail", lambda data: 0)


@noticed_by("test_characters_are_never_split", "test_characters_given_to_callbacks_are_never_split")
def events_split_characters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "incomplete_tail", lambda data: 0)


@noticed_by("test_a_gibibyte_without_a_newline_is_counted_in_flat_memory")
def everything_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit.conformance._output.FLOOD", 64 * 1024 * 1024)
    original = output.HeadTail.feed
    hoard: list[bytes] = []

    def feed(self: output.HeadTail, chunk: memoryview) -> None:
        hoard.append(bytes(chunk))
        original(self, chunk)

    patch.setattr(output.HeadTail, "feed", feed)


@noticed_by("test_a_consumer_that_sleeps_blocks_the_command_and_loses_nothing")
def a_stream_buffers_everything(patch: pytest.MonkeyPatch) -> None:
    original = run.Queue.feed
    patch.setattr(run.Queue, "feed", lambda self, *a: original(self, *a) or True)
    patch.setattr(Channel, "grant", _grant_at_once(Channel.grant))


def _grant_at_once(original: Callable[[Channel, int], None]) -> Callable[[Channel, int], None]:
    def grant(self: Channel, size: int) -> None:
        if threading.current_thread().name.startswith("sandboxkit-"):  # the reader, not the consumer a second time
            original(self, size)

    return grant


# Ends that come from outside.


@noticed_by("test_a_timeout_keeps_the_output_so_far")
def a_timeout_drops_the_output(patch: pytest.MonkeyPatch) -> None:
    change_results(patch, lambda r: attrs.evolve(r, stdout_bytes=b"", stderr_bytes=b"") if r.timed_out else r)


@noticed_by("test_a_timeout_leaves_no_process")
def a_timeout_kills_nothing(patch: pytest.MonkeyPatch) -> None:
    original, kept = AgentSession.exec, list[ExecStream]()

    def without_kill(self: AgentSession, command: str, args: Any = (), **options: Any) -> ExecResult:
        timeout = options.pop("timeout", None)
        if timeout is None:
            return original(self, command, args, **options)
        kept.append(self.exec_stream(command, args, **options))
        time.sleep(timeout)
        return ExecResult(command=command, exit_code=None, timed_out=True, duration=timeout)

    patch.setattr(AgentSession, "exec", without_kill)


@noticed_by("test_what_ignores_sigterm_is_killed_after_the_grace")
def the_grace_is_ignored(patch: pytest.MonkeyPatch) -> None:
    change_calls(patch, lambda c, a, o: o.update(kill_grace=0) or (c, a))


@noticed_by("test_an_abort_set_before_runs_nothing[Event]", "test_a_signal_after_seconds_ends_a_command_then")
def an_abort_is_ignored(patch: pytest.MonkeyPatch) -> None:
    change_calls(patch, lambda c, a, o: (c, a) if o.pop("abort", None) is None else (c, ["3"] if c == "sleep" else a))


@noticed_by("test_an_abort_ends_a_command_and_keeps_its_output[Event]")
def an_abort_is_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "POLL", 3.0)


@noticed_by("test_ctrl_c_in_exec_kills_the_tree_and_is_raised_again", "test_leaving_a_stream_kills_the_tree[close]")
def what_is_left_runs_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run.Run, "abandon", lambda self: None)
    patch.setattr(run, "_let_go", lambda *args: None)


@noticed_by("test_an_error_in_a_callback_kills_the_command_and_propagates")
def an_error_in_a_callback_is_swallowed(patch: pytest.MonkeyPatch) -> None:
    def guard(call: Any) -> Any:
        def guarded(text: str) -> None:
            with contextlib.suppress(Exception):
                call(text)

        return guarded

    def change(command: str, args: list[str], options: dict[str, Any]) -> tuple[str, list[str]]:
        if options.get("on_stdout") is not None:
            options.update(on_stdout=guard(options["on_stdout"]), timeout=0.2)
        return command, args

    change_calls(patch, change)


@noticed_by("test_callbacks_run_on_the_calling_thread")
def callbacks_run_elsewhere(patch: pytest.MonkeyPatch) -> None:
    def elsewhere(call: Any) -> Any:
        def run_there(text: str) -> None:
            thread = threading.Thread(target=call, args=(text,))
            thread.start()
            thread.join()

        return run_there

    def change(command: str, args: list[str], options: dict[str, Any]) -> tuple[str, list[str]]:
        for name in ("on_stdout", "on_stderr"):
            if options.get(name) is not None:
                options[name] = elsewhere(options[name])
        return command, args

    change_calls(patch, change)


@noticed_by("test_a_waiting_exec_raises_when_the_container_is_removed")
def a_lost_session_gives_a_result(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession.exec

    def swallow(self: AgentSession, command: str, *args: Any, **options: Any) -> ExecResult:
        try:
            return original(self, command, *args, **options)
        except SessionLostError as error:
            return ExecResult(command=command, exit_code=1, stderr_bytes=str(error).encode(), duration=0.0)

    patch.setattr(AgentSession, "exec", swallow)


# What goes in.


@noticed_by("test_an_argument_arrives_exactly[spaces]", "test_an_argument_arrives_exactly[empty]")
def arguments_are_split(patch: pytest.MonkeyPatch) -> None:
    change_calls(patch, lambda c, a, o: (c, [*a[:2], *" ".join(a[2:]).split()]) if c == "sh" else (c, a))


@noticed_by("test_a_value_arrives_exactly[newlines]")
def values_are_cut_at_the_newline(patch: pytest.MonkeyPatch) -> None:
    original = validate.environment
    patch.setattr(
        validate, "environment", lambda f, v: {name: text.split("\n")[0] for name, text in original(f, v).items()}
    )


@noticed_by("test_nothing_of_the_hosts_environment_reaches_a_command")
def the_hosts_environment_leaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(local, "ENVIRONMENT", os.environ)


@noticed_by(
    "test_a_folder_outside_the_workspace_is_a_path_error[..]", "test_a_missing_folder_is_a_path_error_and_nothing_ran"
)
def a_bad_folder_is_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit._session.checked_cwd", lambda cwd, workspace: ".")


@noticed_by(
    "test_exec_refuses_what_is_wrong[args='one string']", "test_exec_stream_refuses_what_is_wrong[args='one string']"
)
def one_string_is_taken_for_arguments(patch: pytest.MonkeyPatch) -> None:
    original = validate.args
    patch.setattr(validate, "args", lambda value: original(list(value) if isinstance(value, str) else value))


@noticed_by("test_a_network_is_refused", "test_a_workspace_in_memory_is_refused")
def an_undeclared_feature_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sandbox, "_check_features", lambda self, backend: None)


@noticed_by("test_a_limit_is_in_force_or_refused[memory-memory_mb-64]")
def limits_are_ignored_in_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit.sandbox.check_limits", lambda limits, info: None)


# Lives of sessions, and what they leave.


@noticed_by("test_leaving_the_block_destroys")
def the_container_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSession, "destroy", _without_destroy(AgentSession.destroy))


def _without_destroy(original: Callable[[AgentSession], None]) -> Callable[[AgentSession], None]:
    # The second call, by the suite's own clean-up, works.
    seen = set[str]()

    def destroy(self: AgentSession) -> None:
        if self.id in seen:
            original(self)
        seen.add(self.id)

    return destroy


@noticed_by("test_a_killed_host_process_leaves_nothing")
def a_crash_leaves_the_container(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit.conformance._watch.MARGIN", 0.1)
    patch.setattr(local, "KEEPER", local.KEEPER.replace("wait $agent", "wait $agent; sleep 4"))


@noticed_by("test_a_taken_id_is_refused_and_its_session_untouched")
def a_taken_id_takes_over(patch: pytest.MonkeyPatch) -> None:
    original = LocalBackend.create

    def create(self: LocalBackend, spec: ContainerSpec) -> str:
        self.remove(spec.name)
        return original(self, spec)

    patch.setattr(LocalBackend, "create", create)


@noticed_by("test_500_commands_leave_files_and_threads_flat")
def a_file_stays_open(patch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def leak(result: ExecResult) -> ExecResult:
        if len(kept) < 5:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        return result

    change_results(patch, leak)
    undo = patch.undo

    def close() -> None:
        undo()
        while kept:
            os.close(kept.pop())

    patch.undo = close  # type: ignore[method-assign]


@noticed_by("test_true_exits_with_0")
def a_thread_stays(patch: pytest.MonkeyPatch) -> None:
    def leak(result: ExecResult) -> ExecResult:
        threading.Thread(target=time.sleep, args=(3,), name="sandboxkit-left", daemon=True).start()
        return result

    change_results(patch, leak)


@noticed_by("test_the_declared_features_are_the_backends")
def a_feature_is_hidden(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalBackend, "features", frozenset({Feature.CRASH_CLEANUP, Feature.TMPFS}))


@noticed_by("test_over_the_limit_an_error_is_raised_where_that_is_wanted")
def any_number_runs(patch: pytest.MonkeyPatch) -> None:
    original = run.Run.start
    patch.setattr(run.Run, "start", lambda self, limit: original(self, 512))


@noticed_by("test_a_forked_child_gets_a_clear_error")
def a_forked_child_may_use_the_session(patch: pytest.MonkeyPatch) -> None:
    def forget(self: AgentSession, *args: Any, **options: Any) -> ExecResult:
        return ExecResult(command="true", exit_code=0, duration=0.0)

    original, parent = AgentSession.exec, os.getpid()
    patch.setattr(
        AgentSession, "exec", lambda self, *a, **o: original(self, *a, **o) if os.getpid() == parent else forget(self)
    )


@noticed_by("test_stop_ends_the_whole_tree", "test_it_may_use_its_grace")
def stop_only_kills_the_command(patch: pytest.MonkeyPatch) -> None:
    def stop(self: ManagedProcess, grace: float = 5.0) -> object:
        local_kill(self.pid)
        return self.wait()

    patch.setattr(ManagedProcess, "stop", stop)


@noticed_by("test_only_live_ones_count_against_the_limit", "test_many_threads_start_no_more_than_the_limit")
def any_number_of_processes_runs(patch: pytest.MonkeyPatch) -> None:
    original = process_frames.Launch.payload
    patch.setattr(process_frames.Launch, "payload", lambda self, most: original(self, 100))


@noticed_by("test_characters_are_not_cut")
def logs_cut_characters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processes, "incomplete_tail", lambda data: 0)


@noticed_by("test_a_log_keeps_the_newest_and_counts_what_is_lost", "test_a_slow_reader_never_blocks_the_process")
def lost_bytes_are_not_told(patch: pytest.MonkeyPatch) -> None:
    original = ProcessStream.__next__

    def silent(self: ProcessStream) -> Any:
        self._follower.lost_bytes = 0
        return original(self)

    patch.setattr(ProcessStream, "__next__", silent)
    patch.setattr(ProcessStream, "lost_bytes", 0)


@noticed_by("test_writes_of_many_threads_do_not_mix")
def writers_do_not_take_turns(patch: pytest.MonkeyPatch) -> None:
    class Open:
        def acquire(self, blocking: bool = True, timeout: float = 0) -> bool:
            return True

        def release(self) -> None:
            pass

    patch.setattr(processes, "MAX_PAYLOAD", 4096)
    patch.setattr(process_calls, "KnownLaunch", lambda launch: SimpleNamespace(launch=launch, writing=Open()))
    patch.setattr(processes, "KnownLaunch", lambda launch: SimpleNamespace(launch=launch, writing=Open()))


@noticed_by("test_waiting_has_a_bound_and_can_be_aborted")
def a_wait_is_without_bound(patch: pytest.MonkeyPatch) -> None:
    original = process_calls.Call.settle
    patch.setattr(process_calls.Call, "settle", lambda self, timeout, abort: original(self, 5.0, None))


def local_kill(pid: int) -> None:
    """On the local backend a process's number is its number here."""
    os.kill(pid, signal.SIGKILL)
