"""Warm sessions."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import ConfigError, ImageNotFoundError, Pool, Session, SessionState
from sandboxkit.abort import AbortSignal
from sandboxkit.errors import ErrorCode, SandboxError, SessionBusyError, SessionDestroyedError

from ._inside import fresh, read, sh
from ._suite import Suite
from ._threads import Background, ForkedChild, interrupts, together
from ._watch import Stopwatch, allowed, thread_names, wait_until


class Pools(Suite):
    """`Pool`."""

    def pool(self, size: int = 1, **options: Any) -> Pool:
        return Pool(self.sandbox(), size, **options)

    def test_a_warm_pool_gives_a_session_at_once(self) -> None:
        """A fiftieth of a cold start or less."""
        with Stopwatch() as cold, self.create():
            pass
        with self.pool() as pool:
            pool.wait_warm(60)
            with Stopwatch() as warm, pool.acquire() as session:
                warm_seconds = time.monotonic()
                assert session.exec("echo", ["x"]).stdout == "x\n"
            assert warm_seconds
            pool.wait_warm(60)
            start = time.monotonic()
            with pool.acquire():
                taken = time.monotonic() - start
        assert taken < cold.seconds / 50 + 0.005
        assert warm.seconds < allowed(5)

    def test_each_session_is_fresh_and_destroyed_afterwards(self) -> None:
        """A fresh, never-used session."""
        path, seen = fresh(), []
        with self.pool() as pool:
            for _ in range(3):
                with pool.acquire(timeout=60) as session:
                    assert read(session, path) == ""
                    sh(session, 'echo used >"$1"', path).check()
                    seen.append(session)
                assert session.state is SessionState.DESTROYED
        assert len({session.id for session in seen}) == 3

    def test_it_refills_in_the_background(self) -> None:
        """And never beyond its size while nobody waits."""
        with self.pool(2) as pool:
            pool.wait_warm(60)
            with pool.acquire():
                wait_until(lambda: pool.idle == 2, "the pool is full again", 60)
            assert pool.idle == 2

    def test_a_dead_session_is_replaced(self) -> None:
        """Replaces dead ones; none is handed out."""
        with self.pool() as pool:
            pool.wait_warm(60)
            (warm,) = pool._state.idle
            (status,) = self.backend.list({"sandboxkit.session": warm.session.id})
            self.backend.remove(status.id)
            wait_until(lambda: warm.session.state is SessionState.LOST, "the loss is noticed")
            with pool.acquire(timeout=60) as session:
                assert session.id != warm.session.id
                assert session.exec("true").ok

    def test_an_old_session_is_replaced(self) -> None:
        """`max_age`: seconds that an idle one is kept."""
        with self.pool(max_age=0.5) as pool:
            pool.wait_warm(60)
            first = pool._state.idle[0].session
            wait_until(lambda: first.state is SessionState.DESTROYED, "it is destroyed", 30)

    def test_a_health_check_warms_up_and_sorts_out(self) -> None:
        """What it returns False for, or raises for, is never handed out."""
        path, seen = fresh(), []

        def check(session: Session) -> bool:
            seen.append(session)
            sh(session, 'echo warm >"$1"', path).check()
            if len(seen) == 1:
                raise ZeroDivisionError
            return len(seen) > 2

        with self.pool(health_check=check) as pool, pool.acquire(timeout=60) as session:
            assert session is seen[2]
            assert read(session, path) == "warm\n"
        assert {session.state for session in seen} == {SessionState.DESTROYED}

    def test_a_health_check_that_refuses_everything_is_told(self) -> None:
        """After three in a row."""
        with self.pool(health_check=lambda session: False) as pool, pytest.raises(SandboxError, match="3 new sessions"):
            pool.wait_warm(60)

    def test_max_bounds_what_lives_at_once(self) -> None:
        """A further `acquire` waits for a session to be given back."""
        with self.pool(1, max=1) as pool:
            with pool.acquire(timeout=60) as session:
                with pytest.raises(SessionBusyError, match="within") as caught, pool.acquire(timeout=0.2):
                    pass
                assert caught.value.code is ErrorCode.SESSION_BUSY
                assert session.exec("true").ok
            with pool.acquire(timeout=60) as other:
                assert other.id != session.id

    # What is interrupted in a finalizer, or between a socket and its owner, Python reports as it drops it.
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_while_a_session_is_taken_costs_the_pool_nothing(self) -> None:
        """Wherever it comes: with room for one session alone, the next one can be had."""
        dice = random.Random(7)
        with self.pool(1, max=1) as pool:
            pool.wait_warm(60)
            with interrupts() as interrupt:
                for _ in range(12):
                    with contextlib.suppress(KeyboardInterrupt), interrupt.after(dice.uniform(0, 0.001)):
                        for _ in range(3):
                            with pool.acquire(timeout=60):
                                pass
            with pool.acquire(timeout=60) as session:
                assert session.exec("true").ok
        gc.collect()  # here, where it may be reported

    def test_waiting_ends_with_an_abort(self) -> None:
        """By an AbortSignal, or any Event."""
        with self.pool(1, max=1) as pool, pool.acquire(timeout=60):
            for abort in (AbortSignal(), threading.Event()):
                waiting = Background(lambda abort=abort: pool.acquire(abort=abort).__enter__())  # type: ignore[misc]
                wait_until(lambda: pool._state._waiting == 1, "it waits")
                abort.set()
                with pytest.raises(SessionBusyError, match="aborted"):
                    waiting.result()

    def test_errors_of_the_background_surface(self) -> None:
        """An image that is missing is told to whoever waits, not logged and retried for ever."""
        sandbox = self.sandbox("shell", network=None)
        sandbox.create_session = _raiser(ImageNotFoundError("there is no such image"))  # type: ignore[method-assign]
        with Pool(sandbox) as pool:
            with pytest.raises(ImageNotFoundError, match="no such image"):
                pool.wait_warm(60)
            with pytest.raises(ImageNotFoundError, match="no such image"), pool.acquire(timeout=60):
                pass
            del sandbox.create_session
            with pool.acquire(timeout=60) as session:
                assert session.exec("true").ok

    def test_many_threads_get_sessions_of_their_own(self) -> None:
        """From any thread."""

        def work() -> str:
            with pool.acquire(timeout=100) as session:
                assert session.exec("true").ok
                return session.id

        with self.pool(2) as pool:
            assert len(set(together([work] * 5))) == 5

    def test_map_gives_results_in_order(self) -> None:
        """Each item in a session of its own."""
        with self.pool(2) as pool:
            found = pool.map(lambda session, item: (session.id, session.exec("echo", [item]).stdout), list("abc"))
            assert [output for _, output in found] == ["a\n", "b\n", "c\n"]
            assert len({id for id, _ in found}) == 3
            assert pool.map(lambda session, item: item, []) == []
            assert pool.map(lambda session, item: threading.get_ident(), [1], concurrency=1) == [threading.get_ident()]

    def test_map_raises_what_the_function_raises(self) -> None:
        """And begins nothing further."""
        begun = []

        def work(session: Session, item: int) -> None:
            begun.append(item)
            raise ZeroDivisionError(item)

        with self.pool() as pool, pytest.raises(ZeroDivisionError):
            pool.map(work, range(5))
        assert len(begun) < 5

    def test_a_closed_pool_has_nothing_and_gives_nothing(self) -> None:
        """Idempotent; sessions that were handed out stay their holders'."""
        pool = self.pool(2)
        with pool.acquire(timeout=60) as session:
            pool.wait_warm(60)
            pool.close()
            pool.close()
            assert pool.idle == 0
            assert session.exec("true").ok
            with pytest.raises(SessionDestroyedError, match="closed"), pool.acquire():
                pass

    def test_a_pool_that_is_dropped_ends(self) -> None:
        """Its thread knows no more than its state."""
        pool = self.pool()
        pool.wait_warm(60)
        del pool
        gc.collect()
        wait_until(lambda: "sandboxkit-pool" not in thread_names(), "its thread ends", 30)

    def test_a_forked_child_has_a_pool_of_its_own(self) -> None:
        """Its parent's sessions stay its parent's."""
        with self.pool() as pool:
            pool.wait_warm(60)
            parents = pool._state.idle[0].session.id

            def body(tell: Callable[[str], None]) -> None:
                tell(str(pool.idle))
                with pool.acquire(timeout=60) as session:
                    tell(str(session.id != parents and session.exec("true").ok))
                pool.close()

            with ForkedChild(body) as child:
                assert child.read_line() == "0"
                assert child.read_line() == "True"
                child.wait()
            with pool.acquire(timeout=60) as session:
                assert session.id == parents
                assert session.exec("true").ok

    def test_wrong_arguments_are_refused(self) -> None:
        """Before anything is made."""
        wrongs: list[dict[str, Any]] = [
            {"size": 0},
            {"size": 2, "max": 1},
            {"max_age": 0},
            {"health_check": 3},
            {"env": {"": "x"}},
        ]
        for wrong in wrongs:
            with pytest.raises(ConfigError):
                Pool(self.sandbox(), **wrong)
        with pytest.raises(ConfigError, match="sandbox"):
            Pool("busybox")  # type: ignore[arg-type]


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(**options: object) -> Any:
        raise error

    return fail
