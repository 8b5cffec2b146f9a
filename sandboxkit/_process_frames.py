"""What the frames about managed processes hold (agent/PROTOCOL.md section 8), trusting none from the container."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final

import attrs

from ._frames import EXEC, ExecFlag, Exit, ProtocolError

__all__ = [
    "MAX_LOG",
    "MAX_NAME",
    "MAX_PROCESSES",
    "MAX_REQUEST",
    "MIN_LOG",
    "Launch",
    "ProcessRecord",
    "ViewFlag",
    "encode_input",
    "encode_list",
    "encode_stop",
    "encode_view",
    "parse_cursor",
]

MIN_LOG: Final = 4_096
MAX_LOG: Final = 16_777_216
MAX_PROCESSES: Final = 128
MAX_START: Final = 266_240  # §8.1: the payload of START
MAX_NAME: Final = 255
MAX_REQUEST: Final = MAX_START - MAX_NAME - 16 - 1024  # of EXEC's payload in it

_START = struct.Struct("<IIII")
_VIEW = struct.Struct("<IIIIQQ")
_PAIR = struct.Struct("<II")
_RECORD = struct.Struct("<IIBBHIQQQ")
_ENDING = 32
_CURSOR = struct.Struct("<Q")


class ViewFlag(enum.IntFlag):
    """§8.3."""

    NONE = 0
    NOWAIT = 1
    TAIL = 2
    REQUEST = 4
    END = 8


def encode_view(id: int, flags: ViewFlag, *, window: int = 0, cursor: int = 0, length: int = 0) -> bytes:
    """§8.3, payload."""
    return _VIEW.pack(id, flags, window, 0, cursor, length)


def encode_input(id: int, data: memoryview, *, end: bool) -> bytes:
    """§8.4, payload."""
    return _PAIR.pack(id, end) + data


def encode_stop(id: int, grace_ms: int) -> bytes:
    """§8.5, payload."""
    return _PAIR.pack(id, grace_ms)


def encode_list(id: int) -> bytes:
    """§8.6, payload: of one process, or 0 for all."""
    return struct.pack("<I", id)


def parse_cursor(payload: bytes) -> int:
    """§8.3: a CURSOR."""
    if len(payload) != _CURSOR.size:
        raise ProtocolError(f"a CURSOR of {len(payload)} bytes")
    value: int = _CURSOR.unpack(payload)[0]
    return value


@attrs.frozen
class ProcessRecord:
    """§8.6: where a process stands."""

    id: int
    pid: int
    started_at: float
    input_open: bool
    others_live: bool
    log_bytes: int
    first: int
    last: int
    exit: Exit | None
    duration: float

    @classmethod
    def parse_all(cls, payload: bytes) -> tuple[ProcessRecord, ...]:
        """ProtocolError unless every field is in its range, and no process is there twice."""
        size = _RECORD.size + _ENDING
        count, rest = divmod(len(payload), size)
        if rest or count > MAX_PROCESSES:
            raise ProtocolError(f"a PROCESS of {len(payload)} bytes")
        records = tuple(cls._parse(payload[at : at + size]) for at in range(0, len(payload), size))
        if len({record.id for record in records}) != count:
            raise ProtocolError("a PROCESS that tells of one twice")
        return tuple(sorted(records, key=lambda record: record.id))

    @classmethod
    def _parse(cls, data: bytes) -> ProcessRecord:
        number, pid, ended, flags, zero, log_bytes, started, first, last = _RECORD.unpack_from(data)
        if not number or ended > 1 or flags > 3 or zero or first > last or last - first > log_bytes:
            raise ProtocolError("a PROCESS with fields out of range")
        ending = data[_RECORD.size :]
        return cls(
            id=number,
            pid=pid,
            started_at=started / 1e6,
            input_open=bool(flags & 1),
            others_live=bool(flags & 2),
            log_bytes=log_bytes,
            first=first,
            last=last,
            exit=Exit.parse(ending + b"\0\0") if ended else None,
            duration=int.from_bytes(ending[8:16], "little") / 1e6,
        )


@attrs.frozen(kw_only=True)
class Launch:
    """What a process was started with; `request` is EXEC's payload, whole."""

    command: str
    args: tuple[str, ...]
    cwd: str
    name: str | None
    stdin: bool
    log_bytes: int
    request: bytes = attrs.field(repr=False)

    def payload(self, most: int) -> bytes:
        """START's, for when fewer than `most` run."""
        name = (self.name or "").encode("utf-8", "surrogateescape")
        return _START.pack(self.log_bytes, most, len(name), 0) + name + self.request

    @classmethod
    def parse(cls, data: bytes) -> Launch:
        """From START's payload, as the agent kept it. ProtocolError when it is none."""
        if not _START.size <= len(data) <= MAX_START:
            raise ProtocolError(f"a request of {len(data)} bytes")
        log_bytes, _, name_size, _ = _START.unpack_from(data)
        name = data[_START.size : _START.size + name_size]
        request = data[_START.size + name_size :]
        if len(request) < EXEC.size or not MIN_LOG <= log_bytes <= MAX_LOG:
            raise ProtocolError("a request that is none")
        flags, _, _, _, _, _, argc, envc = EXEC.unpack_from(request)
        strings = request[EXEC.size :].split(b"\0")
        if flags & ~ExecFlag.STDIN or argc < 1 or len(strings) != 1 + argc + envc + 1 or strings[-1]:
            raise ProtocolError("a request whose strings don't match its counts")
        cwd, *argv = _texts(strings[: 1 + argc])
        return cls(
            command=argv[0],
            args=tuple(argv[1:]),
            cwd=cwd,
            name=_texts([name])[0] or None,
            stdin=bool(flags & ExecFlag.STDIN),
            log_bytes=log_bytes,
            request=request,
        )


def _texts(strings: Sequence[bytes]) -> list[str]:
    return [string.decode("utf-8", "surrogateescape") for string in strings]
