"""Podman as a sandboxkit Backend."""

from __future__ import annotations

from sandboxkit.engines.backend import EngineBackend
from sandboxkit.engines.discovery import first_that_answers, unavailable
from sandboxkit.errors import EngineUnavailableError

from ._discovery import HOW_TO_START, addresses

__all__ = ["PodmanBackend"]


class PodmanBackend(EngineBackend):
    """One Podman service, rootful or rootless. The SDK is imported by `connect`, not before."""

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> PodmanBackend:
        """See Backend.connect."""
        try:
            from ._api import PodmanApi
        except ImportError as error:
            raise EngineUnavailableError(
                f"the Podman backend needs podman-py: run `pip install 'sandboxkit[podman]'` ({error})",
                retryable=False,
                details={"tried": [f"podman-py: {error}"]},
            ) from error
        tried: list[str] = []
        api = first_that_answers(addresses(url), lambda address: PodmanApi.probe(address, timeout), tried)
        if api is None:
            raise unavailable("Podman", tried, HOW_TO_START)
        return cls(api, name="podman", timeout=timeout)
