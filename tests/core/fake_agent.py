"""The agent's end of a session in Python: it speaks the protocol strictly and runs scripted commands.

Every frame of the host is checked against agent/PROTOCOL.md and kept in `frames`; what breaks a rule is kept in
`broken` and ends the session, as with the real agent. What a command does is told by its name: see PROGRAMS. A command
of the name `scripted` does nothing by itself; a test gets it by `job()` and drives it. Tunnels and listeners are only
noted, in `tunnels`: a test sends the agent's frames for them.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping

import attrs

from sandboxkit._frames import HEADER, INPUT_WINDOW, MAGIC, MAX_PAYLOAD, VERSION, FrameType

__all__ = ["BUILD", "FakeAgent", "Frame", "Job", "frame", "hello"]

BUILD = "0123456789abcdef"
FACTS: Mapping[str, str] = {
    "build": BUILD,
    "arch": "x86_64",
    "pid": "1",
    "uid": "0",
    "gid": "0",
    "cap_eff": "0" * 16,
    "cap_bnd": "0" * 16,
    "cap_prm": "0" * 16,
    "no_new_privs": "1",
    "seccomp": "2",
    "deny_list": "1",
    "nofile": "1024:1024",
    "nproc": "100:100",
    "core": "0:0",
    "memory_max": str(2048 << 20),
    "pids_max": "512",
    "rootfs_ro": "0",
    "workspace_writable": "1",
}
_EXEC = struct.Struct("<IIIIHHII")
_STDIN = 1
# About managed processes: a test answers them itself.
REQUESTS = (FrameType.START, FrameType.VIEW, FrameType.INPUT, FrameType.STOP, FrameType.LIST)


@attrs.frozen
class Frame:
    """One frame that the host sent."""

    kind: FrameType
    channel: int
    flags: int
    payload: bytes


def frame(kind: int, channel: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """The bytes of one frame."""
    return HEADER.pack(len(payload), channel, kind, flags, 0) + payload


def hello(version: int = VERSION, magic: int = MAGIC, **facts: str | None) -> bytes:
    """A HELLO frame; a fact that is None is left out."""
    lines = {**FACTS, **facts}
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if value is not None)
    return frame(FrameType.HELLO, 0, struct.pack("<IHH", magic, version, 0) + text.encode())


class BrokenRuleError(Exception):
    """The host broke a rule."""


class Job:
    """One command. The methods may be called from any thread."""

    def __init__(self, agent: FakeAgent, number: int, payload: bytes) -> None:
        self._agent = agent
        self.number = number
        self.flags, self.credit, self.timeout, self.grace, self.rows, self.columns, argc, envc = _EXEC.unpack_from(
            payload
        )
        strings = payload[_EXEC.size :].split(b"\0")
        if len(strings) != argc + envc + 2 or strings[-1] or not argc:
            raise BrokenRuleError("an EXEC whose strings do not add up")
        text = [string.decode("utf-8", "surrogateescape") for string in strings]
        self.cwd, self.argv = text[0], text[1 : 1 + argc]
        self.env = dict(setting.split("=", 1) for setting in text[1 + argc : -1])
        self.input = bytearray()
        self.granting = True
        self.input_outstanding = 0  # what the host has sent and was not granted again
        self.input_ended = not self.flags & _STDIN
        self.kills: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        self.pending: deque[tuple[int, bytes]] = deque()
        self.last: bytes | None = None  # the EXIT, once the output has left
        self.ended = threading.Event()
        self.killed = threading.Event()

    def write(self, data: bytes, stream: int = 1) -> None:
        """Output, as fast as the host grants."""
        with self._agent.lock:
            self.pending.append((stream, data))
            self._flush()

    def exit(
        self, code: int = 0, *, signal: int = 0, reason: int = 0, flags: int = 0, pids: tuple[int, ...] = ()
    ) -> None:
        """The end, after what was written."""
        with self._agent.lock:
            how, value = (1, signal) if signal else (0, code)
            head = struct.pack("<BBBBIQQQH", how, reason, flags, 0, value, 5000, 2_500_000, 4096, len(pids))
            self._finish(frame(FrameType.EXIT, self.number, head + struct.pack(f"<{len(pids)}I", *pids)))

    def refuse(self, code: int, errno: int, text: str) -> None:
        """ERROR instead of running it."""
        with self._agent.lock:
            self._finish(frame(FrameType.ERROR, self.number, struct.pack("<HH", code, errno) + text.encode()))

    def grant(self, size: int) -> None:
        """Credit for input."""
        with self._agent.lock:
            if size and not self.ended.is_set():
                self.input_outstanding -= size
                self._agent.send(frame(FrameType.WINDOW, self.number, struct.pack("<I", size)))

    def _finish(self, last: bytes) -> None:
        if self.last is None:
            self.last = last
            self._flush()

    def _flush(self) -> None:
        while self.pending and self.credit and not self.ended.is_set():
            stream, data = self.pending.popleft()
            size = min(len(data), self.credit, MAX_PAYLOAD)
            self.credit -= size
            if size < len(data):
                self.pending.appendleft((stream, data[size:]))
            self._agent.send(frame(FrameType.DATA, self.number, data[:size], stream))
        if not self.pending and self.last is not None and not self.ended.is_set():
            self.ended.set()
            del self._agent.open[self.number]
            self._agent.send(self.last)

    def take(self, received: Frame) -> None:
        """A frame of the host's for this command."""
        kind, payload = received.kind, received.payload
        if kind is FrameType.DATA:
            self.input_outstanding += len(payload)
            if self.input_outstanding > INPUT_WINDOW:
                raise BrokenRuleError("more input than was granted")
            if not self.input_ended:
                self.input += payload
                PROGRAMS.get(self.argv[0], Program).data(self, payload)
        elif kind is FrameType.EOF:
            if not self.input_ended:
                self.input_ended = True
                PROGRAMS.get(self.argv[0], Program).end_of_input(self)
        elif kind is FrameType.WINDOW:
            self.credit += struct.unpack("<I", payload)[0]
            if self.credit > 2**31 - 1:
                raise BrokenRuleError("a window above 2^31-1")
            self._flush()
        elif kind is FrameType.KILL:
            self.kills.append(struct.unpack("<I", payload)[0])
            PROGRAMS.get(self.argv[0], Program).kill(self)
            self.killed.set()
        elif kind is FrameType.RESIZE:
            self.sizes.append(struct.unpack("<HH", payload))


