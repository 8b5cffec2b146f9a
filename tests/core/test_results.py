"""Results: fields in their order, what people read of them, and what a notebook shows."""

from __future__ import annotations

import pickle
import re
from typing import Any

import attrs
import pytest

from sandboxkit import CommandFailedError, Event, ExecResult, ExitEvent, StderrEvent, StdoutEvent

FIELDS = [
    *("command", "args", "stdout_bytes", "stderr_bytes", "exit_code", "signal", "duration"),
    *("timed_out", "aborted", "oom_killed", "stdout_truncated", "stderr_truncated"),
    *("stdout_total_bytes", "stderr_total_bytes", "cpu_seconds", "max_rss_bytes", "background_pids"),
]


def result(**changes: Any) -> ExecResult:
    return ExecResult(**{"command": "c", "exit_code": 0, "duration": 1.25, **changes})


def test_fields_are_stable_and_frozen() -> None:
    assert [field.name for field in attrs.fields(ExecResult)] == FIELDS
    assert all(field.kw_only for field in attrs.fields(ExecResult))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        result().exit_code = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result(args=("a",)))) == result(args=("a",))
    assert "stdout_bytes" not in repr(result(stdout_bytes=b"x" * 10_000))


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"exit_code": 3}, "exited with 3"),
        ({"exit_code": 127}, "exited with 127"),
        ({"exit_code": 139, "signal": "SIGSEGV"}, "was killed by SIGSEGV"),
        (
            {"exit_code": 137, "signal": "SIGKILL", "oom_killed": True},
            "was killed because the sandbox ran out of memory",
        ),
        ({"exit_code": None, "signal": "SIGTERM", "timed_out": True}, "timed out after 1.2 s"),
        ({"exit_code": None, "signal": "SIGKILL", "aborted": True}, "was aborted after 1.2 s"),
    ],
)
def test_check_raises_for_all_but_success(changes: dict[str, Any], phrase: str) -> None:
    failed = result(command="a b", args=("it's",), stderr_bytes=b"why \xff\n", **changes)
    assert not failed.ok
    assert failed.outcome == phrase
    with pytest.raises(CommandFailedError) as caught:
        failed.check()
    assert str(caught.value) == f"'a b' 'it'\"'\"'s' {phrase}: why \N{REPLACEMENT CHARACTER}"
    assert caught.value.details == {
        name: getattr(failed, name) for name in ("exit_code", "signal", "timed_out", "aborted", "oom_killed")
    }


def test_check_returns_a_success_and_is_brief() -> None:
    good = result(stderr_bytes=b"warning")
    assert good.check() is good
    with pytest.raises(CommandFailedError) as caught:
        result(command="x" * 10_000, exit_code=1, stderr_bytes=b"e" * 100_000 + b"END").check()
    assert len(str(caught.value)) < 2300
    assert str(caught.value).endswith("END")
    with pytest.raises(CommandFailedError, match=r"^c exited with 1$"):
        result(exit_code=1).check()


def test_what_a_notebook_shows_is_escaped() -> None:
    nasty = "<script>alert('&')</script>"
    shown = result(
        command=nasty,
        args=(nasty,),
        stdout_bytes=nasty.encode(),
        stderr_bytes=nasty.encode(),
        signal=nasty,
        exit_code=1,
    )._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 5
    assert set(re.findall(r"</?(\w+)", shown)) == {"div", "code", "span", "small", "pre"}


def test_what_a_notebook_shows_is_brief() -> None:
    shown = result(stdout_bytes=b"s" + b"x" * 1_000_000 + b"e")._repr_html_()
    assert len(shown) < 25_000
    assert "exited with 0" in shown
    assert "green" in shown
    assert "crimson" in result(exit_code=1)._repr_html_()
    assert "<pre>" not in result()._repr_html_()


def test_events() -> None:
    assert StdoutEvent(b"\xc3\xa9\xff").text == "é\N{REPLACEMENT CHARACTER}"
    assert (StdoutEvent(b"").type, StderrEvent(b"").type, ExitEvent(result()).type) == ("stdout", "stderr", "exit")
    events: list[Event] = [StderrEvent(b"x"), StdoutEvent(b"y")]
    assert StdoutEvent(b"x") not in events
    assert StdoutEvent(b"x") == StdoutEvent(b"x")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        StdoutEvent(b"x").data = b"y"  # type: ignore[misc]
