"""The surface that users build on: a change here is a change of the API, and goes into the changelog."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sandboxkit
from sandboxkit import AbortSignal, ExecStream, Limits, Sandbox, Session
from sandboxkit._session import AgentSession

ROOT = Path(__file__).parent.parent.parent
NAMES = (Path(__file__).parent / "public_names.txt").read_text("utf-8").split()

EXEC = "command args cwd env input timeout kill_grace abort on_stdout on_stderr max_output_bytes"
STREAM = "command args cwd env input stdin tty rows columns timeout kill_grace abort max_output_bytes"
SIGNATURES = {
    Session.exec: EXEC,
    Session.exec_stream: STREAM,
    Session.shell: EXEC.replace("command args", "script"),
    ExecStream.write: "data",
    ExecStream.resize: "rows columns",
    ExecStream.kill: "grace",
    AbortSignal.set: "reason",
    AbortSignal.after: "seconds",
    AbortSignal.any: "sources",
    AbortSignal.add_callback: "callback",
}
LIMITS = (
    "timeout max_timeout max_output_bytes max_file_bytes max_processes max_concurrent_execs when_busy memory_mb cpus "
    "pids disk_mb allow_unenforced"
)


def test_the_public_names() -> None:
    assert sandboxkit.__all__ == sorted(NAMES)
    for name in NAMES:
        assert getattr(sandboxkit, name) is not None


def test_what_is_loaded_late_is_where_type_checkers_are_told() -> None:
    tree = ast.parse(Path(sandboxkit.__file__).read_text("utf-8"))
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == sandboxkit._FOUND_IN
    assert {*told, "__version__"} == set(sandboxkit.__all__)
    assert set(sandboxkit.__all__) <= set(dir(sandboxkit))
    with pytest.raises(AttributeError, match="no_such_name"):
        sandboxkit.no_such_name  # noqa: B018


def test_importing_the_package_loads_next_to_nothing() -> None:
    source = "import sys, sandboxkit; print(*(name for name in sys.modules if name.startswith(('sandboxkit', 'attr'))))"
    found = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = [name for name in found.stdout.split() if not name.startswith("__editable__")]
    assert sorted(loaded) == ["sandboxkit", "sandboxkit.version"]


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signatures(function: object) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert [name for name in parameters if name != "self"] == SIGNATURES[function].split()  # type: ignore[index]


def test_options_are_keywords() -> None:
    for function in (Session.exec, Session.exec_stream, Session.shell, Sandbox.create_session):
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 3
        assert kinds[-1] is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(Limits).parameters) == LIMITS.split()
    with pytest.raises(TypeError):
        Limits(30)  # type: ignore[call-arg]


def test_the_session_does_what_the_protocol_says() -> None:
    for name, promised in vars(Session).items():
        if inspect.isfunction(promised) and not name.startswith("__"):
            assert inspect.signature(getattr(AgentSession, name)) == inspect.signature(promised), name


def test_events_narrow_for_type_checkers() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "tests/typing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
