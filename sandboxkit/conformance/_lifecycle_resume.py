"""Sessions that are stopped and resumed, and images made of them."""

from __future__ import annotations

import functools
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandboxkit import (
    ConfigError,
    Lifecycle,
    Sandbox,
    SandboxError,
    Security,
    Session,
    SessionLostError,
    SessionNotFoundError,
    SessionState,
    Workspace,
    attach,
    list_snapshots,
    prune,
    remove_snapshot,
)
from sandboxkit.backend import Feature
from sandboxkit.backend_parts import running_of, snapshots_of
from sandboxkit.errors import EngineError, SessionBusyError, UnsupportedError

from ._inside import fresh, read, sh, wait_for_file
from ._lifecycle_detached import Lasting
from ._suite import Rig, needs, without
from ._threads import Background, ForkedChild
from ._watch import MARGIN, wait_until


class Resuming(Lasting):
    """`create_session(keep=True)`, `stop` and `Sandbox.resume`."""

    @needs(Feature.RESUME)
    def test_files_and_settings_come_back(self) -> None:
        """Limits and policies are rebuilt from labels, not from memory."""
        path = fresh()
        limits = self.limits(timeout=17, max_output_bytes=100, pids=64)
        session = self.lasting(keep=True, limits=limits, env={"NAME": "value"})
        sh(session, 'mkdir "$1"; echo kept >"$1/file"; chmod 600 "$1/file"', path).check()
        session.stop()
        assert session.state is SessionState.STOPPED
        session.stop()
        with pytest.raises(SessionLostError, match="resume"):
            session.exec("true")
        assert not self.is_running(session.id)
        again = self.resumed(session.id)
        assert (again.id, again.state, again.limits) == (session.id, SessionState.RUNNING, limits)
        assert read(again, f"{path}/file") == "kept\n"
        assert sh(again, 'stat -c %a "$1/file"', path).stdout == "600\n"
        assert sh(again, 'echo "$NAME"; head -c 1000 /dev/zero').stdout_truncated
        again.destroy()
        assert not self.is_there(session.id)

    @needs(Feature.RESUME)
    def test_of_two_that_resume_it_at_the_same_moment_one_does(self) -> None:
        """The other one is told so, and disturbs nothing."""
        session = self.lasting(keep=True)
        sh(session, "echo kept >file").check()
        session.stop()
        rigs = [Rig(type(self)) for _ in range(2)]  # with connections of their own, as two processes have
        together = threading.Barrier(len(rigs))

        def resume(sandbox: Sandbox) -> Session | SandboxError:
            together.wait(30)
            try:
                return sandbox.resume(session.id)
            except SandboxError as error:
                return error

        calls = [Background(functools.partial(resume, rig.sandbox("shell"))) for rig in rigs]
        found = [call.result() for call in calls]
        won = [one for one in found if not isinstance(one, SandboxError)]
        try:
            assert len(won) == 1, found
            assert any(isinstance(one, SessionBusyError) for one in found), found
            for number in range(20):
                assert won[0].exec("cat", ["file"]).stdout == "kept\n", number
        finally:
            for one in won:
                one.destroy()
            for rig in rigs:
                rig.backend.close()

    @needs(Feature.RESUME)
    def test_a_process_killed_while_it_resumes_is_in_nobodys_way(self) -> None:
        """What it held counts for nothing when it is dead."""
        session = self.lasting(keep=True)
        session.stop()

        def body(tell: Callable[[str], None]) -> None:
            rig = Rig(type(self))
            running = running_of(rig.backend, Feature.RESUME, "")
            running.prepare = lambda container_id: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            rig.sandbox("shell").resume(session.id)

        with ForkedChild(body) as child:
            assert child.wait() == -signal.SIGKILL
        assert self.resumed(session.id).exec("true").ok

    @needs(Feature.RESUME)
    def test_it_can_be_stopped_and_resumed_again_and_again(self) -> None:
        """At once, too: nothing of the engine's own tidying up comes in between."""
        path = fresh()
        session = self.lasting(keep=True)
        for number in range(3):
            sh(session, 'echo "$2" >>"$1"', path, str(number)).check()
            session.stop(grace=0)
            session = self.resumed(session.id)
        assert read(session, path) == "0\n1\n2\n"

    @needs(Feature.RESUME)
    def test_running_commands_get_the_grace(self) -> None:
        """SIGTERM, and what handles it in time may tidy up; background processes die."""
        path = fresh()
        session = self.lasting(keep=True)
        script = 'trap \'echo tidied >"$1.end"; exit\' TERM; sleep 1000 & echo x >"$1"; wait'
        running = Background(lambda: sh(session, script, path))
        wait_for_file(session, path)
        background = sh(session, "setsid sleep 1000 & true").background_pids
        session.stop(grace=10)
        assert running.result().aborted
        again = self.resumed(session.id)
        assert read(again, f"{path}.end") == "tidied\n"
        assert "sleep" not in sh(again, "ps -o comm= 2>/dev/null; cat /proc/[0-9]*/comm").stdout
        assert background

    @needs(Feature.RESUME)
    def test_what_ignores_the_grace_is_killed(self) -> None:
        """And `stop` returns."""
        session, path = self.lasting(keep=True), fresh()
        running = Background(lambda: sh(session, "trap '' TERM; echo x >\"$1\"; while :; do sleep 1; done", path))
        wait_for_file(session, path)
        session.stop(grace=0.2)
        assert running.result().aborted
        assert not self.is_running(session.id)

    @needs(Feature.RESUME)
    def test_a_killed_owner_leaves_it_stopped(self) -> None:
        """Its files are there for the next process."""
        path = fresh()

        def body(tell: Callable[[str], None], backend: Any) -> None:
            sandbox = self.sandbox()
            sandbox._backend = backend
            session = sandbox.create_session(id="kept-1", keep=True)
            sh(session, 'echo kept >"$1"', path).check()
            tell("made")
            signal.pause()

        with self.child(body) as child:
            assert child.read_line() == "made"
            with pytest.raises(SessionBusyError, match="running"):
                self.resumed("kept-1")
            child.kill()
        wait_until(lambda: not self.is_running("kept-1"), "it ends with its owner", 20)
        assert "kept-1" not in {found.name for found in prune(backend=self.backend)}
        session = self.resumed("kept-1")
        assert read(session, path) == "kept\n"

    @needs(Feature.RESUME, Feature.DETACHED)
    def test_a_detached_session_can_be_stopped_and_resumed(self) -> None:
        """Both at once."""
        path = fresh()
        session = self.lasting(keep=True, detached=True)
        sh(session, 'echo kept >"$1"', path).check()
        session.stop()
        with pytest.raises(SessionNotFoundError, match="resume"):
            attach(session.id, backend=self.backend)
        again = self.resumed(session.id)
        assert read(again, path) == "kept\n"
        with pytest.raises(SessionBusyError, match="attach"):
            self.resumed(session.id)
        again.detach()
        assert read(self.attached_when_free(session.id), path) == "kept\n"

    @needs(Feature.RESUME)
    def test_leaving_the_block_keeps_a_stopped_session(self) -> None:
        """And destroys one that runs."""
        with self.lasting(keep=True) as session:
            session.stop()
        assert self.is_there(session.id)
        with self.resumed(session.id) as again:
            assert again.exec("true").ok
        assert not self.is_there(session.id)

    @needs(Feature.RESUME)
    def test_a_stopped_session_can_be_destroyed(self) -> None:
        """By the object that stopped it."""
        session = self.lasting(keep=True)
        session.stop()
        session.destroy()
        assert session.state is SessionState.DESTROYED
        assert not self.is_there(session.id)
        with pytest.raises(SessionNotFoundError, match="list_sessions"):
            self.resumed(session.id)

    @needs(Feature.RESUME)
    def test_a_resume_that_fails_keeps_the_files(self) -> None:
        """It is stopped again, and can be resumed later."""
        path = fresh()
        session = self.lasting(keep=True)
        sh(session, 'echo kept >"$1"', path).check()
        session.stop()
        start = self.backend.start

        def fail(container_id: str) -> None:
            start(container_id)
            raise EngineError("no")

        self.backend.start = fail  # type: ignore[method-assign]
        try:
            with pytest.raises(EngineError, match="no"):
                self.resumed(session.id)
        finally:
            self.backend.start = start  # type: ignore[method-assign]
        assert not self.is_running(session.id)
        assert read(self.resumed(session.id), path) == "kept\n"

    @needs(Feature.RESUME)
    def test_its_clock_runs_on_while_it_is_stopped(self) -> None:
        """`Lifecycle(ttl)` counts from the start; one whose time is over is not resumed."""
        session = self.lasting(keep=True, lifecycle=Lifecycle(ttl=3 * MARGIN))
        session.stop()
        again = self.resumed(session.id)
        wait_until(lambda: again.state is SessionState.LOST, "it ends on its first clock", 10)
        wait_until(lambda: not self.is_running(session.id), "the engine knows, too")
        with pytest.raises(SessionNotFoundError, match="time to live"):
            self.resumed(session.id)

    @needs(Feature.RESUME, Feature.READONLY_ROOTFS, Feature.USERS)
    def test_its_security_is_proved_again(self) -> None:
        """A read-only root and a user of its own are in force as before."""
        session = self.lasting(keep=True, security=Security(readonly_rootfs=True, user="1000:1000"))
        sh(session, "echo x >file").check()
        session.stop()
        again = self.resumed(session.id)
        assert sh(again, "id -u; echo x >/file; cat file").stdout == "1000\nx\n"
        assert "NoNewPrivs:\t1" in sh(again, "cat /proc/self/status").stdout

    @needs(Feature.RESUME, Feature.VOLUMES)
    def test_a_volume_has_one_writer_after_a_resume_too(self) -> None:
        """A stopped session does not hold it; one that is resumed is refused while another does."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        session = self.lasting(keep=True, workspace=Workspace.volume(name, keep=False))
        session.stop()
        with self.create(workspace=Workspace.volume(name)) as other:
            with pytest.raises(SessionBusyError, match=other.id):
                self.resumed(session.id)
            assert other.exec("true").ok
        again = self.resumed(session.id)
        with pytest.raises(SessionBusyError, match=session.id):
            self.create(workspace=Workspace.volume(name))
        again.destroy()

    def test_a_session_that_is_not_kept_can_not_be_stopped(self) -> None:
        """The error says how; nothing happened."""
        with self.create() as session:
            with pytest.raises(ConfigError, match="keep=True"):
                session.stop()
            assert session.exec("true").ok

    @without(Feature.RESUME)
    def test_keep_is_unsupported(self) -> None:
        """A feature that is not declared raises, and nothing is made."""
        with pytest.raises(UnsupportedError, match="keep"):
            self.sandbox().create_session(id="unsupported-2", keep=True)
        assert not self.is_there("unsupported-2")


class Snapshotting(Lasting):
    """`snapshot`, `list_snapshots`, `remove_snapshot`."""

    @pytest.fixture
    def tag(self) -> Iterator[str]:
        """A tag that no other test uses; its image is removed afterwards, if there is one."""
        tag = f"conformance-{uuid.uuid4().hex[:12]}:v1"
        yield tag
        for session in self.rig._own:
            session.destroy()
        if tag in self.tags():
            remove_snapshot(tag, backend=self.backend)

    def tags(self) -> set[str]:
        return {snapshot.tag for snapshot in list_snapshots(backend=self.backend)}

    def of_snapshot(self, tag: str, **options: Any) -> Session:
        session = Sandbox(tag, self.backend, limits=self.limits(), pull="never", **options).create_session()
        self.rig._own.append(session)
        return session

    @needs(Feature.SNAPSHOTS)
    def test_a_new_session_starts_with_root_filesystem_and_workspace(self, tag: str) -> None:
        """Both; and what the new one changes is its own."""
        with self.create(env={"SECRET": "s3cret"}) as session:
            sh(
                session,
                "mkdir -p folder/deep; echo work >folder/deep/file; chmod 640 folder/deep/file; ln -s deep folder/l",
            ).check()
            sh(session, "echo root >/root/file; chmod 4711 /root/file").check()
            before = session.snapshot(tag)
            sh(session, "echo later >folder/deep/file; echo later >/root/file").check()
        assert (before.tag, before.session_id) == (tag, session.id)
        for _ in range(2):
            with self.of_snapshot(tag) as again:
                assert read(again, "folder/deep/file") == "work\n"
                assert read(again, "folder/l/file") == "work\n"
                assert sh(again, "stat -c %a folder/deep/file").stdout == "640\n"
                assert read(again, "/root/file") == "root\n"
                sh(again, "echo changed >>folder/deep/file; echo changed >>/root/file").check()
                assert "s3cret" not in sh(again, "env").stdout

    @needs(Feature.SNAPSHOTS, Feature.IMAGES, Feature.USERS)
    def test_files_of_a_snapshot_belong_to_the_sessions_user(self, tag: str) -> None:
        """Also where that is not root."""
        with self.create("nonroot") as session:
            sh(session, "echo mine >file").check()
            session.snapshot(tag)
        with self.of_snapshot(tag) as again:
            assert sh(again, "id -u; echo more >>file; cat file").stdout == "1000\nmine\nmore\n"

    @needs(Feature.SNAPSHOTS)
    def test_snapshots_are_listed_and_removed(self, tag: str) -> None:
        """By their tags alone; an image that is none of ours is not removed."""
        with self.create() as session:
            session.snapshot(tag)
        (found,) = [found for found in list_snapshots(backend=self.backend) if found.tag == tag]
        assert found.session_id == session.id
        assert found.created is not None
        assert found.size > 0
        remove_snapshot(tag, backend=self.backend)
        assert tag not in self.tags()
        for missing in (tag, self.images.get("shell", "busybox")):
            with pytest.raises(ConfigError, match="list_snapshots"):
                remove_snapshot(missing, backend=self.backend)

    @needs(Feature.SNAPSHOTS)
    def test_a_snapshot_of_a_snapshot(self, tag: str) -> None:
        """As often as one likes; the newer of one tag replaces the older."""
        with self.create() as session:
            sh(session, "echo 1 >one").check()
            session.snapshot(tag)
        with self.of_snapshot(tag) as again:
            sh(again, "echo 2 >two; rm one").check()
            again.snapshot(tag)
        with self.of_snapshot(tag) as third:
            assert sh(third, "ls").stdout == "two\n"

    @needs(Feature.SNAPSHOTS)
    def test_nothing_of_sandboxkit_is_in_the_image(self, tag: str) -> None:
        """A container that a person makes of it is not taken for a session's."""
        with self.create() as session:
            session.snapshot(tag)
            assert session.exec("true").ok
        (found,) = [found for found in snapshots_of(self.backend, "x").list({}) if found.tag == tag]
        kept = {name for name, value in found.labels.items() if name.startswith("sandboxkit.") and value}
        assert kept == {"sandboxkit.snapshot", "sandboxkit.created"}

    @needs(Feature.SNAPSHOTS, Feature.RESUME)
    def test_a_stopped_session_can_be_made_an_image_of(self, tag: str) -> None:
        """Nothing of it moves, so this is the way to a consistent one."""
        session = self.lasting(keep=True)
        sh(session, "echo kept >file").check()
        session.stop()
        session.snapshot(tag)
        with self.of_snapshot(tag) as again:
            assert read(again, "file") == "kept\n"

    @needs(Feature.SNAPSHOTS)
    def test_a_failure_leaves_no_image(self, tag: str) -> None:
        """A lost session can't be made an image of."""
        session = self.create()
        (status,) = self.backend.list({"sandboxkit.session": session.id})
        self.backend.remove(status.id)
        with pytest.raises(SandboxError):
            session.snapshot(tag)
        assert tag not in self.tags()
        for wrong in ("", "UPPER", "a b", "-x", None):
            with pytest.raises(ConfigError, match="tag"):
                session.snapshot(wrong)  # type: ignore[arg-type]

    @needs(Feature.SNAPSHOTS, Feature.TMPFS)
    def test_a_snapshot_of_a_workspace_in_memory_is_refused(self, tag: str) -> None:
        """The engines can't read it."""
        with self.create(workspace=Workspace.tmpfs()) as session, pytest.raises(UnsupportedError, match="memory"):
            session.snapshot(tag)

    @without(Feature.SNAPSHOTS)
    def test_snapshots_are_unsupported(self) -> None:
        """A feature that is not declared raises."""
        with self.create() as session, pytest.raises(UnsupportedError, match="snapshot"):
            session.snapshot("conformance:v1")
        with pytest.raises(UnsupportedError, match="snapshot"):
            list_snapshots(backend=self.backend)
