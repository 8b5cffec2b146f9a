"""A sandbox's connection and an outside that are lists of bytes: a Client without sockets, threads or clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandboxkit import EgressEvent, Network
from sandboxkit._relay import Timer
from sandboxkit.egress._client import Client, DialHandler
from sandboxkit.egress._policy import Decision, Meter, Policy, Target


class FakeLine:
    """Takes `room` bytes from the proxy, then no more until the test makes room."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.data = bytearray()
        self.eof = False
        self.was_reset = False
        self.paused = False

    def send(self, data: bytes | bytearray | memoryview) -> int:
        size = min(len(data), self.room)
        self.room -= size
        self.data += data[:size]
        return size

    def send_eof(self) -> None:
        self.eof = True

    def reset(self) -> None:
        self.was_reset = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class FakeUpstream:
    """Keeps what is sent; with `takes=False` none of it ever leaves."""

    def __init__(self, target: Target, handler: DialHandler, *, takes: bool) -> None:
        self.target = target
        self.handler = handler
        self.takes = takes
        self.sent = bytearray()
        self.eof = False
        self.paused = False
        self.is_up = False
        self.is_over = False

    @property
    def waiting(self) -> int:
        return 0 if self.takes else len(self.sent)

    def send(self, data: bytes) -> None:
        assert self.is_up
        assert not self.is_over
        self.sent += data
        if self.takes and data:
            self.handler.upstream_drained()

    def send_eof(self) -> None:
        self.eof = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self, *, abruptly: bool = False) -> None:
        self.is_over = True

    def connect(self) -> None:
        """It is there."""
        if not self.is_up and not self.is_over:
            self.is_up = True
            self.handler.connected("192.0.2.1")

    def answer(self, data: bytes) -> None:
        """Bytes come from the outside."""
        if self.is_up and not self.is_over and not self.paused:
            self.handler.upstream_received(data)

    def end(self) -> None:
        """The outside has said all."""
        if self.is_up and not self.is_over:
            self.handler.upstream_eof()

    def fail(self) -> None:
        """It can't be reached, or is gone."""
        if not self.is_over:
            self.is_over = True
            if self.is_up:
                self.handler.upstream_broke("ECONNRESET")
            else:
                self.handler.not_connected("no answer", timed_out=True)


class FakeWay:
    """See Way. `upstreams` are in the order in which they were dialled."""

    def __init__(self, network: Network | None = None, *, takes: bool = True) -> None:
        self.network = network or Network.allow(["a.test", "*.b.test:8443"])
        self.policy = Policy(self.network)
        self.total = Meter(self.network.max_total_bytes)
        self.takes = takes
        self.upstreams: list[FakeUpstream] = []
        self.events: list[EgressEvent] = []
        self.timers: list[Timer] = []
        self.went: list[Client] = []

    def decide(self, target: Target) -> Decision:
        return self.policy.decide(target)

    def credentials(self, host: str, port: int) -> tuple[int, Mapping[str, str]] | None:
        return self.policy.credentials(host, port)

    def meter(self) -> Meter:
        return Meter(self.network.max_connection_bytes, self.total)

    def dial(self, target: Target, decision: Decision, handler: DialHandler) -> FakeUpstream:
        self.upstreams.append(FakeUpstream(target, handler, takes=self.takes))
        return self.upstreams[-1]

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def tell(self, event: EgressEvent) -> None:
        self.events.append(event)

    def gone(self, client: Client) -> None:
        self.went.append(client)

    def pass_time(self) -> None:
        """Every timer that runs is due."""
        for timer in self.timers:
            call, timer.call = timer.call, None
            if call is not None:
                call()
