"""Containers of Docker's that outlive their stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sandboxkit.backend import ByteStream
from sandboxkit.engines.api import EngineApi
from sandboxkit.engines.holds import held
from sandboxkit.engines.sockets import stream_of

__all__ = ["DockerRunning"]


class DockerRunning:
    """See `sandboxkit.backend_parts.Running`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]], api: EngineApi) -> None:
        self._call = call
        self._api = api

    def connect(self, container_id: str, command: Sequence[str]) -> ByteStream:
        with self._call("connect to", container_id) as client:
            made = client.exec_create(container_id, list(command), stdin=True)
            # As the SDK's exec_start(socket=True) does, which loses what came with the headers.
            response = client._post_json(
                client._url("/exec/{0}/start", made["Id"]),
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                data={"Tty": False, "Detach": False},
                stream=True,
            )
            try:
                client._raise_for_status(response)
                return stream_of(response)
            except BaseException:
                response.close()
                raise

    def hold(self, container_id: str) -> AbstractContextManager[None]:
        return held(self._api, container_id)

    def prepare(self, container_id: str) -> None:
        """Nothing is needed."""

    def stop(self, container_id: str) -> None:
        # The container's stop signal is SIGKILL. 304, not running, is no error.
        with self._call("stop", container_id) as client:
            client.stop(container_id, timeout=0)
