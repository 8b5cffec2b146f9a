"""Docker's failures as errors of sandboxkit: the one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker.errors
import requests.exceptions
import urllib3.exceptions

from sandboxkit.engines.errors import ErrorTable, Failure, Rule
from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError, SandboxError, SessionNotFoundError

__all__ = ["TABLE", "translated"]

_BUSY = Rule(EngineError, retryable=True, advice="try again")
_GONE = Rule(EngineUnavailableError, retryable=True, advice="see whether Docker is running: `docker version`")
_SLOW = Rule(EngineError, retryable=True, advice="the engine is overloaded or hangs: try again, or use a longer timeout")
_REFUSED = Rule(EngineError)

TABLE = ErrorTable(
    engine="Docker",
    statuses={
        400: _REFUSED,
        401: _REFUSED,
        403: _REFUSED,
        404: _REFUSED,
        405: _REFUSED,
        409: _REFUSED,
        500: _REFUSED,
        501: _REFUSED,
        503: _BUSY,
    },
    operations={
        ("attach", 404): Rule(SessionNotFoundError),
        ("start", 404): _REFUSED,
    },
    exceptions=(
        # requests' own first: a ConnectTimeout is a ConnectionError, too.
        (requests.exceptions.ConnectTimeout, _GONE),
        (requests.exceptions.Timeout, _SLOW),
        (requests.exceptions.ConnectionError, _GONE),
        (requests.exceptions.ChunkedEncodingError, _GONE),
        (requests.exceptions.InvalidURL, Rule(ConfigError)),
        (requests.exceptions.RequestException, _REFUSED),
        (docker.errors.TLSParameterError, Rule(ConfigError, advice="see DOCKER_TLS_VERIFY and DOCKER_CERT_PATH")),
        (docker.errors.DockerException, _REFUSED),
        (urllib3.exceptions.TimeoutError, _SLOW),
        (urllib3.exceptions.HTTPError, _GONE),
        (TimeoutError, _SLOW),
        (OSError, _GONE),
        (ValueError, _REFUSED),  # an answer that is no JSON
        (RuntimeError, _REFUSED),  # docker.errors.StreamParseError
    ),
)


def failure_of(error: Any) -> Failure:
    """What an exception of the SDK says."""
    status = getattr(error, "status_code", None) if isinstance(error, docker.errors.APIError) else None
    reason = getattr(error, "explanation", None) or str(error)
    return Failure(status, str(reason), error)


@contextmanager
def translated(operation: str, subject: str = "") -> Iterator[None]:
    """Raise what the block raises as an error of sandboxkit."""
    try:
        yield
    except SandboxError:  # ConfigError is a ValueError, too
        raise
    except tuple(kind for kind, _ in TABLE.exceptions) as error:
        raise TABLE.error(operation, failure_of(error), subject) from error
