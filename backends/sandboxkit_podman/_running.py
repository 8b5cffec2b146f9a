"""Containers of Podman's that outlive their stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sandboxkit.backend import ByteStream
from sandboxkit.engines.api import EngineApi
from sandboxkit.engines.deadlines import wait_until
from sandboxkit.engines.holds import held
from sandboxkit.engines.sockets import stream_of
from sandboxkit.errors import EngineError

__all__ = ["PodmanRunning"]

_CLEANUP = 30.0
_JSON = {"Content-Type": "application/json"}


class PodmanRunning:
    """See `sandboxkit.backend_parts.Running`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]], api: EngineApi) -> None:
        self._call = call
        self._api = api

    def connect(self, container_id: str, command: Sequence[str]) -> ByteStream:
        body = {
            "Cmd": list(command),
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "DetachKeys": "",  # else ctrl-p ctrl-q in the stream would end it
        }
        with self._call("connect to", container_id) as client:
            made = client.post(f"containers/{container_id}/exec", data=json.dumps(body), headers=_JSON)
            made.raise_for_status()
            response = client.post(
                f"exec/{made.json()['Id']}/start",
                data=json.dumps({"Detach": False, "Tty": False}),
                headers={**_JSON, "Connection": "Upgrade", "Upgrade": "tcp"},
                stream=True,
            )
            try:
                response.raise_for_status()
                return stream_of(response)
            except BaseException:
                response.close()
                raise

    def hold(self, container_id: str) -> AbstractContextManager[None]:
        return held(self._api, container_id)

    def prepare(self, container_id: str) -> None:
        self._wait_tidied(container_id)
        # An attach to one that has ended gives a stream that has ended, too.
        with self._call("make ready", container_id) as client:
            client.post(f"containers/{container_id}/init").raise_for_status()

    def stop(self, container_id: str) -> None:
        with self._call("stop", container_id) as client:
            response = client.post(f"containers/{container_id}/kill", params={"signal": "SIGKILL"})
            if response.status_code >= 400 and self._is_running(container_id):
                response.raise_for_status()
        self._wait_tidied(container_id)

    def _wait_tidied(self, container_id: str) -> None:
        """Podman's cleanup, a process of its own, comes some time after a container's end.

        "Stopped" becomes "exited" by it. It takes one that was made ready again meanwhile for the one that ended, and
        ends it. So kill and not stop, which does the cleanup itself and leaves that process to come too late.
        """

        def tidied() -> bool:
            with self._call("inspect", container_id) as client:
                response = client.get(f"containers/{container_id}/json")
                response.raise_for_status()
                return str(response.json()["State"]["Status"]) not in ("running", "stopping", "stopped")

        if not wait_until(tidied, _CLEANUP):
            raise EngineError(f"Podman has not tidied up after {container_id} within {_CLEANUP:g} s", retryable=True)

    def _is_running(self, container_id: str) -> bool:
        with self._call("inspect", container_id) as client:
            response = client.get(f"containers/{container_id}/json")
            response.raise_for_status()
            return str(response.json()["State"]["Status"]) == "running"
