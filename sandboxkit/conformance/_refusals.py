"""Bad input: a ConfigError that names the field and the accepted values, before anything runs."""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sandboxkit import Limits, Network, Sandbox, Security, Session, Workspace
from sandboxkit.backend import Backend, Feature
from sandboxkit.config import Pull
from sandboxkit.errors import ConfigError, ErrorCode, LimitsNotEnforceableError, ProcessError, UnsupportedError

from ._inside import fresh
from ._suite import Suite, needs, without

# The field an error must name → the call's wrong argument. `...` in `command` stands for one that would leave a mark.
COMMON: list[tuple[str, dict[str, Any]]] = [
    ("command", {"command": ""}),
    ("command", {"command": "a\0b"}),
    ("command", {"command": None}),
    ("command", {"command": ["touch", "x"]}),
    ("command", {"command": b"touch"}),
    ("args", {"args": "one string"}),
    ("args", {"args": b"bytes"}),
    ("args", {"args": 3}),
    ("args[1]", {"args": ["a", 1]}),
    ("args[0]", {"args": [None]}),
    ("args[0]", {"args": [b"bytes"]}),
    ("args[0]", {"args": ["a\0b"]}),
    ("args[0]", {"args": ["\ud800"]}),
    ("args[0]", {"args": ["x" * 131_072]}),
    ("args", {"args": ["x" * 100_000] * 30}),
    ("cwd", {"cwd": ""}),
    ("cwd", {"cwd": "a\0b"}),
    ("cwd", {"cwd": None}),
    ("env", {"env": ["A=b"]}),
    ("env name", {"env": {"": "x"}}),
    ("env name", {"env": {"A=B": "x"}}),
    ("env name", {"env": {"A\0": "x"}}),
    ("env name", {"env": {1: "x"}}),
    ("env['A']", {"env": {"A": 1}}),
    ("env['A']", {"env": {"A": None}}),
    ("env['A']", {"env": {"A": "a\0b"}}),
    ("input", {"input": 3}),
    ("input", {"input": ["a", "list"]}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": -1}),
    ("timeout", {"timeout": math.nan}),
    ("timeout", {"timeout": "5"}),
    ("timeout", {"timeout": True}),
    ("kill_grace", {"kill_grace": -0.1}),
    ("kill_grace", {"kill_grace": math.inf}),
    ("kill_grace", {"kill_grace": "1"}),
    ("abort", {"abort": object()}),
    ("abort", {"abort": True}),
    ("max_output_bytes", {"max_output_bytes": -1}),
    ("max_output_bytes", {"max_output_bytes": 1.5}),
    ("max_output_bytes", {"max_output_bytes": True}),
]
EXEC_ALONE: list[tuple[str, dict[str, Any]]] = [
    ("on_stdout", {"on_stdout": 3}),
    ("on_stdout", {"on_stdout": "print"}),
    ("on_stderr", {"on_stderr": object()}),
]
STREAM_ALONE: list[tuple[str, dict[str, Any]]] = [
    ("stdin", {"stdin": 1}),
    ("tty", {"tty": "yes"}),
    ("rows", {"tty": True, "rows": 0}),
    ("columns", {"tty": True, "columns": 65_536}),
    ("stdin", {"stdin": True, "input": b"x"}),
]
SANDBOXES: list[tuple[str, dict[str, Any]]] = [
    ("image", {"image": ""}),
    ("image", {"image": "lower/UPPER"}),
    ("image", {"image": "spaces in it"}),
    ("image", {"image": None}),
    ("image", {"image": "a:b:c"}),
    ("url", {"url": 3}),
    ("url", {"url": ""}),
    ("limits", {"limits": 3}),
    ("limits", {"limits": {"timeout": 3}}),
    ("network", {"network": "none"}),
    ("security", {"security": True}),
    ("workspace", {"workspace": "/tmp"}),
    ("env name", {"env": {"A=B": "x"}}),
    ("env['A']", {"env": {"A": 1}}),
    ("labels", {"labels": ["a"]}),
    ("labels name", {"labels": {"sandboxkit.session": "x"}}),
    ("pull", {"pull": "sometimes"}),
    ("on_pull", {"on_pull": 3}),
]
LIMITS: list[tuple[str, object]] = [
    ("timeout", 0),
    ("timeout", math.inf),
    ("timeout", "30"),
    ("max_timeout", -1),
    ("max_output_bytes", -1),
    ("max_output_bytes", 1.0),
    ("max_file_bytes", -1),
    ("max_processes", True),
    ("max_concurrent_execs", 0),
    ("max_concurrent_execs", 513),
    ("when_busy", "never"),
    ("memory_mb", 5),
    ("memory_mb", "64"),
    ("cpus", 0),
    ("pids", 15),
    ("disk_mb", 0),
    ("allow_unenforced", "yes"),
]
IDS = ["", "UPPER", "with space", "../up", "-dash", ".dot", "a/b", "é", "a" * 64, "a\n", 3]


def cases(rows: Sequence[tuple[str, dict[str, Any]]]) -> pytest.MarkDecorator:
    """A test's parameters `field` and `wrong`, and names for them."""
    names = ["-".join(f"{name}={_short(value)}" for name, value in wrong.items()) for _, wrong in rows]
    return pytest.mark.parametrize(("field", "wrong"), rows, ids=names)


def _short(value: object) -> str:
    # The same in every process: pytest-xdist compares the names.
    return "object()" if type(value) is object else reprlib.repr(value)


@contextlib.contextmanager
def refused(field: str) -> Iterator[None]:
    """The block raises a ConfigError whose message names the field and says what is accepted."""
    with pytest.raises(ConfigError) as caught:
        yield
    error = caught.value
    assert error.details["field"] == field
    assert field in str(error)
    assert "accepted: " in str(error)
    assert error.code is ErrorCode.CONFIG
    assert isinstance(error, ValueError)


class Untouchable:
    """A backend that fails the test as soon as anything is asked of it but its name and features."""

    name = "untouchable"
    features: frozenset[Feature] = frozenset()

    def __init__(self, wrapped: Backend) -> None:
        self.features = wrapped.features

    def touched(self, *args: object, **options: object) -> Any:
        raise AssertionError("the engine was asked before the input was refused")

    info = ensure_image = install_agent = create = attach = start = inspect = list = remove = close = touched

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> Backend:
        raise AssertionError("the engine was asked before the input was refused")


class Refusals(Suite):
    """ConfigError; nothing ran, nothing was asked of the engine."""

    @cases([*COMMON, *EXEC_ALONE])
    def test_exec_refuses_what_is_wrong(self, session: Session, field: str, wrong: dict[str, Any]) -> None:
        """An error naming the argument, before anything runs."""
        mark = fresh()
        call: dict[str, Any] = {"command": "touch", "args": [mark], **wrong}
        with refused(field):
            session.exec(**call)
        assert not session.exec("test", ["-e", mark]).ok

    @cases([*COMMON, *STREAM_ALONE])
    def test_exec_stream_refuses_what_is_wrong(self, session: Session, field: str, wrong: dict[str, Any]) -> None:
        """The same for streams, at the call and not at the first event."""
        mark = fresh()
        call: dict[str, Any] = {"command": "touch", "args": [mark], **wrong}
        with refused(field):
            session.exec_stream(**call)
        assert not session.exec("test", ["-e", mark]).ok

    @pytest.mark.parametrize("script", [None, 3, b"true", "a\0b"])
    def test_shell_refuses_what_is_wrong(self, session: Session, script: Any) -> None:
        """The same for scripts."""
        with refused("script"):
            session.shell(script)

    def test_text_written_to_a_stream_is_refused(self, session: Session) -> None:
        """Text where bytes are needed."""
        with session.exec_stream("cat", stdin=True) as stream:
            with refused("data"):
                stream.write("text")  # type: ignore[arg-type]
            stream.write(b"bytes")
            stream.close_stdin()
            assert stream.wait().stdout == "bytes"

    def test_a_stream_without_open_input_refuses_writes(self, session: Session) -> None:
        """A clear error instead of silence."""
        with session.exec_stream("cat") as stream, pytest.raises(ProcessError, match="stdin=True"):
            stream.write(b"x")

    def test_a_stream_without_terminal_refuses_resize(self, session: Session) -> None:
        """A clear error instead of silence."""
        with session.exec_stream("cat", stdin=True) as stream, pytest.raises(ProcessError, match="tty=True"):
            stream.resize(10, 10)

    @cases(SANDBOXES)
    def test_a_sandbox_refuses_what_is_wrong(self, field: str, wrong: dict[str, Any]) -> None:
        """Before any engine call, by ConfigError naming the field and the accepted values."""
        arguments: dict[str, Any] = {"image": "some/image", "backend": Untouchable(self.backend), **wrong}
        with refused(field):
            Sandbox(**arguments)

    @pytest.mark.parametrize(("field", "value"), LIMITS)
    def test_limits_refuse_what_is_wrong(self, field: str, value: Any) -> None:
        """Bad limits."""
        with refused(f"limits.{field}"):
            Limits(**{field: value})

    def test_a_timeout_above_the_ceiling_is_refused(self) -> None:
        """`max_timeout` is the ceiling of the session's own too."""
        with refused("limits.timeout"):
            Limits(timeout=31, max_timeout=30)

    @pytest.mark.parametrize("id", IDS)
    def test_a_bad_id_is_refused(self, id: Any) -> None:
        """Bad ids, before any engine call."""
        sandbox = Sandbox("some/image", Untouchable(self.backend))
        with refused("id"):
            sandbox.create_session(id=id)

    def test_bad_variables_and_labels_of_a_session_are_refused(self) -> None:
        """Before any engine call."""
        sandbox = Sandbox("some/image", Untouchable(self.backend))
        with refused("env name"):
            sandbox.create_session(env={"A=B": "x"})
        with refused("labels name"):
            sandbox.create_session(labels={"sandboxkit.x": "x"})

    def test_a_sandbox_does_no_io(self) -> None:
        """`Sandbox` holds configuration and does no I/O until `create_session`."""
        sandbox = Sandbox("some/image", Untouchable(self.backend), pull=Pull.ALWAYS)
        assert repr(sandbox) == "Sandbox('some/image', backend='untouchable')"


class Unsupported(Suite):
    """An undeclared feature raises; it is never left out in silence."""

    def refused(self, **options: Any) -> None:
        with pytest.raises(UnsupportedError, match=self.backend.name) as caught:
            self.create(**options)
        assert caught.value.code is ErrorCode.UNSUPPORTED

    @without(Feature.READONLY_ROOTFS)
    def test_readonly_rootfs_is_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(security=Security(readonly_rootfs=True))

    @without(Feature.USERS)
    def test_a_user_is_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(security=Security(user="1000"))

    @without(Feature.TMPFS)
    def test_a_workspace_in_memory_is_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(workspace=Workspace.tmpfs(size_mb=1))

    @without(Feature.BRIDGE)
    def test_a_network_is_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(network=Network.bridge())

    @without(Feature.PUBLISHED_PORTS)
    def test_published_ports_are_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(network=Network.bridge(ports=[8000]))

    @without(Feature.HOST_FILES)
    def test_folders_of_the_host_are_refused(self) -> None:
        """An undeclared feature raises."""
        self.refused(extra_paths=["/usr"])

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [("memory", "memory_mb", 64), ("pids", "pids", 64), ("cpus", "cpus", 0.5), ("disk", "disk_mb", 64)],
    )
    def test_a_limit_is_in_force_or_refused(self, name: str, field: str, value: object) -> None:
        """A limit the engine would ignore in silence raises, unless that is allowed."""
        limits: dict[str, Any] = {"memory_mb": None, "pids": None, field: value}
        if name in self.info.enforceable:
            with self.create(limits=Limits(**limits)) as session:
                assert session.exec("true").ok
            return
        with pytest.raises(LimitsNotEnforceableError, match=rf"limits\.{field}\b.*allow_unenforced=True") as caught:
            self.create(limits=Limits(**limits))
        assert caught.value.details["limits"] == [field]
        with self.create(limits=Limits(**limits, allow_unenforced=True)) as session:
            assert session.exec("true").ok

    @needs(Feature.LIMITS)
    def test_a_backend_of_limits_says_which(self) -> None:
        """`Feature.LIMITS`: those named by `EngineInfo.enforceable`."""
        assert self.info.enforceable <= {"memory", "pids", "cpus", "disk"}
