"""exec over the fake agent: what is asked for is what is sent, what comes is what is returned."""

from __future__ import annotations

import time

import pytest

from sandboxkit import EngineError, ExecResult, Limits, PathError, SessionDestroyedError, SessionLostError, SessionState
from sandboxkit import _run as run_module
from sandboxkit._channel import Connection
from sandboxkit._frames import FrameType
from sandboxkit._session import AgentSession

from .background import Call
from .conftest import MakeSession
from .fake_agent import FakeAgent
from .fake_backend import FakeBackend


def test_the_request_is_what_was_asked_for(session: AgentSession, agent: FakeAgent) -> None:
    session.exec("echo", ["a b", "", "--", "ü\n"], cwd="sub/./folder", env={"A": "1", "B": "x=y\n"}, timeout=1.5)
    job = agent.job()
    assert job.argv == ["echo", "a b", "", "--", "ü\n"]
    assert job.cwd == "sub/folder"
    assert job.env == {"A": "1", "B": "x=y\n"}
    assert (job.flags, job.timeout, job.grace) == (0, 1500, 2000)
    session.exec("true", kill_grace=0.25, input=b"")
    job = agent.job()
    assert (job.flags, job.timeout, job.grace) == (1, 0, 250)


def test_a_session_s_environment_is_under_a_call_s(session: AgentSession, agent: FakeAgent) -> None:
    session._env.update(A="session", B="session")
    session.exec("true", env={"A": "call"})
    assert agent.job().env == {"A": "call", "B": "session"}
    session.exec("true")
    assert agent.job().env == {"A": "session", "B": "session"}


@pytest.mark.parametrize(
    ("cwd", "sent"),
    [
        (".", "."),
        ("a/b/", "a/b"),
        ("/workspace", "."),
        ("/workspace/", "."),
        ("/workspace/a", "a"),
        ("//workspace/a", "a"),
        ("a/../b", "a/../b"),  # the agent's to judge: `a` may be a link
        ("../x", "../x"),
    ],
)
def test_cwd_is_sent_relative_to_the_workspace(cwd: str, sent: str, session: AgentSession, agent: FakeAgent) -> None:
    session.exec("true", cwd=cwd)
    assert agent.job().cwd == sent


@pytest.mark.parametrize("cwd", ["/", "/etc", "/workspace/..", "/workspace/../etc", "/workspacex", "/workspac"])
def test_an_absolute_cwd_outside_is_refused_before_anything_is_sent(
    cwd: str, session: AgentSession, agent: FakeAgent
) -> None:
    with pytest.raises(PathError, match="is outside the workspace"):
        session.exec("true", cwd=cwd)
    session.exec("true")
    assert len(agent.jobs) == 1


def test_every_field_of_the_result(session: AgentSession, agent: FakeAgent) -> None:

    waiting = Call(lambda: session.exec("scripted", ["x"]))
    job = agent.job()
    job.write(b"out")
    job.write(b"\xff", 2)
    job.exit(3, pids=(7, 9))
    result = waiting.get()
    assert 0 < result.duration < 10
    assert result == ExecResult(
        command="scripted",
        args=("x",),
        stdout_bytes=b"out",
        stderr_bytes=b"\xff",
        exit_code=3,
        duration=result.duration,
        stdout_total_bytes=3,
        stderr_total_bytes=1,
        cpu_seconds=2.5,
        max_rss_bytes=4096,
        background_pids=(7, 9),
    )
    assert (result.stdout, result.stderr, result.ok) == ("out", "\N{REPLACEMENT CHARACTER}", False)


