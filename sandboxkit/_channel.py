"""The host's side of the agent protocol: one connection a session, multiplexed into channels (agent/PROTOCOL.md).

Threads: one reader a connection, started here and nowhere else. It decodes frames, hands output to each channel's sink,
gives credit back and wakes whoever waits; it never runs a caller's code. Any thread may send; frames leave whole,
one at a time, also when Ctrl-C interrupts the sender.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ._decoder import Decoder
from ._frames import (
    MAX_CHANNEL,
    Exit,
    FrameType,
    Hello,
    ProtocolError,
    Refusal,
    Stream,
    encode,
    encode_configure,
    encode_exec,
    encode_input,
    printable,
)
from ._lane import Channel, Sink
from ._latch import Latch
from ._process_frames import ProcessRecord
from ._shortcut import Offer, Shortcut, Taker
from ._tunnels import Tunnels
from .backend import ByteStream
from .errors import EngineError, SandboxError, SessionDestroyedError, SessionLostError
from .streams import WatchableStream

__all__ = ["Channel", "Connection", "Sink"]

_LOST = (
    "The session's container is gone: it was stopped or removed, ran out of memory, or its engine ended. "
    "Create a new session."
)
_NOTHING = memoryview(b"")
_LINES = "\n\t"
_ANSWER = 60.0
_PATIENCE = 2.0  # seconds that `close` gives the reader and senders; in vain when a signal handler is on top of one


class Connection:
    """A session's stream to its agent. `start` begins reading; `close` ends it and gives everything back.

    After the stream has ended, for whatever reason, `lost` holds the error, every open channel has finished with it and
    every further call raises it.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._send_stream = stream.send
        self._pid = os.getpid()
        self._lock = threading.Lock()  # one frame at a time: this one, of which so much has left
        self._frame, self._sent = _NOTHING, list[int]()
        self._later: deque[bytes] = deque()
        self._table = threading.Lock()
        self.credit_lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self.tunnels = Tunnels(self)
        self._next = 1
        self._decoder = Decoder(self)
        self._hello: Hello | None = None
        self._hello_changed = Latch()
        self._agent_pid: int | None = None  # while the answer to a SHORTCUT is awaited
        self.answered = Latch()  # an OFFER or PONG came
        self.ended = Latch()  # a channel ended: whoever waits for its turn tries again, and sets it for the next
        self._thread = threading.Thread(target=self._read, name="sandboxkit-reader", daemon=True)
        self._dropped = False
        self.lost: SandboxError | None = None

    def start(self) -> None:
        """Begin reading. Called once."""
        self._thread.start()

    def wait_hello(self, timeout: float) -> Hello:
        """The agent's first frame. EngineError when none came in time, SessionLostError when the stream ended."""
        self._hello_changed.wait(timeout)
        if self._hello is None:
            self.raise_if_unusable()
            raise EngineError(
                f"The agent did not answer within {timeout:g} s of the container's start"
                f"{self._diagnostics()}. The host may be overloaded: try again.",
                retryable=True,
            )
        return self._hello

    def shorten(self, pid: int | None) -> None:
        """Leave the engine's stream for one of the agent's own (§3.4), if that is possible and wanted.

        `pid`: the agent's process on this machine. Called once at most, after `wait_hello`, before the first command.
        """
        hello = self._hello
        if (
            pid is None
            or hello is None
            or hello.facts.get("shortcut") != "1"
            or not isinstance(self._stream, WatchableStream)
            or os.environ.get("SANDBOXKIT_SHORTCUT", "1") == "0"
        ):
            return
        self._agent_pid = pid
        self._ask(encode(FrameType.SHORTCUT, 0))
        self._agent_pid = None  # a PONG that nobody asked for may have come in its place: an OFFER would be too late
        if isinstance(self._stream, Shortcut):
            self._ask(encode(FrameType.PING, 0))  # whose arrival there tells the agent that it was taken

    def _ask(self, frame: bytes) -> None:
        self.send(frame)
        if not self.answered.wait(_ANSWER):
            raise EngineError(
                f"The agent did not answer within {_ANSWER:g} s: the host may be overloaded.", retryable=True
            )
        self.raise_if_unusable()

    def open(self, channel: Channel, request: bytes, early_input: memoryview | None = None, *, limit: int) -> bool:
        """Send an EXEC (§5.1, payload) on a new channel; with `early_input`, its first bytes travel along.

        False, and nothing is sent, when `limit` channels are open: a command counts until its tree is known to be dead.
        """
        self.raise_if_unusable()
        # Numbers must reach the agent rising (§4.1): so the frame leaves under the lock that gave the number.
        with self._table:
            if len(self._channels) >= limit and len(self.open_channels) >= limit:
                return False
            channel.id = self._new_number()
            frame = encode_exec(channel.id, request)
            if early_input is not None:
                size = min(len(early_input), channel.input_credit)
                channel.input_credit -= size
                frame += encode_input(channel.id, early_input[:size])
                if size == len(early_input):
                    frame += encode(FrameType.EOF, channel.id, b"", Stream.STDIN)
            self._send_first(channel, frame)
        if self.lost is not None:
            channel.finish(self.lost)  # the reader may have ended before the channel was in the table
        return True

    def request(self, channel: Channel, kind: FrameType, payload: bytes) -> None:
        """Send what opens a channel that is no command's; it takes nobody's turn."""
        self.raise_if_unusable()
        with self._table:
            channel.id = self._new_number()
            self._send_first(channel, encode(kind, channel.id, payload))
        if self.lost is not None:
            channel.finish(self.lost)

    def _new_number(self) -> int:
        number, self._next = self._next, self._next + 1
        if number > MAX_CHANNEL:
            raise SessionLostError("This session has run 2,147,483,647 commands. Create a new one.")
        return number

    def send_opening(self, opening: Callable[[int], bytes]) -> None:
        """Send the frame that opens the channel of the number it is given; called once it is certain to be used."""
        self.raise_if_unusable()
        with self._table:
            self.send(opening(self._new_number()))

    def _send_first(self, channel: Channel, frame: bytes) -> None:
        self._channels[channel.id] = channel
        try:
            with self._lock:
                self._send_locked(frame, channel.sent)
        except BaseException:
            if not channel.sent:
                self._channels.pop(channel.id, None)
            raise
        finally:
            self._flush_later()

    @property
    def open_channels(self) -> Sequence[Channel]:
        """Those of commands that run, at this moment."""
        return tuple(channel for channel in self._channels.copy().values() if channel.is_command)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Send a CONFIGURE (§3.2); called once at most, before the first command."""
        self.send(encode_configure(settings))

    def send(self, frame: bytes | memoryview) -> None:
        """Send a whole frame. SessionLostError when the stream is broken."""
        self.raise_if_unusable()
        try:
            with self._lock:
                self._send_locked(frame, [])
        finally:
            self._flush_later()

    def send_quietly(self, frame: bytes | memoryview) -> None:
        """`send`, when there is nobody to be told that the session is over."""
        with contextlib.suppress(SandboxError):
            self.send(frame)

    def send_later(self, frame: bytes) -> None:
        """Send without ever blocking on the lock: now if it is free, else when its holder is done."""
        if self.lost is None and os.getpid() == self._pid:
            self._later.append(frame)
            with contextlib.suppress(SandboxError):
                self._flush_later()

    def _flush_later(self) -> None:
        # The holder of the lock looks again after releasing it, so a frame queued at any moment is sent by someone.
        # Ctrl-C may come after any call: so the lock is taken as a frame is sent, and a frame dropped once it has left.
        while self._later:
            held: list[bool] = []
            try:
                held.extend(map(self._lock.acquire, (False,)))
                if True not in held:
                    return
                self._send_queued()  # no loop in here: CPython 3.12 leaves the jump of a `while` out of the `try`
            finally:
                if True in held:
                    self._lock.release()

    def _send_queued(self) -> None:
        while self._later:
            sent: list[int] = []
            try:
                self._send_locked(self._later[0], sent)
            finally:
                if sent:
                    self._later.popleft()

    def _send_locked(self, frame: bytes | memoryview, sent: list[int]) -> None:
        # Python runs signal handlers between bytecodes, so `n = send(x)` can send and then lose n to a
        # KeyboardInterrupt. `extend` and `map` call the socket's C method and store its count with no bytecode between:
        # `sent` is always true. A frame that Ctrl-C cut is completed by whoever sends next: the command's KILL does.
        try:
            if self._sent:
                self._send_rest()
            self._frame, self._sent = memoryview(frame), sent
            self._send_rest()
            self._frame, self._sent = _NOTHING, []
        except OSError as error:  # TimeoutError is one: no byte could go for the stream's whole timeout
            self.fail(_lost_error(f" ({error})"))
        self.raise_if_unusable()

    def _send_rest(self) -> None:
        while sum(self._sent) < len(self._frame):
            self._sent.extend(map(self._send_stream, (self._frame[sum(self._sent) :],)))

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that the session belongs to."""
        return os.getpid() != self._pid

    def raise_if_forked(self) -> None:
        """SessionDestroyedError in a forked child, where no reader runs and any lock may be held for ever."""
        if self.forked:
            raise SessionDestroyedError(
                "This session belongs to the parent of this forked process. Create a session in this process."
            )

    def raise_if_unusable(self) -> None:
        """Raise why no command can run here any more, if so."""
        self.raise_if_forked()
        if self.lost is not None:
            raise copy.copy(self.lost)  # a raised exception collects its thread's traceback: one each

    def fail(self, error: SandboxError) -> None:
        """End the connection: every waiting and every later call raises `error`. The first error stays."""
        if self.lost is None:
            self.lost = error.with_traceback(None)
        self._stream.shutdown()
        self._finish_all()

    def close(self, error: SandboxError) -> None:
        """`fail`, then wait for the reader and give the descriptors back; later calls raise `error` in any case.

        In a forked child it does nothing.
        """
        if self.forked:
            return  # a shutdown here would end the parent's session
        self._dropped = True  # if Ctrl-C comes before this is done, the reader gives the descriptors back
        self.fail(error)
        self.lost = error
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        self.tunnels.join(_PATIENCE)
        if not self._thread.is_alive():
            self._give_back(_PATIENCE)

    def _give_back(self, patience: float) -> None:
        held: list[bool] = []
        try:  # senders leave at once, unless this is a signal handler on top of one
            held.extend(map(self._lock.acquire, (True,), (patience,)))
            self._stream.close()
        finally:
            if True in held:
                self._lock.release()

    def shutdown(self) -> None:
        """End the stream without waiting: for finalizers. The reader gives the descriptors back."""
        if not self.forked:
            self._dropped = True
            self._stream.shutdown()

    def _diagnostics(self) -> str:
        text = self._stream.diagnostics()
        return f"; it said: {printable(text[-1000:], _LINES)}" if text else ""

    # The reader thread.

    def _read(self) -> None:
        feed = self._decoder.feed
        error: SandboxError = _lost_error("")
        try:
            while True:
                try:
                    chunk = self._stream.receive()  # another one, after `offered`
                except TimeoutError:
                    continue
                if not chunk:
                    error = _lost_error(self._diagnostics())
                    break
                feed(chunk)
        except ProtocolError as broken:
            error = SessionLostError(f"The container broke the agent's protocol ({broken}). Create a new session.")
        except SandboxError as failed:
            error = failed
        except OSError as failed:
            error = _lost_error(f" ({failed}){self._diagnostics()}")
        except Exception as bug:  # noqa: BLE001 - a reader that just died would leave every caller waiting
            error = SessionLostError(f"sandboxkit failed to read from the container: {bug!r}. Create a new session.")
        finally:
            self.fail(error)
            if self._dropped:
                self._give_back(_PATIENCE / 2)

    def _finish_all(self) -> None:
        # Finished first, then forgotten: Ctrl-C between the two leaves the rest to the reader, which comes here too.
        assert self.lost is not None
        for number, channel in self._channels.copy().items():
            channel.finish(self.lost)
            self._channels.pop(number, None)
        self.tunnels.finish_all(self.lost)
        self._hello_changed.set()
        self.answered.set()
        self.ended.set()

    def said_hello(self, hello: Hello) -> None:
        """Reader thread: the first frame."""
        self._hello = hello
        self._hello_changed.set()

    def offered(self, offer: Offer) -> None:
        """Reader thread: the agent's answer to SHORTCUT, after which it says nothing on the engine's stream."""
        pid, self._agent_pid = self._agent_pid, None
        engine = self._stream
        if pid is None or not isinstance(engine, WatchableStream):
            raise ProtocolError("an OFFER that nobody asked for")
        with self._lock, contextlib.suppress(OSError):  # no descriptor left, no right: all stays as it was
            self._take(offer, Taker(pid), engine)
        self.answered.set()

    def _take(self, offer: Offer, taker: Taker, engine: WatchableStream) -> None:
        sock = taker.take(offer, socket.AF_UNIX)
        try:
            if sock is None:
                raise OSError("the offered socket could not be had")
            self._stream = Shortcut(sock, engine, taker)
        except OSError:
            taker.close()
            raise
        self._send_stream = self._stream.send

    @property
    def taker(self) -> Taker | None:
        """What takes connections out of the agent (§9.6), where the shortcut was taken and the agent knows of it."""
        lends = self._hello is not None and self._hello.facts.get("lend") == "1"
        return self._stream.taker if lends and isinstance(self._stream, Shortcut) else None

    def channel(self, number: int) -> Channel:
        """Reader thread: the open channel of a frame; ProtocolError when it is not open (§4.1)."""
        found = self._channels.get(number)
        if found is None:
            raise ProtocolError(f"a frame for channel {number}, which is not open")
        return found

    def finished(self, number: int, outcome: Exit | Refusal | tuple[ProcessRecord, ...]) -> None:
        """Reader thread: a channel's last frame."""
        channel = self.channel(number)
        self._channels.pop(number, None)
        channel.finish(outcome)
        self.ended.set()


def _lost_error(detail: str) -> SessionLostError:
    return SessionLostError(_LOST + detail)
