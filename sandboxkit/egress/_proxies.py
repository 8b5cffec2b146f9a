"""What a client may speak: SOCKS5, HTTP's CONNECT, and plain HTTP; and the plain bytes that the first two end in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import h11

from ._client import HEAD_TIMEOUT, IDLE_TIMEOUT, Asking, Client, DialHandler, Request, Stage, UpstreamLike
from ._http import (
    RESPONSE_HEAD_MAX,
    HttpError,
    RequestHead,
    error_response,
    find_head,
    parse_head,
    request_headers,
    response_headers,
)
from ._policy import Target
from ._socks import Reply, SocksError, SocksParser, reply
from ._upstream import FULL

__all__ = ["HttpProxy", "SocksProxy"]

_NO_BYTES_LEFT = "The bytes that Network.allow(max_total_bytes=...) gave this sandbox are used up."


class _Outgoing(Stage, DialHandler):
    """A stage with a connection to the outside: what both of its users have in common.

    `rest` came behind what was asked, and waits until there is where to send it.
    """

    def __init__(self, client: Client, request: Request, target: Target, rest: bytes) -> None:
        super().__init__(client)
        self._request = request
        self._target = target
        self._rest = rest
        self._upstream: UpstreamLike | None = None
        self._is_up = False

    def begin(self) -> None:
        """Dial."""
        self._client.become(self)
        decision = self._client.way.decide(self._target)
        if decision.refusal:
            self.denied(decision.refusal, "not on the list")
            return
        if self._request.is_spent:
            self._request.tell("cut", "max_total_bytes")
            self._refuse(403, Reply.DENIED, _NO_BYTES_LEFT)
            return
        self._client.clear_timer()
        self._client.pause()  # until it is known where to
        self._upstream = self._client.way.dial(self._target, decision, self)

    def denied(self, sentence: str, reason: str) -> None:
        self._request.tell("denied", reason)
        self._refuse(403, Reply.DENIED, sentence)

    def not_connected(self, reason: str, *, timed_out: bool = False, refused: bool = False) -> None:
        self._request.tell("failed", reason)
        status = 504 if timed_out else 502
        code = Reply.TIMEOUT if timed_out else Reply.REFUSED if refused else Reply.UNREACHABLE
        self._refuse(status, code, f"{self._target} can't be reached: {reason}.")

    def _refuse(self, status: int, code: Reply, sentence: str) -> None:
        raise NotImplementedError

    def _send_out(self, data: bytes) -> bool:
        # False when a bound is reached; it is cut off then.
        upstream = self._upstream
        if upstream is None:
            return False
        granted = self._request.out(len(data))
        upstream.send(data[:granted])  # which may find that the outside has gone
        if granted < len(data):
            self._cut_by_bound()
            return False
        if upstream.waiting >= FULL:
            self._client.pause()
        return self._upstream is not None

    def _take_in(self, data: bytes) -> bytes | None:
        # None when a bound is reached.
        granted = self._request.came(len(data))
        if granted < len(data):
            self._cut_by_bound()
            return None
        return data

    def _cut_by_bound(self) -> None:
        self._request.tell("cut", "its bytes are used up")
        self._client.cut()

    def _backpressure(self) -> None:
        if self._client.is_full and self._upstream is not None:
            self._upstream.pause()

    def drained(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def upstream_drained(self) -> None:
        self._client.resume()

    def closed(self) -> None:
        self._request.tell("allowed", "" if self._is_in_order() else "it was ended by the sandbox, or with it")
        self._close_upstream(abruptly=True)

    def _is_in_order(self) -> bool:
        return False

    def _close_upstream(self, *, abruptly: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close(abruptly=abruptly)


class _Splice(_Outgoing):
    """Bytes both ways, whatever they mean. `connected` and `refusal` are what the client is told."""

    def __init__(
        self,
        client: Client,
        request: Request,
        target: Target,
        connected: bytes,
        refusal: Callable[[int, Reply, str], bytes],
        rest: bytes,
    ) -> None:
        super().__init__(client, request, target, rest)
        self._connected = connected
        self._refusal = refusal
        self._eof_in = False
        self._eof_out = False

    def _refuse(self, status: int, code: Reply, sentence: str) -> None:
        self._client.part(self._refusal(status, code, sentence))

    def connected(self, address: str) -> None:
        self._request.address = address
        self._is_up = True
        self._client.write(self._connected)
        rest, self._rest = self._rest, b""
        if not rest or self._send_out(rest):
            self._client.resume()

    def received(self, data: bytes) -> None:
        if self._is_up:
            self._send_out(data)
        else:
            self._rest += data  # what was on its way when the client was paused: a window at most

    def received_eof(self) -> None:
        self._eof_out = True
        if self._upstream is not None:
            self._upstream.send_eof()
        self._end_if_both()

    def upstream_received(self, data: bytes) -> None:
        taken = self._take_in(data)
        if taken is not None:
            self._client.write(taken)
            self._backpressure()

    def upstream_eof(self) -> None:
        self._eof_in = True
        self._client.write_eof()
        self._end_if_both()

    def upstream_drained(self) -> None:
        super().upstream_drained()
        self._end_if_both()

    def drained(self) -> None:
        super().drained()
        self._end_if_both()

    def upstream_broke(self, reason: str) -> None:
        self._request.tell("failed", f"the outside ended it: {reason}")
        self._client.cut()

    def _is_in_order(self) -> bool:
        return self._eof_in and self._eof_out

    def _end_if_both(self) -> None:
        if not self._is_in_order() or self._upstream is None or self._upstream.waiting or self._client.waiting:
            return
        self._request.tell("allowed")
        self._close_upstream(abruptly=False)
        self._client.part()


class SocksProxy(Asking):
    """SOCKS5 until its request is read."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._parser = SocksParser()

    def received(self, data: bytes) -> None:
        try:
            answer, asked = self._parser.feed(data)
        except SocksError as error:
            self._client.ask(None).tell("failed", str(error))
            self._client.part(error.answer)
            return
        self._client.write(answer)
        if asked is None:
            return
        target = Target("socks", *asked)
        request = self._client.ask(target)
        _Splice(
            self._client, request, target, reply(Reply.DONE), lambda _status, code, _why: reply(code), self._parser.rest
        ).begin()