@pytest.mark.parametrize(
    ("ending", "exit_code", "name", "flags"),
    [
        ({"code": 0}, 0, None, set()),
        ({"code": 255}, 255, None, set()),
        ({"code": 127, "flags": 2}, 127, None, set()),
        ({"signal": 11}, 139, "SIGSEGV", set()),
        ({"signal": 9, "flags": 1}, 137, "SIGKILL", {"oom_killed"}),
        ({"code": 137, "flags": 1}, 137, None, {"oom_killed"}),
        ({"signal": 34}, 162, "SIGRTMIN", set()),
        ({"signal": 33}, 161, "SIG33", set()),
        ({"signal": 15, "reason": 1}, None, "SIGTERM", {"timed_out"}),
        ({"code": 0, "reason": 1}, None, None, {"timed_out"}),
        ({"signal": 9, "reason": 2}, None, "SIGKILL", {"aborted"}),
        ({"code": 0, "reason": 2}, None, None, {"aborted"}),
    ],
)
def test_how_it_ended(
    ending: dict[str, int],
    exit_code: int | None,
    name: str | None,
    flags: set[str],
    session: AgentSession,
    agent: FakeAgent,
) -> None:
    waiting = Call(lambda: session.exec("scripted"))
    agent.job().exit(**ending)  # type: ignore[arg-type]
    result = waiting.get()
    assert (result.exit_code, result.signal) == (exit_code, name)
    assert {flag for flag in ("timed_out", "aborted", "oom_killed") if getattr(result, flag)} == flags


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "message"),
    [
        (1, EngineError, False, "refused the command: why"),
        (2, EngineError, False, "refused the command: why"),
        (3, EngineError, True, "can't start another command: why.*limits.pids"),
        (4, PathError, False, r"cwd 'sub' can't be used: why.*existing folder inside the workspace"),
        (5, EngineError, False, "refused the command: why"),
    ],
)
def test_a_refusal_is_an_error_and_the_session_goes_on(
    code: int, kind: type[Exception], retryable: bool, message: str, session: AgentSession, agent: FakeAgent
) -> None:
    waiting = Call(lambda: session.exec("scripted", cwd="sub"))
    agent.job().refuse(code, 11, "why")
    with pytest.raises(kind, match=message) as caught:
        waiting.get()
    assert caught.value.details["errno"] == 11  # type: ignore[attr-defined]
    assert caught.value.retryable is retryable  # type: ignore[attr-defined]
    assert session.exec("echo", ["on"]).stdout == "on"


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000, 3_000_000])
def test_the_cap_is_exact_and_the_command_runs_to_its_end(size: int, make_session: MakeSession) -> None:
    session = make_session(max_output_bytes=1000)
    for stream in (1, 2):
        result = session.exec("flood", [str(stream), str(size), "7001"])
        kept = result.stdout_bytes if stream == 1 else result.stderr_bytes
        total = result.stdout_total_bytes if stream == 1 else result.stderr_total_bytes
        assert total == size
        assert (result.stdout_truncated, result.stderr_truncated) == (
            stream == 1 and size > 1000,
            stream == 2 and size > 1000,
        )
        if size <= 1000:
            assert kept == b"x" * size
        else:
            assert kept == b"x" * 500 + b"\n[... %d bytes left out ...]\n" % (size - 1000) + b"x" * 500


def test_a_call_can_only_narrow_the_cap(make_session: MakeSession) -> None:
    session = make_session(max_output_bytes=100)
    assert session.exec("flood", ["1", "60", "60"], max_output_bytes=50).stdout_truncated
    assert session.exec("flood", ["1", "101", "101"], max_output_bytes=1000).stdout_truncated
    assert not session.exec("flood", ["1", "100", "100"], max_output_bytes=1000).stdout_truncated


def test_timeouts_are_the_call_s_else_the_session_s(make_session: MakeSession, agent: FakeAgent) -> None:
    cases: list[tuple[dict[str, float | None], float | None, int]] = [
        ({"timeout": 7.0}, None, 7000),
        ({"timeout": 7.0}, 1.0, 1000),
        ({"timeout": 7.0}, float("inf"), 0),
        ({"timeout": None}, None, 0),
        ({"timeout": None, "max_timeout": 9.0}, None, 9000),
        ({"timeout": 7.0, "max_timeout": 9.0}, 9.0, 9000),
    ]
    for limits, asked, sent in cases:
        make_session(**limits).exec("true", timeout=asked)
        assert agent.job().timeout == sent


def test_a_timeout_of_ages_is_none(session: AgentSession, agent: FakeAgent) -> None:
    for timeout in (1e10, 1e308, 10**300):
        assert session.exec("echo", ["x"], timeout=timeout).stdout == "x"


def test_shell_is_sh_with_the_script_as_one_argument(session: AgentSession, agent: FakeAgent) -> None:
    waiting = Call(lambda: session.shell("echo $HOME; exit 3", env={"A": "b"}))
    job = agent.job()
    assert job.argv == ["sh", "-c", "echo $HOME; exit 3"]
    assert job.env == {"A": "b"}
    job.exit(3)
    assert waiting.get().exit_code == 3


def test_callbacks_get_whole_characters_on_the_calling_thread(session: AgentSession, agent: FakeAgent) -> None:
    out: list[str] = []
    err: list[str] = []
    waiting = Call(lambda: session.exec("scripted", on_stdout=out.append, on_stderr=err.append))
    job = agent.job()
    for byte in "é€😀".encode():
        job.write(bytes([byte]))
        job.write(bytes([byte]), 2)
    job.write(b"\xf0\x9f")
    job.exit()
    result = waiting.get()
    assert "".join(out) == "é€😀\N{REPLACEMENT CHARACTER}" == result.stdout
    assert "".join(err) == "é€😀" == result.stderr
    assert all("\N{REPLACEMENT CHARACTER}" not in text for text in out[:-1])


