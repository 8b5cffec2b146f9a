"""Podman's failures as errors of sandboxkit: the one table."""

from __future__ import annotations

import http.client

import requests.exceptions
import urllib3.exceptions

from sandboxkit.engines.errors import ErrorTable, Failure, Rule
from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError

from ._sdk import errors

__all__ = ["TABLE", "translated"]

_GONE = Rule(EngineUnavailableError, retryable=True, advice="see whether Podman works: `podman info`")
_SLOW = Rule(
    EngineError, retryable=True, advice="the engine is overloaded or hangs: try again, or use a longer timeout"
)
_REFUSED = Rule(EngineError)
# What an answer that is not as it should be comes to, in whoever reads it.
_ODD = Rule(EngineError, advice="does an engine listen there at all, or something before it?")


def failure_of(error: Exception) -> Failure:
    """What an exception of the SDK says."""
    if isinstance(error, errors.APIError) and error.response is None and isinstance(error.__cause__, OSError):
        # The SDK wraps what requests raises, and says less.
        error = error.__cause__
    status = error.status_code if isinstance(error, errors.APIError) else None
    reason = getattr(error, "explanation", None) or str(error)
    return Failure(status, str(reason), error)


TABLE = ErrorTable(
    engine="Podman",
    # Podman answers 500 for nearly everything, a missing image and a name that is taken included: what was wrong is
    # found out by asking (`EngineBackend`), not here.
    statuses={503: Rule(EngineError, retryable=True, advice="try again")},
    operations={},
    exceptions=(
        # requests' own first: a ConnectTimeout is a ConnectionError, too.
        (requests.exceptions.ConnectTimeout, _GONE),
        (requests.exceptions.Timeout, _SLOW),
        (requests.exceptions.ConnectionError, _GONE),
        (requests.exceptions.ChunkedEncodingError, _GONE),
        (requests.exceptions.InvalidURL, Rule(ConfigError)),
        (requests.exceptions.RequestException, _REFUSED),
        (errors.DockerException, _REFUSED),
        (urllib3.exceptions.TimeoutError, _SLOW),
        (urllib3.exceptions.HTTPError, _GONE),
        (http.client.HTTPException, _GONE),
        (TimeoutError, _SLOW),
        (OSError, _GONE),
        (ValueError, _REFUSED),  # an answer that is no JSON
        (LookupError, _ODD),
        (TypeError, _ODD),
        (AttributeError, _ODD),
        (RuntimeError, _REFUSED),  # podman.errors.StreamParseError
    ),
    failure_of=failure_of,
)
translated = TABLE.translated
