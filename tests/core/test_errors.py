"""The errors: the tree in the documentation is the tree, codes are unique and stable, and they cross processes."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Iterator

import pytest

import sandboxkit
from sandboxkit import ErrorCode, SandboxError, errors

CODES = {
    "ConfigError": "config",
    "UnsupportedError": "unsupported",
    "EngineUnavailableError": "engine_unavailable",
    "EngineError": "engine",
    "ImageNotFoundError": "image_not_found",
    "LimitsNotEnforceableError": "limits_not_enforceable",
    "SessionNotFoundError": "session_not_found",
    "SessionLostError": "session_lost",
    "SessionDestroyedError": "session_destroyed",
    "SessionBusyError": "session_busy",
    "CommandFailedError": "command_failed",
    "PathError": "path",
    "FileTooLargeError": "file_too_large",
    "FileError": "file",
    "PolicyError": "policy",
    "PortError": "port",
    "ProcessError": "process",
    "ProcessTimeoutError": "process_timeout",
}
RETRYABLE = {"EngineUnavailableError", "SessionBusyError"}


def below(kind: type[SandboxError]) -> Iterator[type[SandboxError]]:
    for child in kind.__subclasses__():
        if child.__module__ == "sandboxkit.errors":
            yield child
            yield from below(child)


ALL = list(below(SandboxError))


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    stack = ["Exception"]
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^( +)(?:[│ ]*)[├└]── (\w+)", line)
        if found is None:
            continue
        depth = line.index("── ") // 4
        del stack[depth:]
        kind = getattr(errors, found[2])
        assert kind.__bases__[0].__name__ == stack[-1], line
        if "(also " in line:
            assert kind.__mro__[1].__name__ == stack[-1]
            assert re.search(r"\(also (\w+)\)", line)[1] in [parent.__name__ for parent in kind.__mro__]  # type: ignore[index]
        stack.append(found[2])
    named = set(re.findall(r"── (\w+)", errors.__doc__ or ""))
    assert named == {"SandboxError", *(kind.__name__ for kind in ALL)}


def test_codes_are_unique_and_stable() -> None:
    assert {kind.__name__: kind.code.value for kind in ALL} == CODES
    assert sorted(code.value for code in ErrorCode) == sorted(CODES.values())
    assert {kind.__name__ for kind in ALL if kind.retryable} == RETRYABLE
    assert json.dumps({"code": ErrorCode.PATH}) == '{"code": "path"}'
    assert ErrorCode.PATH.value == "path"


def test_all_are_public() -> None:
    assert set(errors.__all__) == {"ErrorCode", "SandboxError", *CODES}
    assert set(errors.__all__) <= set(sandboxkit.__all__)


@pytest.mark.parametrize("kind", ALL)
def test_errors_cross_processes_and_are_copied_whole(kind: type[SandboxError]) -> None:
    error = kind("what happened", retryable=not kind.retryable, details={"tried": ["a"], "status": 404})
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), again.retryable, again.details) == (str(error), error.retryable, error.details)
        assert again.args == ("what happened",)
        again.details["more"] = 1
    assert error.details == {"tried": ["a"], "status": 404}


def test_details_are_the_error_s_own() -> None:
    details: dict[str, object] = {"a": 1}
    error = errors.EngineError("x", details=details)
    error.details["b"] = 2
    assert details == {"a": 1}
    assert errors.EngineError("x").details == {}
    assert errors.EngineError("x").retryable is False
    assert errors.EngineError("x", retryable=True).retryable is True


def test_a_config_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"limits\.pids"):
        sandboxkit.Limits(pids=1)
