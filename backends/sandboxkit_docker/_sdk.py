"""The one module that touches the docker SDK, which has no types: everything `Any` is in here and in `_api`."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from typing import Any

import docker
import docker.context
import docker.errors
import docker.tls
import docker.transport.unixconn as unixconn
import docker.utils

from sandboxkit.engines.discovery import Address
from sandboxkit.engines.sockets import connect_unix
from sandboxkit.errors import ConfigError

__all__ = ["context_host", "make_client"]


class _Connection(unixconn.UnixHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        # The SDK's own leaves the socket open when nothing listens.
        self.sock: socket.socket = connect_unix(self.unix_socket, self.timeout)


class _Pool(unixconn.UnixHTTPConnectionPool):  # type: ignore[misc]
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _Adapter(unixconn.UnixHTTPAdapter):  # type: ignore[misc]
    """The SDK's transport with one connection pool.

    The SDK's keys its pools by the full URL of a request, so that each container's calls open connections of their
    own and leave them open (200 URLs made 200 connections).
    """

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("http+unix:///docker.sock", timeout, pool_connections=1, max_pool_size=1)
        self._pool = _Pool("http+docker://localhost", path, timeout, maxsize=1)

    def get_connection(self, url: str, proxies: Mapping[str, str] | None = None) -> _Pool:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()


def make_client(address: Address, api_version: str, timeout: float) -> Any:
    """An APIClient of the SDK. It sends nothing before its first call."""
    if address.socket_path is None:
        client = docker.APIClient(address.url, version=api_version, timeout=timeout, tls=_tls(address))
        client.merge_environment_settings = functools.partial(_settings, client.merge_environment_settings, client)
        return client
    # The path, with whatever characters it has, goes to our adapter alone.
    client = docker.APIClient("unix:///docker.sock", version=api_version, timeout=timeout)
    adapter = _Adapter(address.socket_path, timeout)
    client.mount("http+docker://", adapter)
    client._custom_adapter = adapter
    # Spares a look at .netrc and at the proxy variables with each request: they have no meaning for a unix socket.
    client.trust_env = False
    return client


def _settings(merge: Any, client: Any, url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
    """With the daemon's own authority: requests would prefer REQUESTS_CA_BUNDLE to its session's (requests#3829)."""
    return merge(url, proxies, stream, client.verify if verify is None else verify, cert)


def context_host() -> tuple[str, str | None]:
    """The docker CLI's current context and its address, None for the built-in one. ConfigError when it is broken."""
    name = os.environ.get("DOCKER_CONTEXT") or docker.context.config.get_current_context_name()
    if name == "default":
        return name, None
    context = _load_context(name)
    if context is None or not context.Host:
        raise ConfigError(
            f"the current docker context {name!r} does not exist: choose another with `docker context use`, "
            "or unset DOCKER_CONTEXT",
            details={"field": "DOCKER_CONTEXT"},
        )
    return name, str(context.Host)


def _load_context(name: str) -> Any:
    try:
        return docker.context.ContextAPI.get_context(name)
    except Exception as error:  # The SDK raises a bare Exception for a file it can't read.
        raise ConfigError(
            f"the docker context {name!r} can't be read: {error}", details={"field": "DOCKER_CONTEXT"}
        ) from error


def _tls(address: Address) -> Any:
    """How to verify a TCP daemon: as the current context says, or DOCKER_TLS_VERIFY and DOCKER_CERT_PATH."""
    if address.source.startswith("the docker context"):
        name, _ = context_host()
        return _load_context(name).TLSConfig or False
    settings = docker.utils.kwargs_from_env(dict(os.environ))
    return settings.get("tls", address.url.startswith("https://"))
