"""The one module that makes podman-py's clients."""

from __future__ import annotations

import socket
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


class _Connection(podman.api.uds.UDSConnection):
    def connect(self) -> None:
        # The SDK's own leaves the socket open when nothing listens. `uds` is the address that make_client gave.
        path = Address(self.uds).socket_path
        assert path is not None
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
        self.sock: socket.socket = connect_unix(path, timeout)


class _Pool(podman.api.uds.UDSConnectionPool):
    ConnectionCls = _Connection


def make_client(address: Address, api_version: str, timeout: float) -> Any:
    """An APIClient of the SDK. It sends nothing before its first call."""
    client = podman.api.client.APIClient(
        _base_url(address), version=api_version, timeout=timeout, num_pools=1, max_pool_size=1
    )
    if address.socket_path is not None:
        adapter: Any = client.get_adapter("http://")
        adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool}
    return client


def _base_url(address: Address) -> str:
    return address.url if address.socket_path is None else f"unix://{address.socket_path}"
