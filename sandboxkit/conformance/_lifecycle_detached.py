"""Sessions that outlive their process, and sessions that end by the clock."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import (
    ConfigError,
    Lifecycle,
    Network,
    Security,
    Session,
    SessionLostError,
    SessionNotFoundError,
    SessionState,
    attach,
    list_sessions,
    prune,
)
from sandboxkit.backend import Feature
from sandboxkit.errors import ErrorCode, SessionBusyError, UnsupportedError

from ._inside import fresh, living, read, sh, wait_for_file
from ._suite import Suite, needs, without
from ._threads import Background, ForkedChild, together
from ._watch import MARGIN, Stopwatch, allowed, wait_until


class Lasting(Suite):
    """What the classes below share."""

    def lasting(self, id: str | None = None, *, image: str = "shell", **options: Any) -> Session:
        """A session made with options of `create_session`, which is destroyed after the test."""
        made_with = {name: options.pop(name) for name in ("detached", "keep", "env") if name in options}
        session = self.sandbox(image, **options).create_session(id=id, **made_with)
        self.rig._own.append(session)
        return session

    def attached(self, id: str, **options: Any) -> Session:
        """`attach`, and the session is destroyed after the test."""
        session = attach(id, backend=self.backend, **options)
        self.rig._own.append(session)
        return session

    def attached_when_free(self, id: str, **options: Any) -> Session:
        """The same, as soon as it is known inside that the connection before has ended."""

        def attempt() -> Session | None:
            try:
                return self.attached(id, **options)
            except SessionBusyError:
                return None

        found = wait_until(attempt, f"{id} can be attached to", 20)
        assert found is not None
        return found

    def resumed(self, id: str, *, network: Network | None = None, **options: Any) -> Session:
        """`Sandbox.resume`, by a Sandbox that knows nothing of the session; it is destroyed after the test."""
        session = self.sandbox("no-such-image", **options).resume(id, network=network)
        self.rig._own.append(session)
        return session

    def child(self, body: Callable[[Callable[[str], None], Any], None]) -> ForkedChild:
        """A process of its own with a connection of its own."""
        suite = type(self)

        def run(tell: Callable[[str], None]) -> None:
            body(tell, suite.make_backend())

        return ForkedChild(run)

    def is_there(self, id: str) -> bool:
        return any(found.id == id for found in list_sessions(backend=self.backend))

    def is_running(self, id: str) -> bool:
        return any(found.id == id and found.running for found in list_sessions(backend=self.backend))


class Detached(Lasting):
    """`create_session(detached=True)` and `attach`."""

    @needs(Feature.DETACHED)
    def test_it_is_a_session_like_any_other(self) -> None:
        """Commands, input, streams, signals: the protocol above the connection is the same."""
        limits = self.limits(max_output_bytes=4_000_000)
        with self.lasting(detached=True, env={"NAME": "value"}, limits=limits) as session:
            assert sh(session, 'echo "$NAME"; cat; exit 3', input=b"in").stdout == "value\nin"
            assert session.exec("sleep", ["1000"], timeout=0.1, kill_grace=0).timed_out
            size = sh(session, "head -c 3000000 /dev/zero")
            assert size.stdout_bytes == bytes(3_000_000)
            assert sh(session, "wc -c", input=bytes(3_000_000)).stdout.strip() == "3000000"
            (found,) = [found for found in list_sessions(backend=self.backend) if found.id == session.id]
            assert (found.detached, found.running) == (True, True)
        assert not self.is_there(session.id)

    @needs(Feature.DETACHED)
    def test_commands_never_see_its_token(self) -> None:
        """Peer checked, and a token that commands can't read."""
        with self.lasting(detached=True) as session:
            found = sh(session, "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true")
            assert "SANDBOXKIT_TOKEN" not in found.stdout

    @needs(Feature.DETACHED)
    def test_it_lives_on_when_its_creator_is_killed(self) -> None:
        """Files and background processes are there for whoever attaches."""
        path = fresh()

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox(limits=self.limits(timeout=17))
            sandbox._backend = backend
            session = sandbox.create_session(id="killed-1", detached=True, env={"NAME": "value"})
            result = sh(session, 'echo kept >"$1"; setsid sleep 1000 & echo $!', path).check()
            tell(str(result.background_pids[0]))
            signal.pause()

        with self.child(body) as child:
            pid = int(child.read_line())
            child.kill()
        prune(backend=self.backend)
        session = self.attached_when_free("killed-1")
        assert read(session, path) == "kept\n"
        assert living(session, [pid]) == [pid]
        assert session.limits.timeout == 17
        assert sh(session, 'echo "$NAME"').stdout == "value\n"
        session.destroy()
        assert not self.is_there("killed-1")

    @needs(Feature.DETACHED)
    def test_commands_of_a_killed_creator_end(self) -> None:
        """They were its own: nobody else could hear of their end. What they left in the background lives on."""
        path = fresh()

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox()
            sandbox._backend = backend
            session = sandbox.create_session(id="killed-2", detached=True)
            with session.exec_stream("sh", ["-c", 'echo $$ >"$1"; echo runs; exec sleep 1000', "sh", path]) as stream:
                next(stream)
                tell("runs")
                signal.pause()

        with self.child(body) as child:
            assert child.read_line() == "runs"
            child.kill()
        session = self.attached_when_free("killed-2")
        assert living(session, [int(read(session, path))]) == []

    @needs(Feature.DETACHED)
    def test_letting_go_and_attaching_again(self) -> None:
        """`detach()`: leaving the block does not destroy it; the object is of no use any more."""
        path = fresh()
        with self.lasting(detached=True) as session:
            sh(session, 'echo kept >"$1"', path).check()
            session.detach()
            session.detach()
            assert session.state is SessionState.DETACHED
            with pytest.raises(SessionLostError, match="let go"):
                session.exec("true")
        for _ in range(3):
            again = self.attached_when_free(session.id)
            assert read(again, path) == "kept\n"
            again.detach()
        self.attached_when_free(session.id).destroy()
        with pytest.raises(SessionNotFoundError):
            attach(session.id, backend=self.backend)

    @needs(Feature.DETACHED)
    def test_a_second_attach_is_refused_while_the_first_lives(self) -> None:
        """A clear error; the first is not disturbed."""
        with self.lasting(detached=True) as session:
            running = Background(lambda: sh(session, "sleep 1; echo done"))
            for _ in range(3):
                with pytest.raises(SessionBusyError, match="takeover=True") as caught:
                    attach(session.id, backend=self.backend)
                assert caught.value.code is ErrorCode.SESSION_BUSY
                assert caught.value.details["session"] == session.id
            assert running.result().stdout == "done\n"

    @needs(Feature.DETACHED)
    def test_takeover_ends_the_first(self) -> None:
        """And its commands."""
        with self.lasting(detached=True) as session:
            path = fresh()
            running = Background(lambda: sh(session, 'echo $$ >"$1.new"; mv "$1.new" "$1"; exec sleep 1000', path))
            wait_for_file(session, path)
            with Stopwatch() as watch:
                second = self.attached(session.id, takeover=True)
                pid = int(read(second, path))
                assert living(second, [pid]) == []
                with pytest.raises(SessionLostError):
                    running.result()
            assert watch.seconds < allowed(2)
            wait_until(lambda: session.state is SessionState.LOST, "the first is told")
            assert second.exec("echo", ["x"]).stdout == "x\n"
            second.destroy()

    @needs(Feature.DETACHED)
    def test_of_many_that_attach_at_once_one_wins(self) -> None:
        """The others are told that it is busy."""
        session = self.lasting(detached=True)
        session.detach()

        def attempt() -> Session | None:
            try:
                return self.attached(session.id)
            except SessionBusyError:
                return None

        winners: list[Session] = []

        def one_won() -> bool:
            winners[:] = [found for found in together([attempt] * 4) if found is not None]
            return bool(winners)

        wait_until(one_won, "the connection before has ended")
        (winner,) = winners
        assert winner.exec("true").ok

    @needs(Feature.DETACHED)
    def test_a_dropped_session_lives_on_without_a_warning(self) -> None:
        """What is meant to outlive its process is no leak."""
        session = self.sandbox().create_session(detached=True)
        id = session.id
        del session
        self.attached_when_free(id).destroy()

    @needs(Feature.DETACHED)
    def test_a_command_in_it_can_not_attach(self) -> None:
        """Whoever connects from inside is turned away, whatever it says; the session is not disturbed."""
        with self.lasting(image="python", detached=True) as session:
            script = (
                "import socket\n"
                "s = socket.socket(socket.AF_UNIX)\n"
                "s.settimeout(10)\n"
                "s.connect('\\0sandboxkit-agent')\n"
                "try:\n"
                "    s.sendall(b'SBXC' + bytes(68))\n"
                "    print(s.recv(100))\n"
                "except OSError:\n"
                "    print(b'')\n"
            )
            assert session.exec("python3", ["-c", script]).check().stdout == "b''\n"
            assert session.exec("/.sandboxkit/agent", ["connect"], input=b"x" * 100).stdout_bytes == b""
            assert session.exec("true").ok

    @needs(Feature.DETACHED)
    def test_a_session_that_is_not_detached_can_not_be_attached_to(self) -> None:
        """It belongs to its process; nor can that let go of it."""
        with self.create() as session:
            with pytest.raises(ConfigError, match="detached=True"):
                attach(session.id, backend=self.backend)
            with pytest.raises(ConfigError, match="detached=True"):
                session.detach()
            assert session.exec("true").ok
        with pytest.raises(SessionNotFoundError, match="list_sessions"):
            attach("no-such-session", backend=self.backend)

    @needs(Feature.DETACHED, Feature.READONLY_ROOTFS, Feature.USERS)
    def test_it_holds_with_a_read_only_root_and_another_user(self) -> None:
        """Like any session."""
        security = Security(user="1000:1000", readonly_rootfs=True)
        with self.lasting(detached=True, security=security) as session:
            session.detach()
        with self.attached_when_free(session.id) as again:
            assert sh(again, "id -u; echo x >file; cat file").stdout == "1000\nx\n"

    @needs(Feature.DETACHED, Feature.IMAGES)
    def test_it_needs_nothing_in_the_image(self) -> None:
        """The one program that is run in it by the engine is the agent."""
        with self.lasting(image="static", detached=True) as session:
            session.detach()
            with self.attached_when_free(session.id) as again:
                assert again.exec("/hello").stdout.startswith("hello")

    @without(Feature.DETACHED)
    def test_detached_is_unsupported(self) -> None:
        """A feature that is not declared raises, and nothing is made."""
        with pytest.raises(UnsupportedError, match="detached"):
            self.sandbox().create_session(id="unsupported-1", detached=True)
        assert not self.is_there("unsupported-1")


