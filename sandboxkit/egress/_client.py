"""One connection that came from inside the sandbox, from its first byte to its end: which proxy protocol it speaks,
what it asks for, and what it is told.

It has no socket of its own: `Way` is where it goes out, a Conduit where it came from. Whatever comes in, nothing is
raised: the sandbox is told what was wrong, or is cut off. What waits is bounded: a side that does not read is one that
is not read for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from sandboxkit._relay import Timer
from sandboxkit._tunnels import End

from ._policy import Decision, Meter, Target
from ._upstream import FULL, UpstreamHandler
from .events import EgressEvent

__all__ = ["Asking", "Client", "DialHandler", "Line", "Request", "Stage", "UpstreamLike", "Way"]

HEAD_TIMEOUT: Final = 20.0
"""Seconds for a request's head, or a SOCKS request, to be whole."""
IDLE_TIMEOUT: Final = 75.0
"""Seconds that a connection is kept for another request of plain HTTP."""
_LINGER: Final = 5.0
"""Seconds that the sandbox has to read the last answer and close, before it is cut off."""


class Line(Protocol):
    """The connection to the sandbox: a `sandboxkit._relay.Conduit`."""

    def send(self, data: bytes | bytearray | memoryview) -> int: ...

    def send_eof(self) -> None: ...

    def reset(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class UpstreamLike(Protocol):
    """The connection to the outside: an Upstream."""

    @property
    def waiting(self) -> int: ...

    def send(self, data: bytes) -> None: ...

    def send_eof(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, *, abruptly: bool = False) -> None: ...


class Way(Protocol):
    """What a session's egress does for its clients."""

    def decide(self, target: Target) -> Decision: ...

    def credentials(self, host: str, port: int) -> tuple[int, Mapping[str, str]] | None: ...

    def meter(self) -> Meter: ...

    def dial(self, target: Target, decision: Decision, handler: DialHandler) -> UpstreamLike: ...

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer: ...

    def tell(self, event: EgressEvent) -> None: ...

    def gone(self, client: Client) -> None: ...


class DialHandler(UpstreamHandler, Protocol):
    """Who dials."""

    def denied(self, sentence: str, reason: str) -> None:
        """The last call: what the name leads to may not be connected to. `reason` is for the audit alone."""


class Stage:
    """What a connection is at: its methods are called for what comes from the sandbox. The base takes no notice."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def received(self, data: bytes) -> None:
        """From the sandbox."""

    def received_eof(self) -> None:
        """Of the sandbox."""

    def drained(self) -> None:
        """All that was written has left for the sandbox."""

    def closed(self) -> None:
        """The sandbox's connection is gone."""


class Asking(Stage):
    """It is not known yet what is asked for: when the sandbox ends it now, it has asked in vain."""

    def received_eof(self) -> None:
        self._client.cut()

    def closed(self) -> None:
        self._client.ask(None).tell("failed", self._client.unasked)


class Request:
    """One thing asked for, told about once."""

    def __init__(self, way: Way, target: Target | None, meter: Meter) -> None:
        self._way = way
        self._target = target
        self._meter = meter
        self._started = time.monotonic()
        self._told = False
        self.address: str | None = None
        self.bytes_out = 0
        self.bytes_in = 0

    @property
    def is_spent(self) -> bool:
        """Whether no byte may be carried any more."""
        return self._meter.is_spent

    def out(self, size: int) -> int:
        """How many of so many bytes may go out."""
        granted = self._meter.spend(size)
        self.bytes_out += granted
        return granted

    def came(self, size: int) -> int:
        """How many of so many bytes may come in."""
        granted = self._meter.spend(size)
        self.bytes_in += granted
        return granted

    def tell(self, verdict: Literal["allowed", "denied", "failed", "cut"], reason: str = "") -> None:
        """It has ended so. Only the first time counts."""
        if self._told:
            return
        self._told = True
        target = self._target
        self._way.tell(
            EgressEvent(
                protocol="" if target is None else target.protocol,
                host="" if target is None else target.host,
                port=0 if target is None else target.port,
                verdict=verdict,
                reason=reason,
                address=self.address,
                bytes_out=self.bytes_out,
                bytes_in=self.bytes_in,
                duration=time.monotonic() - self._started,
            )
        )


class Client:
    """See the module. The relay's thread makes it and calls it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._line: Line | None = None
        self._stage: Stage = _First(self)
        self._out = bytearray()
        self._eof_wanted = False
        self._over = False
        self._timer: Timer | None = None
        self.asked = 0
        self.unasked = "it ended before it asked"

    def start(self, line: Line) -> None:
        """It has come."""
        self._line = line
        self.set_timer(HEAD_TIMEOUT, self.too_slow)

    def end(self) -> None:
        """Cut it off, the session is over. May be called twice."""
        self._finish(abruptly=True)

    # For its stages.

    @property
    def waiting(self) -> int:
        """Bytes that have not left for the sandbox."""
        return len(self._out)

    @property
    def is_full(self) -> bool:
        """Whether the sandbox should first read what it was sent."""
        return len(self._out) >= FULL

    def become(self, stage: Stage, data: bytes = b"") -> None:
        """The next stage, to which `data` came already."""
        self._stage = stage
        if data and not self._over:
            stage.received(data)

    def ask(self, target: Target | None) -> Request:
        """Something was asked for, or in vain."""
        self.asked += 1
        return Request(self.way, target, self.way.meter())

    def write(self, data: bytes) -> None:
        """To the sandbox, sooner or later."""
        if not self._over and not self._eof_wanted:
            self._out += data
            self._flush()

    def write_eof(self) -> None:
        """Nothing more will be written."""
        self._eof_wanted = True
        self._flush()

    def pause(self) -> None:
        """Take nothing from the sandbox until `resume`."""
        if self._line is not None:
            self._line.pause()

    def resume(self) -> None:
        """On with it."""
        if self._line is not None:
            self._line.resume()

    def cut(self) -> None:
        """End it at once: the sandbox sees a reset."""
        self._finish(abruptly=True)

    def part(self, data: bytes = b"") -> None:
        """The last words: write, and close when the sandbox has read them or is not going to."""
        self.write(data)
        self.become(_Last(self))
        self.write_eof()
        self.set_timer(_LINGER, self.cut)
        self.resume()

    def set_timer(self, seconds: float, call: Callable[[], object]) -> None:
        """In the place of the one before."""
        self.clear_timer()
        self._timer = self.way.call_later(seconds, call)

    def clear_timer(self) -> None:
        """No timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def too_slow(self) -> None:
        """Its timer: it did not ask in time."""
        self.unasked = "it took too long to ask"
        self.cut()

    def _flush(self) -> None:
        line = self._line
        if line is None:
            return
        had = bool(self._out)
        while self._out:
            with memoryview(self._out) as view:
                sent = line.send(view[:FULL])
            if not sent:
                return
            del self._out[:sent]
        if self._eof_wanted:
            line.send_eof()
        if had:
            self._stage.drained()

    def _finish(self, *, abruptly: bool) -> None:
        if self._over:
            return
        self._over = True
        self.clear_timer()
        line, stage = self._line, self._stage
        self._stage = Stage(self)
        stage.closed()
        self._out.clear()
        if abruptly and line is not None:
            line.reset()
        self.way.gone(self)

    # See ConduitHandler.

    def received(self, data: bytes) -> None:
        self._stage.received(data)

    def received_eof(self) -> None:
        self._stage.received_eof()

    def writable(self) -> None:
        self._flush()

    def closed(self, end: End) -> None:
        self._finish(abruptly=False)


class _First(Asking):
    """Nothing came yet: the first byte tells HTTP from SOCKS."""

    def received(self, data: bytes) -> None:
        from ._proxies import HttpProxy, SocksProxy

        stage = SocksProxy(self._client) if data[0] in (4, 5) else HttpProxy(self._client)
        self._client.become(stage, data)


class _Last(Stage):
    """All was said: what comes is dropped, and the sandbox's end of file is the end."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._eof = False

    def received_eof(self) -> None:
        self._eof = True
        if not self._client.waiting:
            self._client.cut()

    def drained(self) -> None:
        if self._eof:
            self._client.cut()