class HttpProxy(Asking):
    """HTTP between two requests: until the next one's head is whole."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._buffer = bytearray()

    def received(self, data: bytes) -> None:
        if not self._buffer and self._client.asked:
            self._client.set_timer(HEAD_TIMEOUT, self._client.too_slow)
        scanned = len(self._buffer)
        self._buffer += data
        try:
            end = find_head(self._buffer, scanned)
            if end < 0:
                return
            head = parse_head(bytes(self._buffer[:end]))
        except HttpError as error:
            self._client.ask(None).tell("failed", str(error))
            self._client.part(error_response(error.status, str(error)))
            return
        rest = bytes(self._buffer[end:])
        if head.is_connect:
            target = Target("connect", head.host, head.port)
            _Splice(
                self._client,
                self._client.ask(target),
                target,
                b"HTTP/1.1 200 Connection established\r\n\r\n",
                lambda status, _code, sentence: error_response(status, sentence),
                rest,
            ).begin()
            return
        found = self._client.way.credentials(head.host, head.port)
        port, headers = found or (head.port, {})
        target = Target("https" if found else "http", head.host, port)
        _Exchange(self._client, self._client.ask(target), target, head, headers, rest).begin()

    def closed(self) -> None:
        if not self._client.asked or self._buffer:  # else it was kept for another request, and none came
            super().closed()


class _Exchange(_Outgoing):
    """One request of plain HTTP and its response, on a connection to the outside of its own."""

    def __init__(
        self,
        client: Client,
        request: Request,
        target: Target,
        head: RequestHead,
        credentials: Mapping[str, str],
        rest: bytes,
    ) -> None:
        super().__init__(client, request, target, rest)
        self._head = head
        self._front = head.connection
        self._back = h11.Connection(h11.CLIENT, max_incomplete_event_size=RESPONSE_HEAD_MAX)
        self._credentials = credentials
        self._answered = False
        self._request_ended = False
        self._eof = False

    def _refuse(self, status: int, code: Reply, sentence: str) -> None:
        self._close_upstream(abruptly=True)
        if self._answered:
            self._client.cut()  # too late for another answer: the client sees one that is cut short
        else:
            self._client.part(error_response(status, sentence, body=self._head.method != b"HEAD"))

    def connected(self, address: str) -> None:
        self._request.address = address
        default = 443 if self._target.protocol == "https" else 80
        host = f"[{self._head.host}]" if ":" in self._head.host else self._head.host
        if self._target.port != default:
            host = f"{host}:{self._target.port}"
        request = h11.Request(
            method=self._head.method,
            target=self._head.path,
            headers=list(request_headers(self._head, host, self._credentials)),
        )
        self._is_up = True
        if self._send_event(request):
            rest, self._rest = self._rest, b""
            self._client.resume()
            self._take_body(rest)

    def _send_event(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> bool:
        try:
            data = self._back.send(event)
        except h11.LocalProtocolError as error:
            self._request.tell("failed", f"the request can't be passed on: {error}")
            self._refuse(400, Reply.FAILED, "The request can't be passed on as it is.")
            return False
        return not data or self._send_out(data)

    def received(self, data: bytes) -> None:
        if not self._is_up or self._request_ended:
            self._rest += data  # the next request's; the client is paused
            if self._request_ended:
                self._client.pause()
            return
        self._take_body(data)

    def _take_body(self, data: bytes) -> None:
        try:
            if data:
                self._front.receive_data(data)
            while self._upstream is not None:
                event = self._front.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.EndOfMessage):
                    self._request_ended = True
                    self._rest = self._front.trailing_data[0]
                    self._send_event(h11.EndOfMessage())
                    self._client.pause()  # what comes is the next request
                    return
                if not isinstance(event, h11.Data) or not self._send_event(h11.Data(data=event.data)):
                    return
        except h11.RemoteProtocolError as error:
            self._request.tell("failed", f"the request's body can't be understood: {error}")
            self._refuse(400, Reply.FAILED, "The request's body can't be understood.")

    def received_eof(self) -> None:
        self._eof = True
        if not self._request_ended:
            self._client.cut()  # half a request

    def upstream_drained(self) -> None:
        if not self._request_ended:
            self._client.resume()

    def upstream_received(self, data: bytes) -> None:
        taken = self._take_in(data)
        if taken is not None:
            self._feed_back(taken)
            self._backpressure()

    def upstream_eof(self) -> None:
        self._feed_back(b"")

    def upstream_broke(self, reason: str) -> None:
        self._fail(f"the outside ended it: {reason}")

    def _fail(self, reason: str) -> None:
        self._request.tell("failed", reason)
        self._refuse(502, Reply.FAILED, f"{self._target} gave no answer that can be understood.")

    def _feed_back(self, data: bytes) -> None:
        try:
            self._back.receive_data(data)
            while self._upstream is not None:
                event = self._back.next_event()
                if event is h11.NEED_DATA:
                    return
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    self._fail("it switched protocols or said nothing")
                    return
                self._pass_on(event)
        except h11.ProtocolError as error:
            self._fail(f"its answer can't be understood: {error}")

    def _pass_on(self, event: object) -> None:
        front = self._front
        if isinstance(event, h11.InformationalResponse):
            if front.their_http_version == b"1.1":
                self._write(h11.InformationalResponse(status_code=event.status_code, headers=[], reason=event.reason))
        elif isinstance(event, h11.Response):
            self._answered = True
            headers = list(response_headers(list(event.headers)))
            self._write(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
        elif isinstance(event, h11.Data):
            self._write(event)
        elif isinstance(event, h11.EndOfMessage):
            self._write(h11.EndOfMessage())
            self._finish()

    def _write(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._client.write(self._front.send(event) or b"")

    def _finish(self) -> None:
        self._request.tell("allowed")
        self._close_upstream(abruptly=False)
        front = self._front
        if front.our_state is not h11.DONE or front.their_state is not h11.DONE or self._eof:
            self._client.part()
            return
        self._client.set_timer(IDLE_TIMEOUT, self._client.cut)
        self._client.become(HttpProxy(self._client), self._rest)
        self._client.resume()
