"""The agent protocol's bytes: encoding, and decoding that trusts nothing (agent/PROTOCOL.md, whose sections are §)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

__all__ = [
    "EXEC",
    "HEADER",
    "INPUT_WINDOW",
    "MAX_CHANNEL",
    "MAX_CREDIT",
    "MAX_PAYLOAD",
    "ExecFlag",
    "Exit",
    "FrameType",
    "Hello",
    "ProtocolError",
    "Refusal",
    "RefusalCode",
    "Stream",
    "encode",
    "encode_configure",
    "encode_exec",
    "encode_input",
    "encode_resize",
    "encode_u32",
    "exec_payload",
    "milliseconds",
    "parse_u32",
    "printable",
]

VERSION: Final = 1
MAGIC: Final = 0x4B584253
HEADER: Final = struct.Struct("<IIBBH")  # §1: length, channel, type, flags, reserved
EXEC: Final = struct.Struct("<IIIIHHII")  # §5.1: flags, window, timeout, grace, rows, columns, counts of strings
MAX_PAYLOAD: Final = 65_536  # §1: of any frame from the agent, and of DATA to it
MAX_HELLO: Final = 8_192
INPUT_WINDOW: Final = 65_536  # §4.2: the first credit for a command's input
MAX_CREDIT: Final = 2**31 - 1
MAX_CHANNEL: Final = 0x7FFF_FFFF

_EXIT = struct.Struct("<BBBBIQQQH")
_ERROR = struct.Struct("<HH")
_HELLO = struct.Struct("<IHH")
_U32 = struct.Struct("<I")
_SIZE = struct.Struct("<HH")


class ProtocolError(Exception):
    """The container sent what the protocol forbids: the session is over."""


class FrameType(enum.IntEnum):
    """§2."""

    HELLO = 0x01
    CONFIGURE = 0x02
    PING = 0x03
    PONG = 0x04
    SHORTCUT = 0x05
    OFFER = 0x06
    EXEC = 0x10
    STARTED = 0x11
    DATA = 0x12
    EOF = 0x13
    WINDOW = 0x14
    KILL = 0x15
    EXIT = 0x16
    ERROR = 0x17
    RESIZE = 0x18
    START = 0x30
    PROCESS = 0x31
    VIEW = 0x32
    CURSOR = 0x33
    INPUT = 0x34
    STOP = 0x35
    LIST = 0x36
    CONNECT = 0x40
    LISTEN = 0x41
    OPENED = 0x42
    ACCEPTED = 0x43
    CLOSED = 0x44
    TAKEN = 0x45


class Stream(enum.IntEnum):
    """§5.2."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2


class ExecFlag(enum.IntFlag):
    """§5.1."""

    NONE = 0
    STDIN = 1
    TTY = 2
    STARTED = 4
    APPLET = 8


class RefusalCode(enum.IntEnum):
    """§4.3."""

    UNSUPPORTED = 1
    INVALID = 2
    BUSY = 3
    CWD = 4
    INTERNAL = 5
    ADDRESS = 6
    NOT_FOUND = 7
    NOT_EXECUTABLE = 8
    UNKNOWN = 9
    CLOSED = 10
    LIMIT = 11


def encode(kind: FrameType, channel: int, payload: bytes | memoryview = b"", flags: int = 0) -> bytes:
    """One frame."""
    return b"".join((HEADER.pack(len(payload), channel, kind, flags, 0), payload))


def encode_input(channel: int, data: memoryview) -> bytes:
    """DATA for a command, in as many frames as that takes."""
    parts: list[bytes | memoryview] = []
    for at in range(0, len(data), MAX_PAYLOAD):
        piece = data[at : at + MAX_PAYLOAD]
        parts += HEADER.pack(len(piece), channel, FrameType.DATA, Stream.STDIN, 0), piece
    return b"".join(parts)


def encode_configure(settings: Mapping[str, str]) -> bytes:
    """§3.2: a CONFIGURE."""
    text = "".join(f"{name}={value}\n" for name, value in settings.items()).encode("ascii")
    return encode(FrameType.CONFIGURE, 0, _SIZE.pack(VERSION, 0) + text)


def encode_u32(kind: FrameType, channel: int, value: int) -> bytes:
    """A frame whose payload is one number: WINDOW, KILL."""
    return HEADER.pack(4, channel, kind, 0, 0) + _U32.pack(value)


def encode_resize(channel: int, rows: int, columns: int) -> bytes:
    """§2 RESIZE."""
    return encode(FrameType.RESIZE, channel, _SIZE.pack(rows, columns))


