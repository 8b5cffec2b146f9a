"""Guarded egress: what `Network.allow` does. Needs the extra `sandboxkit[egress]`, for h11.

`_hosts`, `_addresses` and `_policy` say what may be reached; `_http` and `_socks` understand what is asked, without any
input or output; `_client` and `_proxies` are a connection's life; `_upstream` and `_egress` have the sockets, in the
relay's thread.
"""

from __future__ import annotations

from .events import EgressEvent

__all__ = ["EgressEvent"]
