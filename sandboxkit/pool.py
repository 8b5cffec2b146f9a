"""Warm sessions: made ahead by one thread in the background, handed out fresh, replaced when they die or grow old.

The thread is the pool's only one. It makes sessions, one after the other, looks after the idle ones and ends them; of
the caller's code it runs `health_check` and the sandbox's hooks. `map` runs the caller's function on threads that live
as long as the call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

import attrs
from typing_extensions import Self

from . import _validate as check
from .abort import POLL, Abort, AbortSignal, checked_abort
from .config import checked
from .errors import EngineError, SandboxError, SessionBusyError, SessionDestroyedError
from .sandbox import Sandbox
from .session import Session, SessionState

__all__ = ["HealthCheck", "Pool"]

T = TypeVar("T")
R = TypeVar("R")
HealthCheck = Callable[[Session], object]

_LOOK = 1.0
"""Seconds between two looks at the idle sessions."""
_CHECK = 30.0
"""Seconds between two calls of `health_check` for the same idle session."""
_UNHEALTHY = 3
"""New sessions in a row that `health_check` may refuse before that is an error."""
_EXIT = 10.0
"""Seconds that the end of the interpreter waits for the pool's."""


class Pool:
    """Sessions of one Sandbox, ready before they are asked for. Made, it begins to fill; a context manager.

    - `size`: idle sessions to have ready. `max`: of all that live at once, idle, handed out or being made; None: no
      bound.
    - `max_age`: seconds after which an idle one is replaced.
    - `health_check`: called in the background with each new session, and with idle ones twice a minute; one for which
      it returns False or raises is replaced. What it does in the session stays done: it may also warm it up.
    - `env`, `labels`: of every session, as in `create_session`.

    Each session is handed out once and destroyed afterwards. Every method may be called from any thread. A forked
    child's pool begins empty, with its own thread; its parent's sessions stay its parent's. At the end of the
    interpreter, and when the pool is collected, the idle sessions go.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        size: int = 2,
        *,
        max: int | None = None,  # noqa: A002 - the plain word for it
        max_age: float | None = None,
        health_check: HealthCheck | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        checked("sandbox", sandbox, Sandbox, "a Sandbox")
        check.integer("size", size, minimum=1, maximum=1000)
        check.integer("max", max, minimum=size, optional=True)
        check.number("max_age", max_age, optional=True)
        if health_check is not None and not callable(health_check):
            check.fail("health_check", health_check, "a callable that takes a Session, or None")
        checked_env, checked_labels = check.environment("env", env), check.labels(labels)
        self._recipe = _Recipe(
            lambda: sandbox.create_session(env=checked_env, labels=checked_labels), size, max, max_age, health_check
        )
        self._size = size
        self._state = self._begin()

    @property
    def idle(self) -> int:
        """How many sessions are ready at this moment."""
        return len(self._current().idle)

    def acquire(self, *, timeout: float | None = None, abort: Abort | None = None) -> AbstractContextManager[Session]:
        """`with pool.acquire() as session:` a session that nobody has used; leaving the block destroys it.

        Waits for one where none is ready: at most `timeout` seconds, then SessionBusyError; the same when `abort` is
        set. Raises what the background failed with when it tried to make one for this call, and SessionDestroyedError
        after `close`.
        """
        check.number("timeout", timeout, minimum=0, exclusive=False, optional=True)
        checked_abort("abort", abort)
        return self._lease(timeout, abort)

    def wait_warm(self, timeout: float | None = None) -> None:
        """Until `size` sessions are ready; SessionBusyError after `timeout` s; raises what making one failed with."""
        check.number("timeout", timeout, minimum=0, exclusive=False, optional=True)
        self._current().wait_warm(timeout)

    def map(
        self, function: Callable[[Session, T], R], items: Iterable[T], *, concurrency: int | None = None
    ) -> list[R]:
        """`function(session, item)` for each item, each in a session of its own; the results in the items' order.

        `concurrency` at once (default: the pool's size), on threads that end before this returns; with 1 on the calling
        thread. After the first exception nothing further begins, what runs is waited for, and it is raised; Ctrl-C
        ends what runs by destroying its sessions.
        """
        if not callable(function):
            check.fail("function", function, "a callable that takes a Session and an item")
        check.integer("concurrency", concurrency, minimum=1, maximum=1000, optional=True)
        return _Mapping(self, function).run(list(items), concurrency or self._size)

    def close(self) -> None:
        """Destroy the idle sessions, end the thread. Sessions that are handed out stay their holders'. Idempotent."""
        self._current().close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._current()
        return f"<Pool of {self._size}, {len(state.idle)} idle{', closed' if state.closed else ''}>"

    @contextlib.contextmanager
    def _lease(self, timeout: float | None, abort: Abort | None) -> Iterator[Session]:
        state = self._current()
        taken: list[Session] = []
        try:
            taken.extend(map(state.take, (timeout,), (abort,)))  # Ctrl-C can't come before it is known here
            yield taken[0]
        finally:
            if taken and os.getpid() == state.pid:  # a forked child leaves the block: the session is its parent's
                try:
                    taken[0].destroy()
                finally:
                    state.gave_back(taken[0])

    def _current(self) -> _State:
        if self._state.pid != os.getpid():
            # Its lock may have been held at the fork, its sessions and thread are the parent's.
            closed = self._state.closed
            self._state = self._begin()
            if closed:
                self._state.close(None)
        return self._state

    def _begin(self) -> _State:
        state = _State(self._recipe)
        # The thread knows the state alone, so that the pool can be collected. Also called at the interpreter's end.
        weakref.finalize(self, state.abandon)
        threading.Thread(target=state.run, name="sandboxkit-pool", daemon=True).start()
        return state


@attrs.frozen
class _Recipe:
    make: Callable[[], Session]
    size: int
    max: int | None
    max_age: float | None
    health_check: HealthCheck | None


@attrs.define(eq=False)
class _Warm:
    session: Session
    made: float
    checked: float


class _State:
    """What the pool and its thread share in one process.

    `changed` is on a lock that its holder may take again: `abandon` may run as a finalizer amid the thread's own code.
    """

    def __init__(self, recipe: _Recipe) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.idle: deque[_Warm] = deque()
        self._recipe = recipe
        self._changed = threading.Condition(threading.RLock())
        # Besides the idle ones. What is handed out is held weakly: Ctrl-C between the pool and the caller's block
        # leaves a session that nobody has, and it ends when it is collected.
        self._handed_out: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lost: list[_Warm] = []  # ended by themselves: the thread removes what is left of them
        self._apart = 0  # being made, looked at or ended by the thread
        self._waiting = 0
        self._asked = 0  # how often somebody began to wait, and how often when the last session was begun
        self._tried_for = 0
        self._failures = 0
        self._error: BaseException | None = None
        self._retry_at = 0.0
        self._unhealthy = 0
        self._ended = threading.Event()

    # For callers.

    def take(self, timeout: float | None, abort: Abort | None) -> Session:
        end = None if timeout is None else time.monotonic() + timeout
        unsubscribe = abort.add_callback(self._wake) if isinstance(abort, AbortSignal) else None
        try:
            with self._changed:
                failures = self._failures
                self._waiting += 1
                self._asked += 1
                try:
                    while True:
                        _raise_if_aborted(abort)
                        found = self._pop()
                        if found is not None:
                            return found
                        self._raise_if_closed()
                        self._raise_failure(failures)
                        _raise_if_over(end, timeout)
                        self._changed.notify_all()
                        self._changed.wait(_pause(end, abort))
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()  # the thread: there is a place to fill
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def gave_back(self, session: Session) -> None:
        with self._changed:
            self._handed_out.discard(session)
            self._changed.notify_all()

    def wait_warm(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            failures = self._failures
            self._asked += 1
            self._changed.notify_all()
            while True:  # CPython 3.12 runs a signal handler at the jump of `while condition:`, outside the `with`
                if len(self.idle) >= self._recipe.size:
                    return
                self._raise_if_closed()
                self._raise_failure(failures)
                _raise_if_over(end, timeout)
                self._changed.wait(_pause(end, None))

    def close(self, patience: float | None) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if threading.current_thread().name != "sandboxkit-pool":
            self._ended.wait(patience)

    def abandon(self) -> None:
        """For a finalizer, and for the interpreter's end: only there does it wait."""
        if os.getpid() == self.pid and not self._ended.is_set():
            with self._changed:
                self.closed = True
                self._changed.notify_all()
            if not threading.main_thread().is_alive():
                self._ended.wait(_EXIT)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _pop(self) -> Session | None:
        while self.idle and not self.closed:
            # Noted, then taken, so that it is counted at every moment.
            warm = self.idle[0]
            if warm.session.state is SessionState.RUNNING:
                self._handed_out.add(warm.session)
                self.idle.popleft()
                return warm.session
            self._lost.append(warm)
            self.idle.popleft()
        return None

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise SessionDestroyedError("The pool was closed. Make a new one.")

    def _raise_failure(self, seen: int) -> None:
        if self._failures > seen and self._error is not None:
            raise self._error.with_traceback(None)

    # The thread.

    def run(self) -> None:
        """Fill, look after, and in the end empty the pool."""
        try:
            while not self.closed:
                self._look_after()
                if self._wants_one():
                    self._make()
                else:
                    with self._changed:
                        if not self.closed and not self._has_work():
                            self._changed.wait(_LOOK)
        finally:
            with self._changed:
                self.closed = True
                left = [*self.idle, *self._lost]
                self.idle.clear()
                self._apart += len(left)
            self._discard(left)
            self._ended.set()
            self._wake()

    def _has_work(self) -> bool:
        recipe = self._recipe
        missing = recipe.size + self._waiting - len(self.idle)
        has_room = recipe.max is None or self._live() < recipe.max
        return bool(self._lost) or (missing > 0 and has_room and not self._resting())

    def _live(self) -> int:
        known = {id(warm.session) for warm in (*self.idle, *self._lost)} | {id(session) for session in self._handed_out}
        return self._apart + len(known)

    def _resting(self) -> bool:
        # After a failure only for those who came since, as the others are told of it, or when a while has passed.
        return self._error is not None and self._asked == self._tried_for and time.monotonic() < self._retry_at

    def _wants_one(self) -> bool:
        with self._changed:
            if self.closed or self._lost or not self._has_work():
                return False
            self._apart += 1
            self._tried_for = self._asked
            return True

    def _make(self) -> None:
        session = None
        try:
            session = self._recipe.make()
            if not self._is_healthy(session):
                self._unhealthy += 1
                raise EngineError(
                    f"health_check did not accept {self._unhealthy} new sessions of the pool in a row.", retryable=True
                )
            self._unhealthy = 0
        except BaseException as error:  # noqa: BLE001 - told to those who wait
            if session is not None:
                with contextlib.suppress(SandboxError):
                    session.destroy()
            self._note_failure(error)
            return
        now = time.monotonic()
        with self._changed:
            self._error = None
            self._apart -= 1
            self.idle.append(_Warm(session, now, now))
            self._changed.notify_all()

    def _note_failure(self, error: BaseException) -> None:
        with self._changed:
            self._apart -= 1
            if 0 < self._unhealthy < _UNHEALTHY:
                return  # another is made at once
            self._failures += 1
            self._error = error
            self._retry_at = time.monotonic() + min(2.0 ** min(self._failures, 5), 30.0)
            self._changed.notify_all()

    def _look_after(self) -> None:
        now = time.monotonic()
        recipe = self._recipe
        with self._changed:
            bad = [warm for warm in self.idle if self._is_bad(warm, now)]
            due = (
                []
                if recipe.health_check is None
                else [w for w in self.idle if w not in bad and now - w.checked > _CHECK]
            )
            # Out of reach while it is looked at: it may not be handed out in the middle of a check.
            for warm in (*bad, *due):
                self.idle.remove(warm)
            bad += self._lost
            self._lost.clear()
            self._apart += len(bad) + len(due)
        for warm in due:
            warm.checked = now
            if self._is_healthy(warm.session):
                with self._changed:
                    self._apart -= 1
                    self.idle.append(warm)
                    self._changed.notify_all()
            else:
                bad.append(warm)
        self._discard(bad)

    def _is_bad(self, warm: _Warm, now: float) -> bool:
        too_old = self._recipe.max_age is not None and now - warm.made > self._recipe.max_age
        return too_old or warm.session.state is not SessionState.RUNNING

    def _is_healthy(self, session: Session) -> bool:
        if self._recipe.health_check is None:
            return True
        try:
            return self._recipe.health_check(session) is not False
        except Exception:  # noqa: BLE001 - whatever it is, the session is not to be handed out
            return False

    def _discard(self, warms: list[_Warm]) -> None:
        for warm in warms:
            with contextlib.suppress(SandboxError):
                warm.session.destroy()
            with self._changed:
                self._apart -= 1
                self._changed.notify_all()


class _Mapping(Generic[T, R]):
    """One call of `Pool.map`."""

    def __init__(self, pool: Pool, function: Callable[[Session, T], R]) -> None:
        self._pool = pool
        self._function = function
        self._abort = AbortSignal()
        self._sessions: set[Session] = set()

    def run(self, items: list[T], concurrency: int) -> list[R]:
        if concurrency == 1 or len(items) < 2:
            return [self._one(item) for item in items]
        with ThreadPoolExecutor(min(concurrency, len(items)), thread_name_prefix="sandboxkit-map") as executor:
            futures = [executor.submit(self._one, item) for item in items]
            try:
                return self._collect(futures)
            except BaseException as error:
                self._abort.set("another item failed")
                for future in futures:
                    future.cancel()
                if not isinstance(error, Exception):
                    for session in list(self._sessions):
                        session.destroy()
                raise

    def _collect(self, futures: list[Future[R]]) -> list[R]:
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
        return [future.result() for future in futures]

    def _one(self, item: T) -> R:
        with self._pool.acquire(abort=self._abort) as session:
            self._sessions.add(session)
            try:
                return self._function(session, item)
            finally:
                self._sessions.discard(session)


def _pause(end: float | None, abort: Abort | None) -> float | None:
    pauses = [] if end is None else [max(end - time.monotonic(), 0.0)]
    if abort is not None:
        look = abort.next_look() if isinstance(abort, AbortSignal) else POLL
        if look is not None:
            pauses.append(look)
    return min(pauses, default=None)


def _raise_if_aborted(abort: Abort | None) -> None:
    if abort is not None and abort.is_set():
        raise SessionBusyError("Waiting for a session of the pool was aborted.")


def _raise_if_over(end: float | None, timeout: float | None) -> None:
    if end is not None and time.monotonic() >= end:
        raise SessionBusyError(
            f"The pool had no session within {timeout:g} s. Raise its size or max, or wait longer: making one "
            "takes as long as create_session()."
        )
