"""The relay: one thread a session that moves bytes between sockets of the host and tunnels into the sandbox.

For code that builds on it, such as a proxy for connections that the sandbox makes, this is the seam:

- `Relay.hold(owner)` has the thread run and tells the `Owner` of the session's end; `Relay.release(owner)` undoes it.
- `connection.tunnels.listen(port, ListenerSink)` listens inside; `Conduit(relay, tunnel, handler)` takes a connection
  that came there. Its `handler` (`ConduitHandler`) is called with what the sandbox sends, and `send`, `send_eof`,
  `reset`, `pause` and `resume` answer. `_pump.Pump` couples a tunnel with a socket instead, at full speed.
- `Relay.watch(sock, ready)` waits for any non-blocking socket, in the directions that its user wants at the moment (a
  TLS handshake that wants to write sets `write`); `Relay.call_later` is a timer.
- `Relay.post` is the one way in from other threads.

Everything is called in the relay's thread, one call at a time, but what says otherwise. Nothing called there may
block: no name is resolved and no lock is held for long. What a callback raises goes to `threading.excepthook`; the
others go on.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ._frames import HEADER, MAX_PAYLOAD
from ._shortcut import Offer
from ._tunnels import End, Tunnel, Tunnels
from .errors import SandboxError

__all__ = ["LINGER_AT_ONCE", "Conduit", "ConduitHandler", "Owner", "Relay", "Timer", "Watch", "close_socket"]

LINGER_AT_ONCE: Final = b"\1\0\0\0\0\0\0\0"  # struct linger {1, 0}: closing is a reset
_NO_LINGER: Final = bytes(8)
_ALWAYS: Final = select.EPOLLERR | select.EPOLLHUP

_PIECES: Final = 4  # frames that are read and sent at once
_SCARCE: Final = 0.1  # seconds until a thread without descriptors tries to get them again

_everyone: weakref.WeakSet[Relay] = weakref.WeakSet()


class Owner(Protocol):
    """Whoever has sockets or listeners in a relay."""

    def end(self, error: SandboxError | None) -> None:
        """Close everything, without waiting: the session has ended with `error`. May be called twice."""


class ConduitHandler(Protocol):
    """What a connection from inside the sandbox leads to."""

    def received(self, data: bytes) -> None:
        """The next bytes; not called while paused. What it does not want to hold it `pause`s."""

    def received_eof(self) -> None:
        """No more will be received; it can be sent to still."""

    def writable(self) -> None:
        """`send` took less than it was given, and takes more now."""

    def closed(self, end: End) -> None:
        """The last call, whoever ended it."""


class Watch:
    """A socket that is waited for. `ready(readable, writable)` is called; an error or hang-up, `failed`, is both."""

    __slots__ = ("__weakref__", "_interest", "_ready", "_relay", "failed", "sock")

    def __init__(self, relay: Relay, sock: socket.socket, ready: Callable[[bool, bool], None]) -> None:
        self._relay = relay
        self._ready = ready
        self._interest: int | None = None  # as the kernel has it; 0 is errors and hang-ups alone
        self.sock = sock
        self.failed = False  # an error or hang-up has been seen: kept from then on, as the kernel does

    def want(self, *, read: bool = False, write: bool = False, errors: bool = True) -> None:
        """From now on wait for these. With neither, for errors and hang-ups, unless `errors` is False: for nothing."""
        interest: int | None = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        if not interest and not errors:
            interest = None
        if interest != self._interest:
            self._relay._set_interest(self, self._interest, interest)
            self._interest = interest

    def close(self) -> None:
        """Wait for it no more; the socket stays open. May be called twice."""
        self.want(errors=False)

    def happened(self, events: int) -> None:
        """The relay: epoll has reported it."""
        if self._interest is None:
            return  # closed earlier in the same round
        failed = bool(events & _ALWAYS)
        self.failed = self.failed or failed
        self._ready(bool(events & select.EPOLLIN) or failed, bool(events & select.EPOLLOUT) or failed)


class Timer:
    """A call that is due later."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """It is not called. May be called twice, and after it was."""
        self.call = None


class Relay:
    """See the module. Made with its session; its thread runs while someone holds it, until the session ends."""

    def __init__(self, tunnels: Tunnels) -> None:
        self.tunnels = tunnels
        self.buffer = memoryview(b"")  # for Tunnel.send_framed, within one callback
        self.pieces: list[memoryview] = []  # its payloads
        self.ended: SandboxError | None = None
        self._pid = os.getpid()
        self._posted: deque[Callable[[], object]] = deque()
        self._owners: dict[Owner, None] = {}
        self._watches: dict[int, Watch] = {}
        self._made: weakref.WeakSet[Watch] = weakref.WeakSet()  # also those that wait for nothing at the moment
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = threading.Lock()  # of what the thread does from its start to its end
        self._thread: threading.Thread | None = None
        self._epoll: select.epoll | None = None
        self._wake: socket.socket | None = None
        self._woken: socket.socket | None = None
        tunnels.companion = self

    # Any thread.

    def hold(self, owner: Owner) -> None:
        """Run the thread until `release`; `owner` is told of the session's end. Raises why not when that has come."""
        self.tunnels.raise_if_unusable()
        self._owners[owner] = None
        try:
            self._rouse()
        except BaseException:  # no thread can be made: then nobody would ever end it
            self._owners.pop(owner, None)
            raise

    def release(self, owner: Owner) -> None:
        """Undo `hold`; the thread ends when nobody holds it and no socket is watched. May be called twice."""
        self._owners.pop(owner, None)
        self._rouse()

    def owns(self, owner: Owner) -> bool:
        """Whether it was held by that one and not released."""
        return owner in self._owners

    def post(self, call: Callable[[], object]) -> None:
        """Call it in the relay's thread, soon; when nobody holds it, it may be dropped. Never blocks."""
        self._posted.append(call)
        self._rouse()

    def session_ended(self, error: SandboxError) -> None:
        """See Companion."""
        if self.ended is None:
            self.ended = error
        self._rouse()

    def join(self, timeout: float) -> None:
        """See Companion."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and os.getpid() == self._pid:
            thread.join(timeout)

    @property
    def here(self) -> bool:
        """Whether this is the relay's thread."""
        return threading.current_thread() is self._thread

    def _rouse(self) -> None:
        wake = self._wake
        if wake is not None:
            with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
                wake.send(b"\0")
        elif self._owners:
            # One too many is harmless, see `_run`, so that an interrupt may come anywhere in here.
            threading.Thread(target=self._run, name="sandboxkit-relay", daemon=True).start()

    # The relay's thread.

    def watch(self, sock: socket.socket, ready: Callable[[bool, bool], None]) -> Watch:
        """Wait for a non-blocking socket, as `Watch.want` will say. Closed before the socket is."""
        watch = Watch(self, sock, ready)
        self._made.add(watch)
        return watch

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call it once, after that time."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def _set_interest(self, watch: Watch, old: int | None, new: int | None) -> None:
        epoll, fd = self._epoll, watch.sock.fileno()
        if epoll is None or fd < 0:
            return
        if new is None:
            self._watches.pop(fd, None)
            epoll.unregister(fd)
        elif old is None:
            self._watches[fd] = watch
            epoll.register(fd, new)
        else:
            epoll.modify(fd, new)

    def _open(self) -> None:
        whole = HEADER.size + MAX_PAYLOAD
        self.buffer = memoryview(bytearray(_PIECES * whole))
        self.pieces = [self.buffer[at + HEADER.size : at + whole] for at in range(0, _PIECES * whole, whole)]
        self._epoll = select.epoll()
        wake, self._woken = socket.socketpair()
        wake.setblocking(False)
        self._woken.setblocking(False)
        self._epoll.register(self._woken.fileno(), select.EPOLLIN)
        _everyone.add(self)
        self._wake = wake  # from here on it can be roused; what was wanted before is seen at the first turn

    def _run(self) -> None:
        # One at a time. Who is turned away has an owner in the table, and the one that runs looks there once more after
        # its end: so nobody waits for a thread that is not there.
        while self._owners and self._running.acquire(blocking=False):
            try:
                self._thread = threading.current_thread()
                self._serve()
            finally:
                self._close()
                self._running.release()

    def _open_soon(self) -> bool:
        # For as long as the process has no descriptor left it is tried again; False when there is no need any more.
        while self._owners and self.ended is None:
            try:
                self._open()
                return True
            except OSError:
                self._close()
                time.sleep(_SCARCE)
        return False

    def _serve(self) -> None:
        is_open = self._open_soon()
        while is_open and self.ended is None:
            if not (self._owners or self._watches or self._posted or self._timers):
                return
            self._turn()
        if self.ended is not None:
            self._end()

    def _turn(self) -> None:
        assert self._epoll is not None
        assert self._woken is not None
        # Looked up before any is called: a new socket may get the number of one that was closed in the same round.
        ready = [(self._watches.get(fd), events) for fd, events in self._epoll.poll(self._pause())]
        for watch, events in ready:
            if watch is not None:
                self._guard(watch.happened, events)
            else:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
        self._run_posted()
        while self._timers and self._timers[0][0] <= time.monotonic():
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._guard(call)

    def _pause(self) -> float:
        if self._posted:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(self._timers[0][0] - time.monotonic(), 0.0) if self._timers else -1.0

    def _run_posted(self) -> None:
        for _ in range(len(self._posted)):  # no more: what they post is for the next turn, behind the sockets
            self._guard(self._posted.popleft())

    def _guard(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except Exception as bug:  # noqa: BLE001 - one connection's trouble is not the others'
            threading.excepthook(
                threading.ExceptHookArgs((type(bug), bug, bug.__traceback__, threading.current_thread()))
            )

    def _end(self) -> None:
        # The session has ended. Every owner first, so that nothing new begins; then what the end of each tunnel posted.
        for owner in tuple(self._owners):
            self._guard(owner.end, self.ended)
        while self._posted:
            self._run_posted()
        for watch in tuple(self._watches.values()):
            close_socket(watch.sock, abruptly=True)
        self._watches.clear()
        self._owners.clear()
        self._timers.clear()

    def _close(self) -> None:
        epoll, wake, woken = self._epoll, self._wake, self._woken
        self._epoll = self._wake = self._woken = None
        for end in (epoll, wake, woken):
            if end is not None:
                end.close()

    def forget(self) -> None:
        """In a forked child: let go of the copies of all sockets, which would keep the parent's connections open."""
        for watch in tuple(self._made):
            watch.sock.close()
        self._watches.clear()
        self._owners.clear()
        self._close()


def _forget_all() -> None:
    for relay in tuple(_everyone):
        relay.forget()


os.register_at_fork(after_in_child=_forget_all)


def close_socket(sock: socket.socket, *, abruptly: bool) -> None:
    """Close it; `abruptly`: a TCP peer sees a reset, not an end that looks like one in order."""
    with contextlib.suppress(OSError):  # whoever else has the socket may have set it: then closing it would wait
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_AT_ONCE if abruptly else _NO_LINGER)
    with contextlib.suppress(OSError):
        sock.close()


