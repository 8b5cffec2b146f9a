"""Being told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from sandboxkit import ConfigError, Hooks, PathError
from sandboxkit.errors import ErrorCode
from sandboxkit.hooks import ExecEnded, ExecStarted, FileWritten, SessionCreated, SessionEnded

from ._suite import Suite


class Hooking(Suite):
    """`Sandbox(hooks=...)`."""

    def heard(self) -> tuple[list[Any], Hooks]:
        """A list, and hooks that put every event into it."""
        events: list[Any] = []
        hear: Callable[[Any], None] = events.append
        return events, Hooks(on_session_create=hear, on_exec_start=hear, on_exec_end=hear, on_destroy=hear)

    def test_every_event_comes_once_and_in_order(self) -> None:
        """`on_session_create`, `on_exec_start`, `on_exec_end`, `on_destroy`."""
        events, hooks = self.heard()
        with self.create(hooks=hooks) as session:
            session.exec("echo", ["four"]).check()
            session.shell("exit 3")
            with session.exec_stream("/bin/sh", ["-c", "echo x"]) as stream:
                list(stream)
        session.destroy()
        kinds = [type(event) for event in events]
        assert kinds == [SessionCreated, *([ExecStarted, ExecEnded] * 3), SessionEnded]
        assert {event.session_id for event in events} == {session.id}
        assert (events[0].backend, events[-1].backend) == (self.backend.name, self.backend.name)
        assert events[0].duration > 0
        assert 0 < events[-1].duration <= events[-1].lifetime
        echo, shell, stream_end = events[2], events[4], events[6]
        assert (echo.command, echo.exit_code, echo.stdout_bytes, echo.streamed) == ("echo", 0, 5, False)
        assert (shell.command, shell.exit_code) == ("sh", 3)
        assert (stream_end.command, stream_end.exit_code, stream_end.streamed) == ("sh", 0, True)
        assert [event.exec_id for event in events[1:7]] == [1, 1, 2, 2, 3, 3]

    def test_events_hold_no_payload(self) -> None:
        """No arguments, no environment, no path, no output."""
        events, hooks = self.heard()
        secret = "s3cret-payload"
        with self.create(hooks=hooks, env={"SESSION_ENV": secret}) as session:
            session.exec("sh", ["-c", "cat; echo $0 $X >&2", secret], env={"X": secret}, input=secret.encode()).check()
        assert len(events) == 4
        assert not any(secret in repr(attrs.astuple(event)) for event in events)

    def test_written_files_are_told_by_their_size(self, tmp_path: Path) -> None:
        """`on_file_write`; each write, an edit, an upload as a whole. Reading is no write."""
        events: list[FileWritten] = []
        (tmp_path / "one").write_bytes(bytes(100))
        (tmp_path / "two").write_bytes(bytes(11))
        with self.create(hooks=Hooks(on_file_write=events.append)) as session:
            session.files.write("file", b"0123456789")
            session.files.write_text("file", "é")
            session.files.edit("file", "é", "abc")
            session.files.upload(tmp_path, "folder")
            session.files.read("file")
            with pytest.raises(PathError):
                session.files.write("missing/file", b"0123", parents=False)
        assert [event.size for event in events] == [10, 2, 3, 111, 0]
        assert [event.error for event in events] == [None, None, None, None, ErrorCode.PATH]
        assert {event.session_id for event in events} == {session.id}
        assert "file" not in repr(attrs.astuple(events[0]))

    def test_a_command_that_can_not_start_says_why(self) -> None:
        """The error's code, not its text."""
        events, hooks = self.heard()
        with self.create(hooks=hooks) as session:
            with pytest.raises(PathError):
                session.exec("true", cwd="no-such-folder")
            with pytest.raises(ConfigError):
                session.exec("true", timeout=-1)
        assert [event.error for event in events if isinstance(event, ExecEnded)] == [ErrorCode.PATH, ErrorCode.CONFIG]

    def test_flags_are_told(self) -> None:
        """A timeout, an abort, and a stream that was left early."""
        events, hooks = self.heard()
        aborted = threading.Event()
        aborted.set()
        with self.create(hooks=hooks) as session:
            session.exec("sleep", ["1000"], timeout=0.1, kill_grace=0)
            session.exec("sleep", ["1000"], abort=aborted)
            with session.exec_stream("sleep", ["1000"]):
                pass
        timeout, abort, left = [event for event in events if isinstance(event, ExecEnded)]
        assert (timeout.timed_out, timeout.exit_code, timeout.error) == (True, None, None)
        assert (abort.aborted, abort.error) == (True, None)
        assert (left.exit_code, left.error, left.streamed) == (None, None, True)

    def test_a_hook_that_raises_breaks_nothing_and_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """An exception in a hook doesn't break the session."""

        def broken(event: object) -> None:
            raise ZeroDivisionError

        hooks = Hooks(on_session_create=broken, on_exec_start=broken, on_exec_end=broken, on_destroy=broken)
        with caplog.at_level(logging.ERROR), self.create(hooks=hooks) as session:
            assert session.exec("echo", ["x"]).stdout == "x\n"
        assert [record.name for record in caplog.records] == ["sandboxkit.hooks"]

    def test_hooks_can_be_combined(self) -> None:
        """Each is told, also when one before it fails."""
        first, hooks = self.heard()
        second, others = self.heard()

        def broken(event: object) -> None:
            raise ZeroDivisionError

        with self.create(hooks=Hooks.combine(hooks, Hooks(on_exec_end=broken), others)) as session:
            session.exec("true")
        assert first == second
        assert len(first) == 4

    def test_a_session_without_hooks_is_a_plain_one(self) -> None:
        """They cost nobody anything but those who have them."""
        with self.create() as plain, self.create(hooks=Hooks()) as without:
            assert type(plain) is type(without)
        with pytest.raises(ConfigError, match="on_exec_end"):
            Hooks(on_exec_end=3)  # type: ignore[arg-type]
