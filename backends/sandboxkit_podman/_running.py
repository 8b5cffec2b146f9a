"""Containers of Podman's that outlive their stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sandboxkit.backend import ByteStream
from sandboxkit.engines.sockets import stream_of

__all__ = ["PodmanRunning"]

_JSON = {"Content-Type": "application/json"}


class PodmanRunning:
    """See `sandboxkit.backend_parts.Running`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._call = call

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

    def stop(self, container_id: str) -> None:
        # The container's stop signal is SIGKILL. 304, not running, is no error.
        with self._call("stop", container_id) as client:
            client.post(f"containers/{container_id}/stop", params={"timeout": "0", "t": "0"}).raise_for_status()
