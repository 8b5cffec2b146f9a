"""What is told of a sandbox's ports."""

from __future__ import annotations

import attrs

__all__ = ["ListeningPort", "PublishedPort"]

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - what a server in the sandbox may listen on


@attrs.frozen
class PublishedPort:
    """Where the engine's host takes connections for a port of the sandbox. On a remote engine that is not this host."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """For an HTTP server."""
        return f"http://{self.host}:{self.port}"


@attrs.frozen
class ListeningPort:
    """A TCP socket in LISTEN inside the sandbox.

    `address` as the server bound it. `uid` is its owner's. `pid` is a process that holds it, None where that can't be
    seen.
    """

    port: int
    address: str
    uid: int
    pid: int | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only the sandbox itself reaches it, and tunnels."""
        return self.address == "::1" or self.address.removeprefix("::ffff:").startswith("127.")

    def __str__(self) -> str:
        if self.address in _WILDCARDS:
            return str(self.port)
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