class TimeToLive(Lasting):
    """`Lifecycle(ttl, idle_timeout)`: the clocks run inside."""

    def test_a_session_ends_when_its_time_is_over(self) -> None:
        """Its holder is told."""
        with Stopwatch() as watch:
            session = self.create(lifecycle=Lifecycle(ttl=MARGIN))
            with pytest.raises(SessionLostError):
                session.exec("sleep", ["1000"])
        assert watch.seconds >= MARGIN
        assert session.state is SessionState.LOST

    def test_an_idle_session_ends(self) -> None:
        """Not while a command runs, nor while requests come."""
        session = self.create(lifecycle=Lifecycle(idle_timeout=MARGIN))
        assert session.exec("sleep", [str(MARGIN + 0.5)]).ok
        with Stopwatch() as watch:
            wait_until(lambda: session.state is SessionState.LOST, "it ends", 10)
        assert watch.seconds >= 0.8 * MARGIN

    def test_a_busy_session_does_not_end(self) -> None:
        """Each request starts the idle clock anew."""
        with self.create(lifecycle=Lifecycle(idle_timeout=MARGIN, ttl=3600)) as session:
            for _ in range(6):
                assert session.exec("sleep", [str(MARGIN / 4)]).ok
            assert session.state is SessionState.RUNNING

    @needs(Feature.DETACHED)
    @pytest.mark.parametrize(
        "lifecycle", [Lifecycle(ttl=1.5 * MARGIN), Lifecycle(idle_timeout=MARGIN)], ids=["ttl", "idle"]
    )
    def test_a_detached_session_ends_on_time_without_its_host(self, lifecycle: Lifecycle) -> None:
        """With the host process SIGKILLed it still ends on time, and its volume with it."""
        id = f"timed-{'ttl' if lifecycle.ttl else 'idle'}"

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox(lifecycle=lifecycle)
            sandbox._backend = backend
            sandbox.create_session(id=id, detached=True).shell("setsid sleep 1000 & true")
            tell("made")
            signal.pause()

        with self.child(body) as child:
            assert child.read_line() == "made"
            assert self.is_there(id)
            child.kill()
        wait_until(lambda: not self.is_there(id), "the engine has nothing of it", 20)

    @needs(Feature.DETACHED)
    def test_the_end_is_told_on_the_labels(self) -> None:
        """So that `prune` knows, and whoever lists."""
        with self.lasting(detached=True, lifecycle=Lifecycle(ttl=3600)) as session:
            (found,) = [found for found in list_sessions(backend=self.backend) if found.id == session.id]
            assert found.expires is not None
            assert found.created is not None
            assert 3590 < found.expires - found.created < 3610

    @needs(Feature.RESUME)
    def test_an_expired_session_that_was_kept_is_pruned(self) -> None:
        """It has ended by itself, and stays until somebody tidies up."""
        session = self.lasting("expired-1", keep=True, lifecycle=Lifecycle(ttl=MARGIN))
        wait_until(lambda: not self.is_running("expired-1"), "it has ended", 20)
        assert self.is_there("expired-1")
        wait_until(lambda: any(found.name == "expired-1" for found in prune(backend=self.backend)), "it is pruned", 20)
        assert not self.is_there("expired-1")
        session.destroy()

    def test_wrong_times_to_live_are_refused(self) -> None:
        """Before anything is made."""
        wrongs: list[dict[str, Any]] = [
            {"ttl": 0},
            {"ttl": -1},
            {"ttl": float("inf")},
            {"idle_timeout": "1"},
            {"ttl": 1e10},
        ]
        for wrong in wrongs:
            with pytest.raises(ConfigError):
                Lifecycle(**wrong)
        with pytest.raises(ConfigError, match="lifecycle"):
            self.sandbox(lifecycle=3)