class Conduit:
    """A tunnel whose bytes are for code, not for a socket: see ConduitHandler. It holds a window of bytes at most.

    The relay's thread makes it and calls it.
    """

    def __init__(self, relay: Relay, tunnel: Tunnel, handler: ConduitHandler) -> None:
        """Takes the connection."""
        self._relay = relay
        self._tunnel = tunnel
        self._handler = handler
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._told = False  # a delivery is posted
        self._eof = False
        self._eof_told = False
        self._end: End | None = None
        self._over = False
        self._paused = False
        self._short = False  # send took less than it was given
        tunnel.accept(self)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send to the sandbox as much as it takes now, and return how much; when less, `writable` comes."""
        view, sent, before, looked = memoryview(data), 0, self._short, False
        while sent < len(view) and not self._over:
            size = self._tunnel.send(view[sent:])
            if not size and looked:
                return sent
            if not size:  # look once more: credit that comes from here on is told
                self._short = looked = True
            sent += size
        self._short = before
        return sent

    def send_eof(self) -> None:
        """The sandbox's side reads end of file behind what was sent. May be called twice."""
        self._tunnel.send_eof()

    def reset(self) -> None:
        """End it at once. May be called twice; only `closed` comes after it."""
        self._over = True
        self._tunnel.reset()

    def pause(self) -> None:
        """No `received` until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """On with it."""
        if self._paused:
            self._paused = False
            self._relay.post(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._told = False
        while not self._paused and not self._over:
            with self._lock:
                data = bytes(self._waiting)
                self._waiting.clear()
            if not data:
                break
            self._tunnel.consumed(len(data))
            self._tell(self._handler.received, data)
        if self._over or isinstance(self._end, SandboxError) or not (self._paused or self._waiting):
            self._deliver_end()

    def _deliver_end(self) -> None:
        if self._eof and not self._eof_told and not self._over and not self._waiting:
            self._eof_told = True
            self._tell(self._handler.received_eof)
        if self._end is not None:
            end, self._end, self._over = self._end, None, True
            self._handler.closed(end)

    def _credited(self) -> None:
        if self._short and not self._over:
            self._short = False
            self._tell(self._handler.writable)

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        # What raises leaves nobody who would end the connection.
        try:
            call(*args)
        except BaseException:
            self.reset()
            raise

    # The reader thread: see TunnelSink.

    def opened(self, offer: Offer | None) -> None:
        pass

    def received(self, chunk: memoryview) -> int:
        with self._lock:
            self._waiting += chunk
        self._came()
        return 0

    def received_eof(self) -> None:
        self._came(eof=True)

    def credited(self) -> None:
        if self._short:
            self._relay.post(self._credited)

    def closed(self, end: End) -> None:
        self._came(end=end)

    def _came(self, *, eof: bool = False, end: End | None = None) -> None:
        with self._lock:
            self._eof = self._eof or eof
            self._end = end or self._end
            told, self._told = self._told, True
        if not told:
            self._relay.post(self._deliver)
