"""From a session's first moment to its last, whoever brings that about."""

from __future__ import annotations

import threading

import pytest

from sandboxkit import ConfigError, Session, SessionDestroyedError, SessionLostError, SessionState, StdoutEvent
from sandboxkit.backend import Feature
from sandboxkit.errors import ErrorCode, SandboxError

from ._inside import fresh, read, sh, wait_for_file
from ._suite import RUN, RUN_LABEL, Suite, needs
from ._threads import Background, together
from ._watch import Stopwatch, allowed, wait_until


class Lifecycle(Suite):
    """create_session, destroy, and what comes between."""

    def names(self) -> set[str]:
        return {status.name for status in self.backend.list({RUN_LABEL: RUN})}

    def test_a_session_says_what_it_is(self) -> None:
        """The properties of `Session`; its container is labelled for whoever looks for leftovers."""
        limits = self.limits(timeout=5)
        with self.create(id="some-id.1_x", limits=limits, labels={"team": "blue"}) as session:
            assert (session.id, session.state, session.limits) == ("some-id.1_x", SessionState.RUNNING, limits)
            assert session.engine == self.info
            assert session.workspace == "/workspace"
            assert isinstance(session, Session)
            (status,) = self.backend.list({"sandboxkit.session": "some-id.1_x"})
            assert status.running
            assert (status.labels["team"], status.labels["sandboxkit.schema"]) == ("blue", "1")
            assert self.backend.inspect(status.id).id == status.id

    def test_ids_are_made_up_and_differ(self) -> None:
        """`id` is unique on the engine."""
        with self.create() as one, self.create() as other:
            assert one.id != other.id

    def test_leaving_the_block_destroys(self) -> None:
        """A context manager."""
        before = self.names()
        with self.create() as session:
            assert len(self.names() - before) == 1
        assert session.state is SessionState.DESTROYED
        assert self.names() == before

    def test_a_script_that_raises_leaves_nothing(self) -> None:
        """OpenHands#4970: the exception goes on, the session is destroyed."""
        before = self.names()
        session = self.create()
        with pytest.raises(ZeroDivisionError), session:
            assert len(sh(session, "setsid sleep 1000 & echo hi").background_pids) / 0
        assert session.state is SessionState.DESTROYED
        assert self.names() == before

    def test_destroy_may_be_called_again_and_again(self) -> None:
        """`destroy()` idempotent."""
        session = self.create()
        for _ in range(3):
            session.destroy()
            assert session.state is SessionState.DESTROYED

    def test_destroy_may_be_called_by_many_at_once(self) -> None:
        """All return, and afterwards there is nothing."""
        session, before = self.create(), self.names()
        together([session.destroy] * 8)
        assert session.state is SessionState.DESTROYED
        assert len(before - self.names()) == 1

    def test_a_destroyed_session_raises_at_once(self) -> None:
        """Destroyed session → SessionDestroyedError, never a result."""
        session = self.create()
        session.destroy()
        with Stopwatch() as watch:
            for call in (session.exec, session.exec_stream, session.shell):
                with pytest.raises(SessionDestroyedError, match=session.id) as caught:
                    call("true")
                assert caught.value.code is ErrorCode.SESSION_DESTROYED
        assert watch.seconds < allowed(0.05)

    def test_destroy_ends_what_waits(self) -> None:
        """A waiting exec raises SessionDestroyedError; it never hangs and gives no result."""
        session, path = self.create(), fresh()
        running = Background(lambda: sh(session, 'touch "$1"; exec sleep 1000', path))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            session.destroy()
            with pytest.raises(SessionDestroyedError):
                running.result()
        assert watch.seconds < allowed(2)

    def test_destroy_in_mid_flood_is_quick(self) -> None:
        """moby#41827: an unread stream makes removal take 20 s; here destroy in mid-flood takes under 2 s."""
        session, path = self.create(), fresh()
        stream = session.exec_stream("cat", ["/dev/zero"])
        flood = Background(lambda: sh(session, 'touch "$1"; cat /dev/zero', path, timeout=60))
        wait_for_file(session, path)
        assert isinstance(next(stream), StdoutEvent)
        with Stopwatch() as watch:
            session.destroy()
        assert watch.seconds < allowed(2)
        with pytest.raises(SessionDestroyedError):
            flood.result()
        with pytest.raises(SessionDestroyedError):
            stream.wait()

    def test_destroy_while_commands_come_and_go_harms_nobody(self) -> None:
        """Every call ends with its result or with SessionDestroyedError."""
        session, started = self.create(), threading.Event()

        def work() -> int:
            done = 0
            while True:
                try:
                    assert session.exec("echo", ["x"]).stdout == "x\n"
                except SessionDestroyedError:
                    return done
                done += 1
                if done == 3:
                    started.set()

        workers = [Background(work) for _ in range(4)]
        wait_until(started.is_set, "commands run")
        session.destroy()
        for worker in workers:
            assert worker.result() >= 0

    def test_a_taken_id_is_refused_and_its_session_untouched(self) -> None:
        """`Backend.create`: ConfigError when a container of that name exists (it is not touched)."""
        with self.create(id="taken") as session:
            path = fresh()
            sh(session, 'echo mine >"$1"', path).check()
            before = self.names()
            with pytest.raises(ConfigError, match="taken"):
                self.create(id="taken")
            assert self.names() == before
            assert read(session, path) == "mine\n"
        with self.create(id="taken") as again:
            assert read(again, path) == ""

    def test_sessions_share_nothing(self) -> None:
        """Each has a workspace of its own."""
        path = fresh()
        with self.create() as one, self.create() as other:
            sh(one, 'echo one >"$1"', path).check()
            assert read(other, path) == ""
            one.destroy()
            assert other.exec("echo", ["alive"]).stdout == "alive\n"

    def test_four_sessions_made_at_once_do_not_collide(self) -> None:
        """OpenHands#7373: parallel creates never collide."""
        sessions = together([self.create] * 4)
        assert len({session.id for session in sessions}) == 4
        assert together([lambda s=s: s.exec("echo", [s.id]).stdout for s in sessions]) == [  # type: ignore[misc]
            f"{session.id}\n" for session in sessions
        ]

    @needs(Feature.CRASH_CLEANUP)
    def test_a_session_that_is_dropped_ends_by_itself(self) -> None:
        """`__del__` never waits and never leaves a container."""
        before = self.names()
        held = [self.sandbox().create_session()]
        assert len(self.names() - before) == 1
        with pytest.warns(ResourceWarning, match=held[0].id):
            held.clear()
        wait_until(lambda: self.names() == before, "the container is gone")


