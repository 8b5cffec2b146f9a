"""A small host for one agent process: what the tests say to it and what they hear. Independent of sandboxkit.

It breaks no rule of agent/PROTOCOL.md unless a test sends raw frames, and checks every frame of the agent against it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agent.processes import (
    DEADLINE,
    children,
    commands_of,
    descendants,
    is_alive,
    stat_fields,
    supervisors_of,
    wait_gone,
)
from tests.agent.stream import Stream
from tests.support.waiting import wait_until

__all__ = ["DEADLINE", "children", "commands_of", "descendants"]
__all__ += ["is_alive", "stat_fields", "supervisors_of", "wait_gone", "wait_until"]

HELLO, CONFIGURE, PING, PONG, SHORTCUT, OFFER = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
EXEC, STARTED, DATA, EOF, WINDOW, KILL, EXIT, ERROR, RESIZE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
STDIN, TTY, WANT_STARTED = 1, 2, 4
UNSUPPORTED, INVALID, BUSY, CWD, INTERNAL = 1, 2, 3, 4, 5
BY_ITSELF, TIMEOUT, BY_KILL = 0, 1, 2
FLAG_OOM, FLAG_NOT_RUN, FLAG_PIDS_CUT = 1, 2, 4
MAGIC = 0x4B584253
INITIAL_CREDIT = 65536

HEADER = struct.Struct("<IIBBH")
EXIT_HEAD = struct.Struct("<BBBBIQQQH")


@dataclass(frozen=True)
class Frame:
    channel: int
    type: int
    flags: int
    payload: bytes


@dataclass(frozen=True)
class Exit:
    """The EXIT frame of a command."""

    how: int
    reason: int
    flags: int
    code: int
    wall: int
    cpu: int
    max_rss: int
    pids: tuple[int, ...]

    @property
    def signal(self) -> int | None:
        return self.code if self.how == 1 else None

    @property
    def exit_code(self) -> int | None:
        return self.code if self.how == 0 else None


@dataclass(frozen=True)
class Error:
    code: int
    errno: int
    text: str


@dataclass
class Command:
    """What is known of one channel."""

    channel: int
    auto_grant: bool
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    keep: bool = True
    total: int = 0
    frames: int = 0
    granted: int = 0
    ungranted: int = 0
    credit: int = INITIAL_CREDIT
    windows: int = 0
    pid: int | None = None
    exit: Exit | None = None
    error: Error | None = None

    @property
    def done(self) -> bool:
        return self.exit is not None or self.error is not None

    def take(self, frame: Frame) -> bool:
        return False  # true: this kind of channel knows the frame


def encode(channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return HEADER.pack(len(payload), channel, kind, flags, 0) + payload


def exec_payload(
    argv: Sequence[str | bytes],
    *,
    cwd: str | bytes = ".",
    env: Mapping[str, str] | None = None,
    flags: int = 0,
    window: int = 1 << 20,
    timeout_ms: int = 0,
    grace_ms: int = 0,
    rows: int = 0,
    columns: int = 0,
) -> bytes:
    settings = [f"{name}={value}" for name, value in (env or {}).items()]
    strings = [cwd, *argv, *settings]
    head = struct.pack("<IIIIHHII", flags, window, timeout_ms, grace_ms, rows, columns, len(argv), len(settings))
    return head + b"".join(os.fsencode(string) + b"\0" for string in strings)


def parse_exit(payload: bytes) -> Exit:
    how, reason, flags, zero, code, wall, cpu, max_rss, count = EXIT_HEAD.unpack_from(payload)
    assert zero == 0
    assert how in (0, 1)
    assert count <= 64
    assert len(payload) == EXIT_HEAD.size + 4 * count
    return Exit(how, reason, flags, code, wall, cpu, max_rss, struct.unpack_from(f"<{count}I", payload, EXIT_HEAD.size))


class Agent(Stream):
    """One running agent and the host's end of its stream; keywords as of Stream."""

    def __init__(self, binary: Path, workspace: Path, *, hello: bool = True, **options: Any) -> None:
        super().__init__(binary, workspace, **options)
        self._next_channel = 1
        self.commands: dict[int, Command] = {}
        self.hello: dict[str, str] = {}
        self.pongs: list[bytes] = []
        self.session_errors: list[Error] = []
        if hello:
            self.read_hello()

    # -- frames -----------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        waiting = [
            f"{command.channel}: {command.total} bytes, {command.granted} granted, {command.credit} credit"
            for command in self.commands.values()
            if not command.done
        ]
        return f"{super().describe()}; open: {waiting[:10]}"

    def next_frame(self, timeout: float = DEADLINE) -> Frame | None:
        """The next frame, or None when the agent has closed the stream."""
        deadline = time.monotonic() + timeout
        while (frame := self._take_frame()) is None:
            if self.ended:
                assert not self._received, "the agent's stream ends in the middle of a frame"
                return None
            self.pump(deadline)
        return frame

    def _take_frame(self) -> Frame | None:
        if len(self._received) < HEADER.size:
            return None
        length, channel, kind, flags, reserved = HEADER.unpack_from(self._received)
        assert reserved == 0
        assert length <= 65536
        if len(self._received) < HEADER.size + length:
            return None
        payload = bytes(self._received[HEADER.size : HEADER.size + length])
        del self._received[: HEADER.size + length]
        return Frame(channel, kind, flags, payload)

    def read_hello(self) -> None:
        frame = self.next_frame()
        assert frame is not None, f"no HELLO: agent returned {self.process.wait()}"
        assert (frame.channel, frame.type, frame.flags) == (0, HELLO, 0)
        magic, version, zero = struct.unpack_from("<IHH", frame.payload)
        assert (magic, version, zero) == (MAGIC, 1, 0)
        assert len(frame.payload) <= 8192
        lines = frame.payload[8:].decode("ascii").splitlines()
        self.hello = dict(line.split("=", 1) for line in lines)

    def step(self, timeout: float = DEADLINE) -> bool:
        """Handles one frame; False at the end of the stream."""
        frame = self.next_frame(timeout)
        if frame is None:
            return False
        if frame.channel == 0:
            self._session_frame(frame)
            return True
        command = self.commands.get(frame.channel)
        assert command is not None, f"a frame for a channel that was never opened: {frame}"
        assert not command.done, f"a frame after the last one of its channel: {frame}"
        if not command.take(frame):
            self._command_frame(command, frame)
        return True

    def _session_frame(self, frame: Frame) -> None:
        if frame.type == PONG:
            self.pongs.append(frame.payload)
        elif frame.type == ERROR:
            self.session_errors.append(self._parse_error(frame))
        else:
            raise AssertionError(f"unexpected on channel 0: {frame}")

    @staticmethod
    def _parse_error(frame: Frame) -> Error:
        code, errno = struct.unpack_from("<HH", frame.payload)
        return Error(code, errno, frame.payload[4:].decode())

    def _command_frame(self, command: Command, frame: Frame) -> None:
        command.frames += 1
        if frame.type == DATA:
            self._output(command, frame)
        elif frame.type == STARTED:
            assert command.pid is None
            (command.pid,) = struct.unpack("<I", frame.payload)
        elif frame.type == WINDOW:
            (credit,) = struct.unpack("<I", frame.payload)
            command.credit += credit
            command.windows += 1
            assert command.credit <= INITIAL_CREDIT, "more credit than was used"
        elif frame.type == EXIT:
            command.exit = parse_exit(frame.payload)
        elif frame.type == ERROR:
            command.error = self._parse_error(frame)
        else:
            raise AssertionError(f"unexpected: {frame}")

    def _output(self, command: Command, frame: Frame) -> None:
        size = len(frame.payload)
        assert size > 0
        command.granted -= size
        command.total += size
        assert command.granted >= 0, "more output than was granted"
        assert frame.flags in (1, 2)
        if command.keep:
            (command.stdout if frame.flags == 1 else command.stderr).extend(frame.payload)
        command.ungranted += size
        if command.auto_grant and command.ungranted >= 1 << 16:
            self.grant(command)

    def grant(self, command: Command, credit: int | None = None) -> None:
        """Gives output credit: by default as much as has been used."""
        if credit is None:
            credit = command.ungranted
        command.ungranted = 0
        command.granted += credit
        self.send_raw(encode(command.channel, WINDOW, struct.pack("<I", credit)))

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(
        self,
        *argv: str | bytes,
        cwd: str | bytes = ".",
        env: Mapping[str, str] | None = None,
        flags: int = 0,
        window: int = 1 << 20,
        timeout_ms: int = 0,
        grace_ms: int = 0,
        rows: int = 0,
        columns: int = 0,
        auto_grant: bool = True,
        keep: bool = True,
    ) -> Command:
        payload = exec_payload(
            argv,
            cwd=cwd,
            env=env,
            flags=flags,
            window=window,
            timeout_ms=timeout_ms,
            grace_ms=grace_ms,
            rows=rows,
            columns=columns,
        )
        return self.start_raw(payload, window=window, auto_grant=auto_grant, keep=keep)

    def start_raw(self, payload: bytes, *, window: int = 0, auto_grant: bool = True, keep: bool = True) -> Command:
        command = Command(self._next_channel, auto_grant, granted=window, keep=keep)
        self._next_channel += 1
        self.commands[command.channel] = command
        self.send_raw(encode(command.channel, EXEC, payload))
        return command

    def wait(self, command: Command, timeout: float = DEADLINE) -> Exit:
        """The EXIT of the command; an ERROR fails the test."""
        deadline = time.monotonic() + timeout
        while not command.done:
            assert self.step(deadline - time.monotonic()), f"the session ended; {self.describe()}"
        assert command.exit is not None, command.error
        del self.commands[command.channel]
        return command.exit

    def wait_error(self, command: Command, timeout: float = DEADLINE) -> Error:
        deadline = time.monotonic() + timeout
        while not command.done:
            assert self.step(deadline - time.monotonic()), f"the session ended; {self.describe()}"
        assert command.error is not None, command.exit
        return command.error

    def wait_output(self, command: Command, expected: bytes, timeout: float = DEADLINE) -> None:
        """Until standard output contains the bytes."""
        deadline = time.monotonic() + timeout
        while expected not in command.stdout:
            assert not command.done, f"ended without saying {expected!r}: {command}"
            assert self.step(deadline - time.monotonic())

    def wait_started(self, command: Command, timeout: float = DEADLINE) -> int:
        deadline = time.monotonic() + timeout
        while command.pid is None:
            assert not command.done, f"ended before it started: {command}"
            assert self.step(deadline - time.monotonic())
        return command.pid

    def run(
        self,
        *argv: str | bytes,
        cwd: str | bytes = ".",
        env: Mapping[str, str] | None = None,
        flags: int = 0,
        timeout_ms: int = 0,
        grace_ms: int = 0,
        input: bytes | None = None,
    ) -> tuple[Command, Exit]:
        command = self.start(
            *argv,
            cwd=cwd,
            env=env,
            flags=flags | (STDIN if input is not None else 0),
            timeout_ms=timeout_ms,
            grace_ms=grace_ms,
        )
        if input is not None:
            self.feed(command, input)
        return command, self.wait(command)

    def feed(self, command: Command, data: bytes) -> None:
        """All of the data as the credit allows, then end of file, into the stream; less when the command ends early."""
        view = memoryview(data)
        deadline = time.monotonic() + DEADLINE
        while view and not command.done:
            count = min(command.credit, 65536, len(view))
            if count == 0 or self._unsent:
                if self._take_available() or command.done:
                    continue
                self.pump(deadline)
                continue
            command.credit -= count
            self.send_raw(encode(command.channel, DATA, bytes(view[:count])))
            view = view[count:]
        if not command.done:
            self.send_raw(encode(command.channel, EOF))
            self.flush()

    def _take_available(self) -> bool:
        if len(self._received) < HEADER.size:
            return False
        length = HEADER.unpack_from(self._received)[0]
        if len(self._received) < HEADER.size + length:
            return False
        return self.step()

    def kill(self, command: Command, grace_ms: int = 0) -> None:
        self.send_raw(encode(command.channel, KILL, struct.pack("<I", grace_ms)))

    def ping(self, payload: bytes = b"", timeout: float = DEADLINE) -> None:
        """Returns when the agent has answered, and so has acted on everything sent before."""
        before = len(self.pongs)
        self.send_raw(encode(0, PING, payload))
        deadline = time.monotonic() + timeout
        while len(self.pongs) == before:
            assert self.step(deadline - time.monotonic()), f"the session ended; {self.describe()}"
        assert self.pongs[-1] == payload

    def wait_end(self, timeout: float = DEADLINE) -> int:
        """Reads to the end of the stream, then the agent's exit code."""
        deadline = time.monotonic() + timeout
        while self.step(deadline - time.monotonic()):
            pass
        return self.process.wait(max(deadline - time.monotonic(), 1))
