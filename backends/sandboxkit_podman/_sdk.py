"""The one module that makes podman-py's clients."""

from __future__ import annotations

import functools
import socket
import urllib.parse
import warnings
from typing import Any

from sandboxkit.engines.discovery import Address
from sandboxkit.engines.sockets import connect_unix

with warnings.catch_warnings():
    # podman.api.client sets a filter for the whole process when it is imported.
    import podman.api.client
    import podman.api.uds
    import podman.errors

__all__ = ["errors", "make_client"]

errors = podman.errors


@functools.lru_cache(maxsize=8)
def _pool_class(path: str) -> type[podman.api.uds.UDSConnectionPool]:
    """The SDK's pool for a unix socket, with connections that leave nothing open when nothing listens."""

    class Connection(podman.api.uds.UDSConnection):
        def connect(self) -> None:
            timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
            self.sock: socket.socket = connect_unix(path, timeout)

    class Pool(podman.api.uds.UDSConnectionPool):
        ConnectionCls = Connection

    return Pool


def make_client(address: Address, api_version: str, timeout: float) -> Any:
    """An APIClient of the SDK. It sends nothing before its first call."""
    path = address.socket_path
    url = address.url if path is None else f"unix://{urllib.parse.quote(path)}"
    client = podman.api.client.APIClient(url, version=api_version, timeout=timeout, num_pools=1, max_pool_size=1)
    if path is not None:
        adapter: Any = client.get_adapter("http://")
        adapter.poolmanager.pool_classes_by_scheme = {"http": _pool_class(path)}
    return client