class Loss(Suite):
    """A session whose container goes away."""

    def lose(self, session: Session) -> None:
        """Remove its container behind its back, as another client of the engine would."""
        (status,) = self.backend.list({"sandboxkit.session": session.id})
        self.backend.remove(status.id)

    def test_a_waiting_exec_raises_when_the_container_is_removed(self) -> None:
        """inspect_ai#4709: container dead → SessionLostError within 2 s, never a result, never a hang."""
        session, path = self.create(), fresh()
        running = Background(lambda: sh(session, 'touch "$1"; exec sleep 1000', path))
        wait_for_file(session, path)
        with Stopwatch() as watch:
            self.lose(session)
            with pytest.raises(SessionLostError, match="Create a new session") as caught:
                running.result()
        assert watch.seconds < allowed(2)
        assert caught.value.code is ErrorCode.SESSION_LOST
        assert session.state is SessionState.LOST

    def test_a_lost_session_raises_at_once(self) -> None:
        """Never a result, never a hang; a lost session is cleaned up by destroy as well."""
        session = self.create()
        self.lose(session)
        wait_until(lambda: session.state is SessionState.LOST, "the loss is noticed", allowed(2))
        with Stopwatch() as watch:
            for call in (session.exec, session.exec_stream, session.shell):
                with pytest.raises(SessionLostError):
                    call("true")
        assert watch.seconds < allowed(0.05)
        session.destroy()
        assert session.state is SessionState.DESTROYED
        with pytest.raises(SandboxError):
            session.exec("true")

    def test_a_stream_raises_when_the_container_is_removed(self) -> None:
        """Iteration raises; what came before the loss was given out."""
        session = self.create()
        with session.exec_stream("sh", ["-c", "echo before; sleep 1000"]) as stream:
            first = next(stream)
            assert isinstance(first, StdoutEvent)
            assert first.data == b"before\n"
            with Stopwatch() as watch:
                self.lose(session)
                with pytest.raises(SessionLostError):
                    next(stream)
            assert watch.seconds < allowed(2)

    def test_a_write_to_a_stream_raises_when_the_container_is_removed(self) -> None:
        """A writer that waits for the command to read is woken."""
        session = self.create()
        stream = session.exec_stream("sleep", ["1000"], stdin=True)
        writing = Background(lambda: stream.write(bytes(10_000_000)))
        with Stopwatch() as watch:
            self.lose(session)
            with pytest.raises(SandboxError):
                writing.result()
        assert watch.seconds < allowed(2)
        with pytest.raises(SessionLostError):
            stream.wait()

    def test_a_hundred_waiting_commands_are_told(self) -> None:
        """Nobody is forgotten."""
        session, folder = self.create(), fresh("folder")
        session.exec("mkdir", [folder]).check()

        def run(number: int) -> bool:
            try:
                sh(session, 'touch "$1/$2"; exec sleep 1000', folder, str(number), timeout=120)
            except SessionLostError:
                return True
            return False

        running = Background(lambda: together([lambda n=n: run(n) for n in range(100)]))  # type: ignore[misc]
        wait_until(lambda: len(sh(session, 'ls "$1"', folder).stdout.split()) == 100, "a hundred commands run", 60)
        with Stopwatch() as watch:
            self.lose(session)
            assert running.result() == [True] * 100
        assert watch.seconds < allowed(2)
