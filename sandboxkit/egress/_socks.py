"""SOCKS5 (RFC 1928) as far as a client needs it to connect: no authentication, CONNECT alone. No input or output."""

from __future__ import annotations

import enum
import ipaddress
from typing import Final

from sandboxkit._hosts import normalised_host

__all__ = ["Reply", "SocksError", "SocksParser", "reply"]

VERSION: Final = 5
METHOD_NONE: Final = b"\5\0"
METHOD_REFUSED: Final = b"\5\xff"


class Reply(enum.IntEnum):
    """What a request is answered with."""

    DONE = 0
    FAILED = 1
    DENIED = 2
    UNREACHABLE = 4
    REFUSED = 5
    TIMEOUT = 6
    BAD_COMMAND = 7
    BAD_ADDRESS = 8


def reply(code: Reply) -> bytes:
    """The answer to a request; the address that it was made from is not told."""
    return bytes([VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])


class SocksError(Exception):
    """This is no such request. `answer` is what the client is told."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.answer = answer


class SocksParser:
    """Takes bytes until it knows the destination. Holds 520 bytes at most, beside what came last."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> tuple[bytes, tuple[str, int] | None]:
        """What to answer, and host and port once they are there; `rest` is then what follows. SocksError."""
        self._bytes += data
        answer = b""
        if not self._greeted:
            if not self._take_greeting():
                return b"", None
            self._greeted = True
            answer = METHOD_NONE
        return answer, self._take_request()

    @property
    def rest(self) -> bytes:
        """What came behind the request."""
        return bytes(self._bytes)

    def _take_greeting(self) -> bool:
        found = self._bytes
        if found and found[0] != VERSION:
            raise SocksError("not SOCKS5")
        if len(found) < 2 or len(found) < 2 + found[1]:
            return False
        if 0 not in found[2 : 2 + found[1]]:
            raise SocksError("SOCKS with authentication", METHOD_REFUSED)
        del found[: 2 + found[1]]
        return True

    def _take_request(self) -> tuple[str, int] | None:
        found = self._bytes
        if found and found[0] != VERSION:
            raise SocksError("not SOCKS5")
        if len(found) < 5:
            return None
        _, command, reserved, kind, length = found[:5]
        sizes = {1: 4, 3: 1 + length, 4: 16}
        if kind not in sizes or reserved:
            raise SocksError("an address of a kind that is not known", reply(Reply.BAD_ADDRESS))
        end = 4 + sizes[kind]
        if len(found) < end + 2:
            return None
        if command != 1:
            raise SocksError("a command other than CONNECT", reply(Reply.BAD_COMMAND))
        raw, port = bytes(found[4:end]), int.from_bytes(found[end : end + 2], "big")
        try:
            host = normalised_host(raw[1:].decode("ascii")) if kind == 3 else str(ipaddress.ip_address(raw))
        except ValueError as error:
            raise SocksError("a host that is none", reply(Reply.BAD_ADDRESS)) from error
        if not port:
            raise SocksError("port 0", reply(Reply.BAD_ADDRESS))
        del found[: end + 2]
        return host, port
