"""What is told of a sandbox's way out."""

from __future__ import annotations

from typing import Literal

import attrs

__all__ = ["EgressEvent"]


@attrs.frozen(kw_only=True)
class EgressEvent:
    """One connection that the sandbox asked for, or one request of plain HTTP, when it has ended.

    - `protocol`: `connect` (what HTTPS uses), `http`, `https` (plain HTTP to here, TLS from here on), `socks`; empty
      when it never said what it wants.
    - `host`, `port`: as asked for, in one spelling; empty and 0 when they can't be read.
    - `verdict`: `allowed`; `denied`, by the list or the address; `failed`, outside; `cut`, by a bound on bytes.
    - `reason`: one phrase, empty when it ended in order. `address`: what was connected to.
    - `bytes_out`, `bytes_in`: to the outside and from it. `duration`: seconds.
    """

    protocol: Literal["connect", "http", "https", "socks", ""]
    host: str
    port: int
    verdict: Literal["allowed", "denied", "failed", "cut"]
    reason: str
    address: str | None
    bytes_out: int
    bytes_in: int
    duration: float
