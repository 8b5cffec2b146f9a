"""Docker as a sandboxkit Backend."""

from __future__ import annotations

from sandboxkit.engines.backend import EngineBackend
from sandboxkit.engines.discovery import first_that_answers, unavailable
from sandboxkit.errors import EngineUnavailableError

from ._discovery import HOW_TO_START, addresses

__all__ = ["DockerBackend"]


class DockerBackend(EngineBackend):
    """One Docker daemon. The SDK is imported by `connect`, not before."""

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> DockerBackend:
        """See Backend.connect. There is nothing that `may_start` could start: a Docker daemon is the host's."""
        try:
            from ._api import DockerApi
        except ImportError as error:
            raise EngineUnavailableError(
                f"the Docker backend needs the docker SDK: run `pip install 'sandboxkit[docker]'` ({error})",
                retryable=False,
                details={"tried": [f"the docker SDK: {error}"]},
            ) from error
        tried: list[str] = []
        api = first_that_answers(addresses(url), lambda address: DockerApi.probe(address, timeout), tried)
        if api is None:
            raise unavailable("Docker", tried, HOW_TO_START)
        return cls(api, name="docker", timeout=timeout)
