"""Podman as a sandboxkit Backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxkit.engines.backend import EngineBackend
from sandboxkit.engines.discovery import first_that_answers, unavailable
from sandboxkit.errors import EngineUnavailableError, SandboxError

from ._discovery import HOW_TO_START, addresses, is_chosen

if TYPE_CHECKING:
    from ._api import PodmanApi

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
        if api is None and may_start and not is_chosen(url):
            api = cls._started(timeout, tried)
        if api is None:
            raise unavailable("Podman", tried, HOW_TO_START)
        return cls(api, name="podman", timeout=timeout)

    @staticmethod
    def _started(timeout: float, tried: list[str]) -> PodmanApi | None:
        """The API of a service that is started for this process; None, and why in `tried`, when it can't be."""
        from ._api import PodmanApi
        from ._service import PodmanService

        program = PodmanService.program()
        if program is None:
            tried.append("`podman system service`: podman is not installed, or not on the PATH")
            return None
        try:
            service = PodmanService(program)
        except EngineUnavailableError as error:
            tried.append(str(error))
            return None
        try:
            api = PodmanApi.probe(service.address, timeout, service)
        except BaseException as error:
            service.stop()
            if not isinstance(error, SandboxError):
                raise
            tried.append(f"{service.address}: {error.details.get('reason', error)}")
            return None
        return api