class Program:
    """What a command does. `scripted` is this: it takes input, and dies when it is killed."""

    @staticmethod
    def start(job: Job) -> None:
        """It was asked for."""

    @staticmethod
    def data(job: Job, data: bytes) -> None:
        """Input came: read."""
        if job.granting:
            job.grant(len(data))

    @staticmethod
    def end_of_input(job: Job) -> None:
        """It reads end of file."""

    @staticmethod
    def kill(job: Job) -> None:
        """KILL came."""
        job.exit(signal=9, reason=2)


class Immortal(Program):
    """Frozen: nothing ends it."""

    @staticmethod
    def kill(job: Job) -> None:
        """Nothing."""


class Echo(Program):
    """Its arguments to stdout."""

    @staticmethod
    def start(job: Job) -> None:
        """Write and exit."""
        if job.argv[1:]:
            job.write(" ".join(job.argv[1:]).encode("utf-8", "surrogateescape"))
        job.exit()


class Flood(Program):
    """`flood STREAM SIZE CHUNK`: so many bytes."""

    @staticmethod
    def start(job: Job) -> None:
        """All of it is pending at once; credit lets it out."""
        stream, size, chunk = (int(arg) for arg in job.argv[1:])
        for at in range(0, size, chunk):
            job.write(b"x" * min(chunk, size - at), stream)
        job.exit()


class Count(Program):
    """Reads all its input and writes how much it was."""

    @staticmethod
    def start(job: Job) -> None:
        """Perhaps there is none."""
        if job.input_ended:
            Count.end_of_input(job)

    @staticmethod
    def end_of_input(job: Job) -> None:
        """The count."""
        job.write(str(len(job.input)).encode())
        job.exit()


class Hello(Program):
    """Writes a line and sleeps."""

    @staticmethod
    def start(job: Job) -> None:
        """The line."""
        job.write(b"hello\n")


class Deaf(Program):
    """Never reads its input; ends when the input does."""

    @staticmethod
    def data(job: Job, data: bytes) -> None:
        """No."""


PROGRAMS: Mapping[str, type[Program]] = {
    "true": Echo,
    "echo": Echo,
    "flood": Flood,
    "count": Count,
    "hello": Hello,
    "deaf": Deaf,
    "immortal": Immortal,
}


