"""Whatever an SDK raises comes out as an error of sandboxkit: the tables leave nothing out."""

from __future__ import annotations

import inspect
import json
from types import ModuleType
from typing import Any

import docker.errors
import podman.errors.exceptions
import pytest
import requests
import requests.exceptions
import sandboxkit_docker._errors as docker_errors
import sandboxkit_podman._errors as podman_errors
import urllib3.exceptions

from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError, SandboxError, SessionNotFoundError

TABLES = [docker_errors, podman_errors]
each_table = pytest.mark.parametrize("table", TABLES, ids=["docker", "podman"])


def exceptions_of(module: ModuleType) -> list[type[Exception]]:
    found = inspect.getmembers(module, lambda item: isinstance(item, type) and issubclass(item, Exception))
    return [kind for _, kind in found if not issubclass(kind, Warning)]


def sdk_exceptions(table: Any) -> list[type[Exception]]:
    sdk = docker.errors if table is docker_errors else podman.errors.exceptions
    return [*exceptions_of(sdk), *exceptions_of(requests.exceptions), *exceptions_of(urllib3.exceptions)]


@each_table
def test_no_exception_of_the_sdk_is_unmapped(table: Any) -> None:
    rows = tuple(kind for kind, _ in table.TABLE.exceptions)
    assert [kind for kind in sdk_exceptions(table) if not issubclass(kind, rows)] == []


def raised(table: Any, error: BaseException, operation: str = "create") -> SandboxError:
    with pytest.raises(SandboxError) as caught, table.translated(operation, "thing"):
        raise error
    assert caught.value.details["operation"] == operation
    assert caught.value.details["reason"]
    assert caught.value.__cause__ is error
    return caught.value


@each_table
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (requests.exceptions.ConnectionError("refused"), EngineUnavailableError),
        (requests.exceptions.ConnectTimeout(), EngineUnavailableError),
        (requests.exceptions.SSLError("bad certificate"), EngineUnavailableError),
        (requests.exceptions.ReadTimeout("slow"), EngineError),
        (urllib3.exceptions.ProtocolError("broken"), EngineUnavailableError),
        (ConnectionResetError("reset"), EngineUnavailableError),
        (TimeoutError(), EngineError),
        (requests.exceptions.JSONDecodeError("no", "x", 0), EngineError),
        (json.JSONDecodeError("no", "x", 0), EngineError),
        (KeyError("Id"), EngineError),
        (requests.exceptions.InvalidURL("x"), ConfigError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_raised_without_an_answer(table: Any, error: Exception, kind: type[SandboxError]) -> None:
    found = raised(table, error)
    assert type(found) is kind
    assert "status" not in found.details
    assert "thing" in str(found)


@each_table
@pytest.mark.parametrize("status", [*range(400, 418), 500, 501, 502, 503, 504, 599])
def test_every_status_is_an_engine_error(table: Any, status: int) -> None:
    found = raised(table, api_error(table, status, "in the engine's words"))
    assert isinstance(found, EngineError)
    assert found.details["status"] == status
    assert found.retryable == (status == 503)
    assert "in the engine's words" in str(found)


def test_an_operation_may_have_its_own_row() -> None:
    found = raised(docker_errors, api_error(docker_errors, 404, "No such container"), "attach")
    assert type(found) is SessionNotFoundError


@each_table
def test_our_own_errors_pass_as_they_are(table: Any) -> None:
    error = ConfigError("ours, and a ValueError")
    with pytest.raises(ConfigError) as caught, table.translated("create"):
        raise error
    assert caught.value is error


def test_what_podman_py_wraps_is_looked_into() -> None:
    wrapper = podman.errors.exceptions.APIError("http://x", explanation="GET operation failed")
    wrapper.__cause__ = requests.exceptions.ReadTimeout("read timed out")
    found = raised(podman_errors, wrapper)
    assert type(found) is EngineError
    assert found.retryable
    assert "read timed out" in str(found)


def api_error(table: Any, status: int, words: str) -> Exception:
    response = requests.Response()
    response.status_code = status
    kind: Any = docker.errors.APIError if table is docker_errors else podman.errors.exceptions.APIError
    error: Exception = kind("message", response=response, explanation=words)
    return error
