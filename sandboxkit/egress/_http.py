"""HTTP/1.1 as a proxy has to read it: strictly, and so that what is sent on has one meaning alone. No input or output.

h11 parses and writes. Nothing is passed on as it came: requests and responses are written anew from what was
understood, so two parsers can't be made to disagree (request smuggling). What h11 takes in kindness is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs
import h11

from sandboxkit._hosts import normalised_host

__all__ = [
    "HEAD_MAX",
    "RESPONSE_HEAD_MAX",
    "HttpError",
    "RequestHead",
    "error_response",
    "find_head",
    "parse_head",
    "request_headers",
    "response_headers",
]

HEAD_MAX: Final = 65_536
RESPONSE_HEAD_MAX: Final = 262_144

Headers = Sequence[tuple[bytes, bytes]]

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[^:@/?#\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
_ABSOLUTE = re.compile(r"(?i:http)://(?P<authority>[^/?#]+)(?P<rest>[/?][^#]*)?")
_BROKEN = re.compile(rb"\0|(?<!\r)\n|\r(?=[^\n])|\r\n[ \t]")
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}
    | {b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)


class HttpError(Exception):
    """What came is no request that is passed on; its text is one sentence for the client."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@attrs.frozen
class RequestHead:
    """A request that was understood. `path` is what is asked of the host; empty for CONNECT."""

    method: bytes
    host: str
    port: int
    path: bytes
    headers: Headers
    connection: h11.Connection

    @property
    def is_connect(self) -> bool:
        return self.method == b"CONNECT"


def find_head(buffer: bytearray, scanned: int) -> int:
    """Where the head ends that the buffer begins with, -1 while it is not whole. HttpError for one that may not be.

    Called with more each time, `scanned` bytes of which were there before.
    """
    end = buffer.find(b"\r\n\r\n", max(scanned - 3, 0))
    head = buffer[: end + 4] if end >= 0 else buffer
    if len(head) > HEAD_MAX:
        raise HttpError(f"The request's headers have more than {HEAD_MAX} bytes.", 431)
    if _BROKEN.search(buffer, max(scanned - 3, 0), len(head)):
        raise HttpError("The request's head holds a NUL, a CR or LF alone, or a header in several lines.")
    return -1 if end < 0 else end + 4


def parse_head(head: bytes) -> RequestHead:
    """HttpError, or a request with one meaning. Its connection waits for the body."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
    try:
        connection.receive_data(head)
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise HttpError(f"The request can't be understood: {error}.") from error
    if not isinstance(event, h11.Request):
        raise HttpError("The request can't be understood.")
    headers = [(bytes(name), bytes(value)) for name, value in event.headers]
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
        raise HttpError("The request says in two ways where it ends.")
    if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
        raise HttpError("The request says twice where it ends.")
    method, target = bytes(event.method), bytes(event.target).decode("ascii", "replace")
    if method == b"CONNECT":
        if b"transfer-encoding" in names or dict(headers).get(b"content-length", b"0") != b"0":
            raise HttpError("A CONNECT has no body.")
        host, port = _authority(target, None)
        return RequestHead(method, host, port, b"", headers, connection)
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        if target.lower().startswith("https://"):
            raise HttpError("For https this proxy takes CONNECT.")
        raise HttpError("This is a proxy: it takes CONNECT and requests for http://host/path.")
    host, port = _authority(found["authority"], 80)
    path = found["rest"] or "/"
    path = path if path.startswith("/") else f"/{path}"
    return RequestHead(method, host, port, path.encode("ascii"), headers, connection)


def _authority(text: str, default: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    port = default if found is None or found["port"] is None else int(found["port"])
    if found is None or port is None or not 1 <= port <= 65535:
        raise HttpError("The request names no host and port.")
    try:
        return normalised_host(found["host"].strip("[]") if found["host"].startswith("[") else found["host"]), port
    except ValueError as error:
        raise HttpError("The request names a host that is none.") from error


def request_headers(head: RequestHead, host: str, credentials: Mapping[str, str]) -> Headers:
    """What the request is sent on with; `host` is the Host header's value."""
    ours = {name.lower().encode("ascii") for name in credentials}
    dropped = _dropped(head.headers) | ours | {b"host"}
    found = [(b"host", host.encode("ascii"))]
    found += [(name, value) for name, value in head.headers if name not in dropped]
    if any(name == b"transfer-encoding" for name, _ in head.headers):
        found.append((b"transfer-encoding", b"chunked"))
    found += [(name.encode("ascii"), value.encode("ascii")) for name, value in credentials.items()]
    return [*found, (b"connection", b"close")]


def response_headers(headers: Headers) -> Headers:
    """What a response is passed on with. With a Transfer-Encoding its Content-Length means nothing (RFC 9112, 6.3)."""
    dropped = _dropped(headers)
    if any(name == b"transfer-encoding" for name, _ in headers):
        dropped |= {b"content-length"}
    return [(name, value) for name, value in headers if name not in dropped]


def _dropped(headers: Headers) -> frozenset[bytes]:
    # Of this hop alone: those that always are, and those that Connection names. What says where a message ends and
    # whose it is stays, whatever Connection names.
    named = {
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    } - {b"host", b"content-length", b"transfer-encoding"}
    return _HOP_BY_HOP | named


def error_response(status: int, sentence: str, *, body: bool = True) -> bytes:
    """A whole response of the proxy's own, the last on its connection."""
    text = f"{sentence}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        "X-Proxy: sandboxkit\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (text if body else b"")
