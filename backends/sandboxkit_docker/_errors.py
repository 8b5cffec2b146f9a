"""Docker's failures as errors of sandboxkit: the one table."""

from __future__ import annotations

import http.client

import docker.errors
import requests.exceptions
import urllib3.exceptions

from sandboxkit.engines.errors import ErrorTable, Failure, Rule
from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError, SessionNotFoundError

__all__ = ["TABLE", "translated"]

_GONE = Rule(EngineUnavailableError, retryable=True, advice="see whether Docker is running: `docker version`")
_SLOW = Rule(
    EngineError, retryable=True, advice="the engine is overloaded or hangs: try again, or use a longer timeout"
)
_REFUSED = Rule(EngineError)
# What an answer that is not as it should be comes to, in whoever reads it.
_ODD = Rule(EngineError, advice="does an engine listen there at all, or something before it?")


def failure_of(error: Exception) -> Failure:
    """What an exception of the SDK says."""
    status = error.status_code if isinstance(error, docker.errors.APIError) else None
    reason = getattr(error, "explanation", None) or str(error)
    return Failure(status, str(reason), error)


TABLE = ErrorTable(
    engine="Docker",
    statuses={503: Rule(EngineError, retryable=True, advice="try again")},
    operations={("attach", 404): Rule(SessionNotFoundError)},
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
        (http.client.HTTPException, _GONE),
        (TimeoutError, _SLOW),
        (OSError, _GONE),
        (ValueError, _REFUSED),  # an answer that is no JSON
        (LookupError, _ODD),
        (TypeError, _ODD),
        (AttributeError, _ODD),
        (RuntimeError, _REFUSED),  # docker.errors.StreamParseError
    ),
    failure_of=failure_of,
)
translated = TABLE.translated
