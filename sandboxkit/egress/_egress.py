"""A session's guarded way out: a proxy on the sandbox's loopback, whose connections end here, in the relay's thread."""

from __future__ import annotations

import errno
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

from sandboxkit._forwards import Listening
from sandboxkit._frames import Refusal
from sandboxkit._hosts import is_address
from sandboxkit._network import PROXY_PORT, Network
from sandboxkit._relay import Conduit, Relay, Timer
from sandboxkit._resolver import Resolution, Resolver
from sandboxkit._tunnels import Tunnel
from sandboxkit.errors import PortError, SandboxError

from ._client import Client, DialHandler, Request
from ._policy import Decision, Meter, Policy, Target
from ._upstream import Upstream
from .events import EgressEvent

__all__ = ["MAX_CLIENTS", "Egress"]

MAX_CLIENTS: Final = 128
"""Connections of the sandbox to its proxy at a time; one more is reset."""
_PATIENCE: Final = 10.0


class Egress:
    """See the module. `start` is for any thread; all else happens in the relay's."""

    def __init__(self, relay: Relay, network: Network) -> None:
        self._relay = relay
        self._network = network
        self._policy = Policy(network)
        self._total = Meter(network.max_total_bytes)
        self._resolver = Resolver(network.resolver)
        self._clients: dict[Client, None] = {}
        self._listening = Listening(relay, self._take)
        self._context = network.ssl_context
        self._audit_failed = False
        self._is_over = False

    def start(self) -> int:
        """Listen in the sandbox; the port. After an exception nothing listens."""
        self._relay.hold(self)
        try:
            port = self._listening.open(PROXY_PORT, _PATIENCE, "Network.allow")
            if isinstance(port, Refusal) and port.errno == errno.EADDRINUSE:  # another one is free
                port = self._listening.open(0, _PATIENCE, "Network.allow")
            if isinstance(port, Refusal):
                raise PortError(f"The sandbox's proxy can't listen: {port.message}", details={"errno": port.errno})
            return port
        except BaseException:
            self._relay.post(lambda: self.end(None))
            raise

    def end(self, error: SandboxError | None) -> None:
        """See Owner."""
        if self._is_over:
            return
        self._is_over = True
        self._listening.close()
        for client in tuple(self._clients):
            client.end()
        self._resolver.close()
        self._relay.release(self)

    def _take(self, tunnel: Tunnel) -> None:
        if self._is_over or len(self._clients) >= MAX_CLIENTS:
            tunnel.reset()
            Request(self, None, self.meter()).tell("failed", "too many connections at once")
            return
        client = Client(self)
        self._clients[client] = None
        client.start(Conduit(self._relay, tunnel, client))

    # See Way.

    def decide(self, target: Target) -> Decision:
        return self._policy.decide(target)

    def credentials(self, host: str, port: int) -> tuple[int, Mapping[str, str]] | None:
        return self._policy.credentials(host, port)

    def meter(self) -> Meter:
        return Meter(self._network.max_connection_bytes, self._total)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self._relay.call_later(seconds, call)

    def gone(self, client: Client) -> None:
        self._clients.pop(client, None)

    def tell(self, event: EgressEvent) -> None:
        audit = self._network.audit
        if audit is None:
            return
        try:
            audit(event)
        except Exception:
            if not self._audit_failed:
                self._audit_failed = True
                logging.getLogger("sandboxkit.egress").exception(
                    "An audit callback failed; further failures of it are not logged"
                )

    def dial(self, target: Target, decision: Decision, handler: DialHandler) -> Upstream:
        tls = (self._tls_context(), target.host) if target.protocol == "https" else None
        upstream = Upstream(self._relay, handler, tls)
        deadline = time.monotonic() + self._network.connect_timeout
        if is_address(target.host):
            self._relay.post(lambda: self._resolved([target.host], upstream, target, decision, handler, deadline))
            return upstream
        timer = self._relay.call_later(
            self._network.connect_timeout, lambda: _give_up(upstream, handler, "its name did not resolve in time")
        )

        def answer(found: Resolution) -> None:
            def resolved() -> None:
                if timer.call is not None:
                    timer.cancel()
                    self._resolved(found, upstream, target, decision, handler, deadline)

            self._relay.post(resolved)

        if not self._resolver.ask(target.host, target.port, answer):
            timer.cancel()
            self._relay.post(lambda: _give_up(upstream, handler, "too many names wait to be resolved", timed_out=False))
        return upstream

    def _resolved(
        self,
        found: Resolution,
        upstream: Upstream,
        target: Target,
        decision: Decision,
        handler: DialHandler,
        deadline: float,
    ) -> None:
        if upstream.is_closed:
            return
        if isinstance(found, Exception):
            _give_up(upstream, handler, "its name does not resolve", timed_out=False)
            return
        addresses, refusal, reason = self._policy.reachable(target, found, private=decision.private)
        if refusal:
            upstream.close()
            handler.denied(refusal, reason)
        else:
            upstream.connect(addresses, target.port, max(deadline - time.monotonic(), 0.05))

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context


def _give_up(upstream: Upstream, handler: DialHandler, reason: str, *, timed_out: bool = True) -> None:
    if not upstream.is_closed:
        upstream.close()
        handler.not_connected(reason, timed_out=timed_out)
