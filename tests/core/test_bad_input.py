"""Bad input: a ConfigError that names the field, shows what came and says what is accepted; nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import (
    ConfigError,
    DockerSandbox,
    Limits,
    Network,
    PodmanSandbox,
    Pull,
    Sandbox,
    Security,
    Session,
    UnsupportedError,
    Workspace,
)
from sandboxkit._session import AgentSession
from sandboxkit.backend import Feature

from .conftest import MakeSession
from .fake_agent import FakeAgent
from .fake_backend import FakeBackend

NOT_TEXT: list[Any] = [None, 3, b"x", ["x"], True, object()]
TEXT: list[Any] = [*NOT_TEXT, "", "a\0b", "\ud800"]
NUMBERS: list[Any] = ["1", b"1", [1], True, math.nan, -math.inf, -1, 1j, object(), 10**400]
SECONDS: list[Any] = [*NUMBERS, 0, math.inf]
WHOLE: list[Any] = ["1", 1.5, 1.0, True, None, -1, [1]]

# Of exec, exec_stream and shell: argument → (the field as it is named, what is refused).
CALL: dict[str, list[tuple[str, list[Any]]]] = {
    "cwd": [("cwd", TEXT)],
    "env": [
        ("env", ["A=b", 3, [], [("A", "b")], True, ""]),
        ("env name", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {3: "x"}, {None: "x"}, {"\ud800": "x"}]),
        (r"env\['A'\]", [{"A": 3}, {"A": None}, {"A": b"x"}, {"A": "\0"}, {"A": "\ud800"}, {"A": "x" * 131_072}]),
    ],
    "input": [("input", [3, True, ["x"], [b"x"], "\ud800", object(), {b"x"}, range(3)])],
    "timeout": [("timeout", [value for value in SECONDS if value is not math.inf])],
    "kill_grace": [("kill_grace", [*NUMBERS, math.inf])],
    "abort": [("abort", [True, "x", object()])],
    "max_output_bytes": [("max_output_bytes", [value for value in WHOLE if value is not None])],
}
ARGUMENTS: list[tuple[str, Any]] = [
    *(("args", value) for value in ["x", b"x", None, 3, {"a", "b"}, {"a": "b"}, iter(["x"])]),
    *((r"args\[1\]", ["x", value]) for value in [*NOT_TEXT, "\0", "\ud800", "x" * 131_072]),
    (r"args\[0\]", bytearray(b"x")),
    ("args", ["x" * 100_000] * 21),
]


def refusals(table: dict[str, list[tuple[str, list[Any]]]]) -> list[Any]:
    return [
        pytest.param(name, field, value, id=f"{name}-{str(value)[:20]!r}")
        for name, fields in table.items()
        for field, values in fields
        for value in values
    ]


def refused(field: str, call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is .*; accepted: .") as caught:
        call()
    assert len(str(caught.value)) < 500
    assert caught.value.details["field"]
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "field", "value"), refusals(CALL))
def test_options_of_a_command(name: str, field: str, value: Any, session: AgentSession, agent: FakeAgent) -> None:
    for call in (session.exec, session.exec_stream, session.shell):
        refused(field, lambda call=call: call("true", **{name: value}))  # type: ignore[misc]
    assert not agent.frames


@pytest.mark.parametrize(("field", "value"), ARGUMENTS)
def test_arguments(field: str, value: Any, session: AgentSession, agent: FakeAgent) -> None:
    refused(field, lambda: session.exec("true", value))
    refused(field, lambda: session.exec_stream("true", value))
    assert not agent.frames


@pytest.mark.parametrize("value", TEXT)
def test_commands_and_scripts(value: Any, session: AgentSession, agent: FakeAgent) -> None:
    refused("command", lambda: session.exec(value))
    refused("command", lambda: session.exec_stream(value))
    if value != "":
        refused("script", lambda: session.shell(value))
    assert not agent.frames


@pytest.mark.parametrize("name", ["on_stdout", "on_stderr"])
@pytest.mark.parametrize("value", ["print", 3, [print]])
def test_callbacks(name: str, value: Any, session: AgentSession, agent: FakeAgent) -> None:
    refused(name, lambda: session.exec("true", **{name: value}))
    refused(name, lambda: session.shell("true", **{name: value}))
    assert not agent.frames


def test_options_of_a_stream(session: AgentSession, agent: FakeAgent) -> None:
    for name in ("stdin", "tty"):
        for flag in (1, 0, "yes", None):
            refused(name, lambda name=name, flag=flag: session.exec_stream("true", **{name: flag}))  # type: ignore[misc]
    for name in ("rows", "columns"):
        for size in (*WHOLE, 0, 65_536):
            refused(name, lambda name=name, size=size: session.exec_stream("true", tty=True, **{name: size}))  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"input and stdin=True were both given; accepted: one of them"):
        session.exec_stream("true", stdin=True, input=b"")
    stream = session.exec_stream("scripted")
    for grace in (*NUMBERS, None, math.inf):
        refused("grace", lambda grace=grace: stream.kill(grace))  # type: ignore[misc]
    stream.close()
    assert len(agent.jobs) == 1


def test_a_timeout_above_the_session_s(make_session: MakeSession, agent: FakeAgent) -> None:
    session = make_session(timeout=1, max_timeout=5)
    for timeout in (5.1, math.inf, 1e300):
        with pytest.raises(ConfigError, match=r"^timeout is "):
            session.exec("true", timeout=timeout)
    with pytest.raises(ConfigError, match=r"timeout is 6; accepted: at most limits\.max_timeout, 5 s"):
        session.exec("true", timeout=6)
    assert not agent.frames


def test_the_first_wrong_argument_is_the_one_named(session: AgentSession) -> None:
    refused("command", lambda: session.exec("", 3, env=3, abort=3))  # type: ignore[arg-type]
    refused("args", lambda: session.exec("x", 3, env=3, abort=3))  # type: ignore[arg-type]
    refused("env", lambda: session.exec("x", [], env=3, abort=3))  # type: ignore[arg-type]


def test_what_is_shown_is_short_whatever_came(session: AgentSession) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**10_000, "x" * 10**6, Odd(), ["x"] * 1000):
        with pytest.raises(ConfigError) as caught:
            session.exec("true", timeout=value)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 200


LIMITS: dict[str, list[tuple[str, list[Any]]]] = {
    "timeout": [("limits.timeout", SECONDS)],
    "max_timeout": [("limits.max_timeout", SECONDS)],
    "max_output_bytes": [("limits.max_output_bytes", [*WHOLE, 1 << 41])],
    "max_file_bytes": [("limits.max_file_bytes", WHOLE)],
    "max_processes": [("limits.max_processes", WHOLE)],
    "max_concurrent_execs": [("limits.max_concurrent_execs", [*WHOLE, 0, 513])],
    "when_busy": [("limits.when_busy", ["", "Wait", None, True, [], 1])],
    "memory_mb": [("limits.memory_mb", ["1", 64.0, True, -1, 0, 5, 1 << 50])],
    "cpus": [("limits.cpus", [*SECONDS, 0.001])],
    "pids": [("limits.pids", ["1", 64.0, True, -1, 0, 15, 1 << 23])],
    "disk_mb": [("limits.disk_mb", ["1", 64.0, True, -1, 0, 1 << 50])],
    "allow_unenforced": [("limits.allow_unenforced", [None, 1, "yes"])],
}


@pytest.mark.parametrize(("name", "field", "value"), refusals(LIMITS))
def test_limits(name: str, field: str, value: Any) -> None:
    refused(field, lambda: Limits(**{name: value}))


def test_limits_that_contradict_each_other() -> None:
    refused("limits.timeout", lambda: Limits(timeout=10, max_timeout=5))
    assert Limits(timeout=5, max_timeout=5)
    assert Limits(timeout=None, max_timeout=5, memory_mb=None, pids=None)


def test_security_and_workspace() -> None:
    for flag in (1, None, "yes"):
        refused("security.readonly_rootfs", lambda flag=flag: Security(readonly_rootfs=flag))  # type: ignore[misc]
    for text in (value for value in TEXT if value is not None):
        refused("security.runtime", lambda text=text: Security(runtime=text))  # type: ignore[misc]
        refused("security.user", lambda text=text: Security(user=text))  # type: ignore[misc]
        refused("security.seccomp", lambda text=text: Security(seccomp=text))  # type: ignore[misc]
    for profile in ("{", "[]", "{}", '"x"', "null"):
        refused("security.seccomp", lambda profile=profile: Security(seccomp=profile))  # type: ignore[misc]
    assert Security(seccomp='{"defaultAction": "SCMP_ACT_ERRNO"}')
    for size in (*WHOLE, 0):
        refused("workspace.size_mb", lambda size=size: Workspace.tmpfs(size_mb=size))  # type: ignore[misc]
    for mode in ("none", None, 3):
        refused("network", lambda mode=mode: Network(mode))  # type: ignore[misc]
        refused("workspace", lambda mode=mode: Workspace(mode))  # type: ignore[misc]


SANDBOX: dict[str, list[tuple[str, list[Any]]]] = {
    "image": [
        (
            "image",
            [*TEXT, "UPPER", "a b", "-x", "a:", "a:b:c", "a@sha256:12", "http://a/b", "a\n", "x" * 5000, "a/../b"],
        )
    ],
    "backend": [("backend", [*TEXT, FakeBackend])],
    "url": [("url", [value for value in TEXT if value is not None])],
    "limits": [("limits", [{}, 3, Limits, Security()])],
    "network": [("network", ["none", True, Network])],
    "security": [("security", [{}, Security])],
    "workspace": [("workspace", ["tmpfs", Workspace])],
    "env": [("env", ["x", 3]), ("env name", [{"": "x"}]), (r"env\['A'\]", [{"A": 3}])],
    "labels": [
        ("labels", ["x", 3]),
        ("labels name", [{"": "x"}, {"sandboxkit.session": "x"}, {3: "x"}]),
        (r"labels\['A'\]", [{"A": 3}]),
    ],
    "pull": [("pull", ["", "Always", None, 3, True, [], Pull])],
    "on_pull": [("on_pull", ["print", 3])],
}


@pytest.mark.parametrize(("name", "field", "value"), refusals(SANDBOX))
def test_sandbox(name: str, field: str, value: Any) -> None:
    refused(field, lambda: Sandbox(**{"image": "image", "backend": FakeBackend(), name: value}))


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.12-slim",
        "docker.io/library/python:3.12-slim",
        "localhost:5000/a/b_c/d--e.f:V1.0_x",
        "LOCALHOST:5000/a",
        "a@sha256:" + "0" * 64,
        "a:tag@sha256:" + "0" * 64,
        "0123456789ab",
    ],
)
def test_images_that_are_accepted(image: str) -> None:
    assert Sandbox(image, FakeBackend()).image == image


@pytest.mark.parametrize(
    ("name", "field", "value"),
    refusals(
        {
            "id": [("id", ["", "A", "-a", ".a", "a b", "ä", "a\n", "a/b", "a" * 64, 3, b"a"])],
            "env": [("env", [3]), ("env name", [{"=": "x"}])],
            "labels": [("labels", [3]), ("labels name", [{"sandboxkit.x": "y"}])],
        }
    ),
)
def test_create_session(name: str, field: str, value: Any) -> None:
    backend = FakeBackend()
    refused(field, lambda: Sandbox("image", backend).create_session(**{name: value}))
    assert not backend.calls


def test_what_a_backend_lacks_is_refused_before_it_is_asked() -> None:
    backend = FakeBackend(features=frozenset())
    for feature, options in {
        Feature.READONLY_ROOTFS: {"security": Security(readonly_rootfs=True)},
        Feature.USERS: {"security": Security(user="1000")},
        Feature.TMPFS: {"workspace": Workspace.tmpfs()},
        Feature.BRIDGE: {"network": Network.bridge()},
    }.items():
        with pytest.raises(UnsupportedError, match="The backend fake has no "):
            Sandbox("image", backend, **options).create_session()  # type: ignore[arg-type]
        assert not backend.calls, feature


def test_the_engines_own_classes_name_their_engine() -> None:
    assert DockerSandbox("image")._backend == "docker"
    assert PodmanSandbox("image", "unix:///x")._url == "unix:///x"
    assert (
        repr(Sandbox.python(backend=FakeBackend())) == "Sandbox('docker.io/library/python:3.12-slim', backend='fake')"
    )
    for make in (Sandbox.python, Sandbox.node, Sandbox.deno, Sandbox.bun, DockerSandbox.python, PodmanSandbox.node):
        refused("limits", lambda make=make: make(limits=3))  # type: ignore[misc]


def test_the_one_session_class_is_a_session(session: AgentSession) -> None:
    checked: Session = session
    assert isinstance(checked, Session)