class FakeAgent:
    """See the module. `host` is the other end of its socket. Close it: that waits for its thread."""

    def __init__(self, greeting: bytes | None = None) -> None:
        self.host, self._socket = socket.socketpair()
        self.lock = threading.RLock()  # of everything below, and of sending
        self.frames: list[Frame] = []
        self.jobs: dict[int, Job] = {}
        self.open: dict[int, Job] = {}
        self.tunnels: dict[int, Frame] = {}  # what opened them
        self.broken: str | None = None
        self._new: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.arrived: Callable[[Frame], None] = lambda frame: None
        if greeting != b"":
            self.send(hello() if greeting is None else greeting)
        # Reading never waits for writing (PROTOCOL.md, section 3.3).
        self._threads = [
            threading.Thread(target=target, name="fake-agent", daemon=True) for target in (self._serve, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, data: bytes) -> None:
        """Any bytes at all, to the host."""
        self._out.put(data)

    def job(self, timeout: float = 10.0) -> Job:
        """The next command that was started and not asked for yet."""
        return self._new.get(timeout=timeout)

    def hang_up(self) -> None:
        """End the stream, as a container that dies does."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the stream and the thread."""
        self.hang_up()
        self._out.put(b"")
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self._socket.close()

    def sent(self, kind: FrameType) -> list[Frame]:
        """The host's frames of one type."""
        with self.lock:
            return [frame for frame in self.frames if frame.kind is kind]

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the host may be gone
            while data := self._out.get():
                self._socket.sendall(data)

    def _serve(self) -> None:
        data = bytearray()
        try:
            while chunk := self._receive():
                data += chunk
                while len(data) >= HEADER.size:
                    length, channel, kind, flags, reserved = HEADER.unpack_from(data)
                    if len(data) < HEADER.size + length:
                        break
                    received = Frame(self._kind(kind), channel, flags, bytes(data[HEADER.size : HEADER.size + length]))
                    del data[: HEADER.size + length]
                    with self.lock:
                        self.frames.append(received)
                        if reserved:
                            raise BrokenRuleError("reserved bits are set")
                        self._act(received)
                    self.arrived(received)
        except BrokenRuleError as broken:
            self.broken = str(broken)
            self.hang_up()
        # A stream may end within a frame: the sender may have been interrupted for good by the end itself.

    def _receive(self) -> bytes:
        with contextlib.suppress(OSError):
            return self._socket.recv(1 << 20)
        return b""

    def _kind(self, kind: int) -> FrameType:
        host = {"EXEC", "DATA", "EOF", "WINDOW", "KILL", "RESIZE", "PING", "CONFIGURE", "CONNECT", "LISTEN"}
        host |= {"TAKEN", *(kind.name for kind in REQUESTS)}
        if kind not in FrameType._value2member_map_ or FrameType(kind).name not in host:
            raise BrokenRuleError(f"a frame of type {kind:#x}")
        return FrameType(kind)

    def _is_no_command_s(self, received: Frame) -> bool:
        kind, channel = received.kind, received.channel
        if kind is FrameType.TAKEN and not self.tunnels[channel].payload[5]:
            raise BrokenRuleError("TAKEN for what was not lent")
        return channel in self.tunnels or channel >= 0x8000_0000 or (kind is FrameType.PING and channel == 0)

    def _act(self, received: Frame) -> None:
        kind, channel, length = received.kind, received.channel, len(received.payload)
        if kind in (FrameType.CONNECT, FrameType.LISTEN, *REQUESTS):
            if not 0 < channel <= 0x7FFF_FFFF or channel <= max((*self.jobs, *self.tunnels), default=0):
                raise BrokenRuleError(f"{kind.name} on channel {channel}")
            self.tunnels[channel] = received
            return
        if kind is FrameType.EXEC:
            if length > 4 << 20 or not 0 < channel <= 0x7FFF_FFFF or channel <= max(self.jobs, default=0):
                raise BrokenRuleError(f"EXEC on channel {channel} with {length} bytes")
            job = self.jobs[channel] = self.open[channel] = Job(self, channel, received.payload)
            PROGRAMS.get(job.argv[0], Program).start(job)
            self._new.put(job)
            return
        sizes = {FrameType.EOF: 0, FrameType.WINDOW: 4, FrameType.KILL: 4, FrameType.RESIZE: 4, FrameType.TAKEN: 0}
        if length != sizes.get(kind, length) or length > MAX_PAYLOAD or received.flags:
            raise BrokenRuleError(f"a malformed {kind.name}")
        if self._is_no_command_s(received):
            return
        if channel not in self.jobs:
            raise BrokenRuleError(f"{kind.name} for channel {channel}, which was never opened")
        if channel in self.open:  # else it crossed with the EXIT
            self.open[channel].take(received)