def exec_payload(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    flags: ExecFlag,
    window: int,
    timeout_ms: int,
    grace_ms: int,
    rows: int = 24,
    columns: int = 80,
) -> bytes:
    """§5.1, without the header. No string may hold a NUL: the caller has checked."""
    strings = [cwd, *argv]
    strings.extend(f"{name}={value}" for name, value in env.items())
    strings.append("")
    head = EXEC.pack(flags, window, timeout_ms, grace_ms, rows, columns, len(argv), len(env))
    return head + "\0".join(strings).encode("utf-8", "surrogateescape")  # whatever the host's own locale is


def encode_exec(channel: int, payload: bytes) -> bytes:
    """A whole EXEC frame."""
    return encode(FrameType.EXEC, channel, payload)


@attrs.frozen
class Hello:
    """§3.1: what the agent says of itself and of what is in force around it."""

    facts: Mapping[str, str]

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """ProtocolError unless magic, version and form are right."""
        if not _HELLO.size <= len(payload) <= MAX_HELLO:
            raise ProtocolError(f"a HELLO of {len(payload)} bytes")
        magic, version, _ = _HELLO.unpack_from(payload)
        if magic != MAGIC:
            raise ProtocolError("the container's first bytes are not the agent's")
        if version != VERSION:
            raise ProtocolError(f"the agent speaks protocol version {version}, this library {VERSION}")
        try:
            text = payload[_HELLO.size :].decode("ascii")
        except UnicodeDecodeError:
            raise ProtocolError("a HELLO that is not ASCII") from None
        return cls(dict(_pairs(map(printable, text.split("\n")))))

    def number(self, name: str, base: int = 10) -> int | None:
        """The fact as a number; None when the agent could not read it or it is no number (`max`, `unlimited`)."""
        try:
            return int(self.facts.get(name, ""), base)
        except ValueError:
            return None


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, found, value = line.partition("=")
        if found:
            yield name, value


@attrs.frozen
class Exit:
    """§5.5: how a command ended."""

    signal: int | None
    exit_code: int | None
    reason: int
    oom_killed: bool
    not_executed: bool
    cpu_seconds: float
    max_rss_bytes: int
    background_pids: tuple[int, ...]

    BY_ITSELF = 0
    TIMEOUT = 1
    KILLED = 2

    @classmethod
    def parse(cls, payload: bytes) -> Exit:
        """ProtocolError unless every field is in its range."""
        if len(payload) < _EXIT.size:
            raise ProtocolError(f"an EXIT of {len(payload)} bytes")
        how, reason, flags, _, code, _wall, cpu, rss, count = _EXIT.unpack_from(payload)
        if how > 1 or reason > 2 or code > 255 or count > 64 or len(payload) != _EXIT.size + 4 * count:
            raise ProtocolError("an EXIT with fields out of range")
        if how == 1 and not 1 <= code <= 64:
            raise ProtocolError(f"an EXIT by signal {code}")
        pids = struct.unpack_from(f"<{count}I", payload, _EXIT.size)
        return cls(
            signal=code if how == 1 else None,
            exit_code=None if how == 1 else code,
            reason=reason,
            oom_killed=bool(flags & 1),
            not_executed=bool(flags & 2),
            cpu_seconds=cpu / 1e6,
            max_rss_bytes=rss,
            background_pids=pids,
        )


@attrs.frozen
class Refusal:
    """§4.3: the request failed and nothing ran."""

    code: RefusalCode
    errno: int
    message: str

    @classmethod
    def parse(cls, payload: bytes) -> Refusal:
        """ProtocolError for an unknown code."""
        if len(payload) < _ERROR.size:
            raise ProtocolError(f"an ERROR of {len(payload)} bytes")
        code, number = _ERROR.unpack_from(payload)
        try:
            known = RefusalCode(code)
        except ValueError:
            raise ProtocolError(f"an ERROR with code {code}") from None
        text = payload[_ERROR.size : _ERROR.size + 1024].decode("utf-8", "replace")
        return cls(known, number, printable(text))


def printable(text: str, keep: str = "") -> str:
    """What the sandbox said, harmless to a terminal: what is not printable becomes `?`, but for those of `keep`."""
    return "".join(c if c.isprintable() or c in keep else "?" for c in text)


def parse_u32(payload: bytes) -> int:
    """The payload of WINDOW, STARTED and ACCEPTED."""
    if len(payload) != 4:
        raise ProtocolError(f"a number of {len(payload)} bytes")
    value: int = _U32.unpack(payload)[0]
    return value


def milliseconds(seconds: float) -> int:
    """Seconds as the protocol's u32 of ms: rounded up, so that a tiny bound is not "none"."""
    return -int(-min(seconds, 4_294_967) * 1000 // 1)
