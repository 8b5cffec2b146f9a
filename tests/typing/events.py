"""What type checkers know: checked, never run. An ignored error that does not occur is an error itself."""

from __future__ import annotations

import threading
from typing import Literal

from typing_extensions import assert_never, assert_type

from sandboxkit import (
    AbortSignal,
    Event,
    ExecResult,
    ExecStream,
    ExitEvent,
    Limits,
    Sandbox,
    Session,
    StderrEvent,
    StdoutEvent,
)


def by_type_field(event: Event) -> str:
    if event.type == "stdout":
        assert_type(event, StdoutEvent)
        assert_type(event.text, str)
        return event.text
    if event.type == "stderr":
        assert_type(event, StderrEvent)
        return str(event.data)
    assert_type(event, ExitEvent)
    assert_type(event.type, Literal["exit"])
    assert_type(event.result, ExecResult)
    return str(event.data)  # type: ignore[attr-defined]


def by_class(event: Event) -> bytes:
    if isinstance(event, StdoutEvent | StderrEvent):
        return event.data
    if isinstance(event, ExitEvent):
        return event.result.stdout_bytes
    assert_never(event)


def streams(session: Session) -> None:
    with session.exec_stream("true", stdin=True) as stream:
        assert_type(stream, ExecStream)
        for event in stream:
            assert_type(event, StdoutEvent | StderrEvent | ExitEvent)
        assert_type(stream.result, ExecResult | None)
        assert_type(stream.wait(), ExecResult)
        stream.write("text")  # type: ignore[arg-type]


def results(session: Session) -> None:
    result = session.exec("true", ["x"], abort=threading.Event(), input=iter([b"x"]))
    assert_type(result, ExecResult)
    assert_type(result.check(), ExecResult)
    assert_type(result.exit_code, int | None)
    assert_type(result.stdout, str)
    assert_type(session.shell("true", abort=AbortSignal.any(AbortSignal(), threading.Event())), ExecResult)
    result.exit_code = 1  # type: ignore[misc]
    session.exec("true", abort=True)  # type: ignore[arg-type]
    session.exec("true", input=3)  # type: ignore[arg-type]
    session.exec("true", "x", "y")  # type: ignore[call-arg]


def sandboxes() -> None:
    with Sandbox("image", limits=Limits(timeout=3)).create_session() as session:
        assert_type(session, Session)
    Limits(30)  # type: ignore[call-arg]
    Limits(when_busy="never")  # type: ignore[arg-type]
