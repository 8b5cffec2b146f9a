"""What is on the engine, whose it is, and what is removed when its owner is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import SessionNotFoundError, SessionState, Workspace, list_sessions, prune, remove_session
from sandboxkit._bundle import bundle
from sandboxkit.backend import Feature
from sandboxkit.backend_parts import volumes_of

from ._suite import RUN, RUN_LABEL, Suite, needs
from ._threads import ForkedChild
from ._watch import wait_until

KILLS = int(os.environ.get("SANDBOXKIT_TEST_KILLS", "5"))
"""How many host processes are killed."""


class Pruning(Suite):
    """`list_sessions`, `prune`, `remove_session`."""

    def ids(self) -> set[str]:
        """Of this run's sessions."""
        return {session.id for session in list_sessions(backend=self.backend) if session.labels.get(RUN_LABEL) == RUN}

    def pruned(self, **options: Any) -> dict[str, str]:
        """What a call of `prune` names, and why."""
        return {found.name: found.reason for found in prune(backend=self.backend, **options)}

    def child(self, body: Callable[[Callable[[str], None], Any], None]) -> ForkedChild:
        """A process of its own with a connection of its own."""
        suite = type(self)

        def run(tell: Callable[[str], None]) -> None:
            body(tell, suite.make_backend())

        return ForkedChild(run)

    def half_made(self, id: str) -> None:
        """What a process leaves that is killed between the creation and the start of a container."""

        def body(tell: Callable[[str], None], backend: Any) -> None:
            backend.start = lambda container: os.kill(os.getpid(), signal.SIGKILL)
            sandbox = self.sandbox()
            sandbox._backend = backend
            sandbox.create_session(id=id)

        with self.child(body) as child:
            assert child.wait() == -signal.SIGKILL

    def test_a_session_is_listed_with_its_owner(self) -> None:
        """Labels on containers say who made them, where and when."""
        with self.create(id="listed-1", labels={"team": "blue"}) as session:
            (found,) = [found for found in list_sessions(backend=self.backend) if found.id == session.id]
            assert found.running
            assert found.labels["team"] == "blue"
            assert (found.backend, found.url) == (self.backend.name, self.info.url)
            assert found.owner is not None
            assert (found.owner.pid, found.owner.is_alive, found.owner.is_this_process) == (os.getpid(), True, True)
            assert found.created is not None
            assert (found.expires, found.detached, found.kept) == (None, False, False)
            assert not any(name.startswith("sandboxkit.") for name in found.labels)
        assert session.id not in self.ids()

    def test_a_live_sessions_of_this_process_are_left_alone(self) -> None:
        """`prune` removes only what is dead or expired."""
        with self.create() as session:
            assert session.id not in self.pruned()
            assert session.exec("true").ok

    def test_a_live_session_of_another_process_is_left_alone(self) -> None:
        """`prune` never removes another live owner's."""

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox()
            sandbox._backend = backend
            session = sandbox.create_session(id="others-1")
            tell("made")
            wait_until(lambda: os.path.exists(f"/proc/{os.getppid()}/stat") and os.getppid() != 1, "the parent lives")
            signal.sigwait({signal.SIGTERM})
            tell("ok" if session.exec("true").ok else "dead")
            session.destroy()

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with self.child(body) as child:
                assert child.read_line() == "made"
                assert "others-1" not in self.pruned()
                assert "others-1" in self.ids()
                os.kill(child.pid, signal.SIGTERM)
                assert child.read_line() == "ok"
                child.wait()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def test_what_a_killed_process_left_half_made_is_pruned(self) -> None:
        """A container that was created and never started has no stream whose end would end it."""
        self.half_made("half-made-1")
        assert "half-made-1" in self.ids()
        assert self.pruned(dry_run=True)["half-made-1"] == "its owner is gone"
        assert "half-made-1" in self.ids(), "a dry run removes nothing"
        assert "half-made-1" not in self.pruned(older_than=3600)
        assert self.pruned()["half-made-1"] == "its owner is gone"
        assert "half-made-1" not in self.ids()

    def test_the_next_process_heals_what_a_killed_one_left_half_made(self) -> None:
        """Nobody has to call `prune`: whoever makes the next session does."""
        self.half_made("half-made-2")

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox()
            sandbox._backend = backend
            sandbox.create_session().destroy()
            tell("done")

        with self.child(body) as child:
            assert child.read_line() == "done"
        assert "half-made-2" not in self.ids()

    @needs(Feature.CRASH_CLEANUP)
    def test_killed_processes_leave_nothing_behind(self) -> None:
        """smolagents#2050: SIGKILL at any moment; the engine has removed the session, or the next process does.

        Dial: SANDBOXKIT_TEST_KILLS.
        """
        for number in range(KILLS):

            def body(tell: Callable[[str], None], backend: Any) -> None:
                sandbox = self.sandbox()
                sandbox._backend = backend
                tell("begin")
                sandbox.create_session(id=f"killed-{number}")  # noqa: B023 - called in this turn of the loop
                tell("made")
                signal.pause()

            with self.child(body) as child:
                assert child.read_line() == "begin"
                if number % 2:
                    assert child.read_line() == "made"
                child.kill()
        wait_until(
            lambda: self.pruned() is not None and not any(id.startswith("killed-") for id in self.ids()), "all are gone"
        )

    @needs(Feature.VOLUMES)
    def test_agents_of_other_versions_are_pruned_on_request(self) -> None:
        """Only then; never this version's own, nor one that a container uses."""
        volumes, name = volumes_of(self.backend, "volumes"), "sandboxkit-agent-conformance0000"
        volumes.ensure(name, {"sandboxkit.role": "agent", "sandboxkit.created": "1"})
        try:
            assert name not in self.pruned(dry_run=True)
            found = self.pruned(dry_run=True, agents=True)
            assert found[name] == "it holds the agent of another version"
            assert bundle().volume not in found
            assert volumes.inspect(name) is not None
        finally:
            assert volumes.remove(name)

    @needs(Feature.VOLUMES)
    def test_a_volume_of_a_session_that_is_gone_is_pruned(self) -> None:
        """One that was made for it alone, by a process that was killed."""

        def body(tell: Callable[[str], None], backend: Any) -> None:
            backend.start = lambda container: os.kill(os.getpid(), signal.SIGKILL)
            sandbox = self.sandbox(workspace=Workspace.volume("conformance-left-over", keep=False))
            sandbox._backend = backend
            sandbox.create_session(id="left-over-1")

        with self.child(body) as child:
            assert child.wait() == -signal.SIGKILL
        volumes = volumes_of(self.backend, "volumes")
        assert volumes.inspect("conformance-left-over") is not None
        assert self.pruned()["left-over-1"] == "its owner is gone"
        assert volumes.inspect("conformance-left-over") is None

    def test_a_session_can_be_removed_by_its_id(self) -> None:
        """Whoever can reach the engine may end what is on it; its holder is told that it is lost."""
        session = self.create(id="removed-1")
        remove_session("removed-1", backend=self.backend)
        assert "removed-1" not in self.ids()
        wait_until(lambda: session.state is SessionState.LOST, "the loss is noticed")
        with pytest.raises(SessionNotFoundError, match="removed-1"):
            remove_session("removed-1", backend=self.backend)

    def test_a_failed_removal_is_told_after_the_rest_was_removed(self) -> None:
        """One container that the engine can't remove does not keep the others."""
        from sandboxkit.errors import EngineError

        for id in ("stuck-1", "stuck-2"):
            self.half_made(id)
        remove = self.backend.remove
        failed: list[str] = []

        def fail_once(container_id: str) -> None:
            if not failed:
                failed.append(container_id)
                raise EngineError("it can't be removed")
            remove(container_id)

        self.backend.remove = fail_once  # type: ignore[method-assign]
        try:
            with pytest.raises(EngineError, match="can't be removed"):
                prune(backend=self.backend)
        finally:
            del self.backend.remove
        assert len(self.ids() & {"stuck-1", "stuck-2"}) == 1
        prune(backend=self.backend)
        assert not self.ids() & {"stuck-1", "stuck-2"}
