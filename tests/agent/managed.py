"""Managed processes (agent/PROTOCOL.md section 8), as the driver of one agent speaks of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.agent.driver import DATA, INITIAL_CREDIT, Agent, Command, Error, Frame, encode, exec_payload

START, PROCESS, VIEW, CURSOR, INPUT, STOP, LIST = 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36
NOT_FOUND, NOT_EXECUTABLE, UNKNOWN, CLOSED, LIMIT = 7, 8, 9, 10, 11
NOWAIT, TAIL, REQUEST, END = 1, 2, 4, 8
INPUT_OPEN, OTHERS_LIVE = 1, 2
RECORD = struct.Struct("<IIBBHIQQQBBBBIQQQ")


@dataclass(frozen=True)
class Record:
    """One process, as the agent tells of it."""

    id: int
    pid: int
    ended: bool
    flags: int
    log_size: int
    started_at: int
    first: int
    last: int
    how: int
    reason: int
    exit_flags: int
    code: int
    wall: int
    cpu: int
    max_rss: int

    @property
    def signal(self) -> int | None:
        return self.code if self.how == 1 else None


def parse_records(payload: bytes) -> list[Record]:
    assert len(payload) % RECORD.size == 0
    records = []
    for values in RECORD.iter_unpack(payload):
        number, pid, ended, flags, zero, *rest = values
        how, reason, exit_flags, nothing, *numbers = rest[4:]
        assert (zero, nothing) == (0, 0)
        assert ended in (0, 1)
        facts = [number, pid, bool(ended), flags, *rest[:4], how, reason, exit_flags, *numbers]
        records.append(Record(*facts))
    return records


@dataclass
class Call(Command):
    """One request, on a channel of its own."""

    records: list[Record] | None = None
    cursors: list[int] = field(default_factory=list)
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    at: int = -1

    @property
    def done(self) -> bool:
        return self.records is not None or self.error is not None

    @property
    def data(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def take(self, frame: Frame) -> bool:
        if frame.type == PROCESS:
            self.records = parse_records(frame.payload)
        elif frame.type == CURSOR:
            (at,) = struct.unpack("<Q", frame.payload)
            assert at > self.at, "a cursor that does not rise"
            self.at = at
            self.cursors.append(at)
        elif frame.type == DATA:
            assert self.at >= 0, "output before its cursor"
            self.at += len(frame.payload)
            self.pieces.append((frame.flags, frame.payload))
            return False
        else:
            return False
        return True


def start_payload(
    *argv: str | bytes,
    log_size: int = 65536,
    most: int = 64,
    name: bytes = b"",
    cwd: str = ".",
    env: dict[str, str] | None = None,
    flags: int = 0,
) -> bytes:
    command = exec_payload(argv, cwd=cwd, env=env, flags=flags, window=0)
    return struct.pack("<IIII", log_size, most, len(name), 0) + name + command


def view_payload(id: int, flags: int = 0, window: int = 1 << 20, cursor: int = 0, length: int = 0) -> bytes:
    return struct.pack("<IIIIQQ", id, flags, window, 0, cursor, length)


def call(agent: Agent, kind: int, payload: bytes, *, window: int = 0, auto_grant: bool = True) -> Call:
    channel = agent._next_channel
    made = Call(channel, auto_grant, granted=window, credit=INITIAL_CREDIT)
    agent._next_channel += 1
    agent.commands[channel] = made
    agent.send_raw(encode(channel, kind, payload))
    return made


def finish(agent: Agent, made: Call) -> Call:
    while not made.done:
        assert agent.step(), f"the session ended; {agent.describe()}"
    return made


def record(agent: Agent, made: Call) -> Record:
    finish(agent, made)
    assert made.records is not None, made.error
    (found,) = made.records
    return found


def refusal(agent: Agent, made: Call) -> Error:
    finish(agent, made)
    assert made.error is not None, made.records
    return made.error


def start(agent: Agent, *argv: str | bytes, **options: object) -> Record:
    return record(agent, call(agent, START, start_payload(*argv, **options)))  # type: ignore[arg-type]


def view(agent: Agent, id: int, flags: int = 0, window: int = 1 << 20, cursor: int = 0, length: int = 0) -> Call:
    return call(agent, VIEW, view_payload(id, flags, window, cursor, length), window=window)


def logs(agent: Agent, id: int, flags: int = NOWAIT, **options: int) -> Call:
    return finish(agent, view(agent, id, flags, **options))


def ended(agent: Agent, id: int) -> Record:
    return record(agent, view(agent, id, END))


def stop(agent: Agent, id: int, grace_ms: int = 0) -> Record:
    return record(agent, call(agent, STOP, struct.pack("<II", id, grace_ms)))


def write(agent: Agent, id: int, data: bytes, *, end: bool = False) -> Call:
    return call(agent, INPUT, struct.pack("<II", id, end) + data)


def listed(agent: Agent) -> list[Record]:
    found = finish(agent, call(agent, LIST, struct.pack("<I", 0))).records
    assert found is not None
    return sorted(found, key=lambda record: record.id)