def test_one_callback_alone(session: AgentSession) -> None:
    seen: list[str] = []
    assert session.exec("flood", ["2", "10", "5"], on_stderr=seen.append).stderr_total_bytes == 10
    assert session.exec("echo", ["x"], on_stderr=seen.append).stdout == "x"
    assert "".join(seen) == "x" * 10


def test_an_exception_in_a_callback_kills_and_propagates(session: AgentSession, agent: FakeAgent) -> None:
    def fail(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="hello"):
        session.exec("hello", on_stdout=fail)
    job = agent.job()
    assert job.ended.is_set(), "exec returned before the tree was dead"
    assert job.kills == [0]


def test_a_command_that_outlives_its_timeout_means_a_lost_session(
    session: AgentSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MARGIN", 0.05)
    with pytest.raises(SessionLostError, match="did not end a command at its timeout"):
        session.exec("immortal", timeout=0.01, kill_grace=0.01)
    assert session.state is SessionState.LOST


def test_a_host_that_was_stopped_itself_finds_the_exit_that_waits(
    session: AgentSession, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after Ctrl-Z and fg: the deadline is long over when the reader gets to run.
    stream = session.exec_stream("hello", timeout=1)
    next(stream)
    ages = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: ages)
    agent.job().exit(signal=9, reason=1)
    assert stream.wait().timed_out


def test_an_abort_that_the_agent_ignores_means_a_lost_session(
    session: AgentSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MARGIN", 0.05)
    stream = session.exec_stream("immortal")
    stream.kill()
    with pytest.raises(SessionLostError, match="it is frozen"):
        stream.wait()


def test_the_container_s_end(session: AgentSession, agent: FakeAgent) -> None:
    waiting = Call(lambda: session.exec("scripted"))
    agent.job()
    assert session.state.value == "running"
    agent.hang_up()
    with pytest.raises(SessionLostError, match=r"container is gone.*Create a new session"):
        waiting.get()
    assert session.state is SessionState.LOST
    with pytest.raises(SessionLostError):
        session.exec("true")


def test_destroy_ends_what_waits_and_what_comes(session: AgentSession, agent: FakeAgent) -> None:
    waiting = Call(lambda: session.exec("scripted"))
    agent.job()
    session.destroy()
    with pytest.raises(SessionDestroyedError, match=r"Session test was destroyed\. Create a new session"):
        waiting.get()
    for call in (lambda: session.exec("true"), lambda: session.exec_stream("true"), lambda: session.shell("true")):
        with pytest.raises(SessionDestroyedError):
            call()
    session.destroy()
    assert session.state is SessionState.DESTROYED
    assert session._backend.calls == ["remove"]  # type: ignore[attr-defined]


def test_a_lost_session_that_is_destroyed_is_destroyed(session: AgentSession, agent: FakeAgent) -> None:
    agent.hang_up()
    with pytest.raises(SessionLostError):
        session.exec("scripted")
    session.destroy()
    assert session.state is SessionState.DESTROYED
    with pytest.raises(SessionDestroyedError):
        session.exec("true")


def test_a_destroy_that_failed_can_be_repeated(session: AgentSession) -> None:
    backend = session._backend
    backend.fail["remove"] = lambda: (_ for _ in ()).throw(EngineError("busy"))  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="busy") as caught:
        session.destroy()
    assert caught.value.details["session"] == "test"
    assert session.state.value == "destroying"
    with pytest.raises(SessionDestroyedError):
        session.exec("true")
    del backend.fail["remove"]  # type: ignore[attr-defined]
    session.destroy()
    assert session.state is SessionState.DESTROYED


def test_a_dropped_session_ends_and_warns(connection: Connection) -> None:
    session = AgentSession(
        session_id="loose",
        container_id="container",
        backend=FakeBackend(),
        connection=connection,
        limits=Limits(),
        env={},
    )
    with pytest.warns(ResourceWarning, match="session loose was never destroyed"):
        del session
    connection._thread.join(10)
    assert not connection._thread.is_alive()


def test_frames_of_a_call_without_input_are_one(session: AgentSession, agent: FakeAgent) -> None:
    session.exec("true")
    assert [frame.kind for frame in agent.frames] == [FrameType.EXEC]
    session.exec("count", input=b"abc")
    assert [frame.kind for frame in agent.frames[1:]] == [FrameType.EXEC, FrameType.DATA, FrameType.EOF]
