"""Where a workspace's files live, and who may write to them."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigError, Security, Session, Workspace, prune
from sandboxkit.backend import Feature
from sandboxkit.backend_parts import Volumes, volumes_of
from sandboxkit.errors import ErrorCode, SessionBusyError, UnsupportedError

from ._inside import fresh, read, sh
from ._suite import Suite, needs, without
from ._threads import Background, together


class Workspaces(Suite):
    """`Workspace.volume` and `Workspace.bind`; `ephemeral` is every other test's."""

    @property
    def volumes(self) -> Volumes:
        return volumes_of(self.backend, "volumes")

    @pytest.fixture
    def volume(self) -> Iterator[str]:
        """A name that no other test uses; the volume is removed afterwards, if there is one."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        yield name
        for session in self.rig._own:
            session.destroy()
        assert self.volumes.remove(name)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder of this host that belongs to whoever the engine works as."""
        folder = tmp_path / "project"
        folder.mkdir()
        if self.info.rootless and os.geteuid() == 0:
            owner = os.stat(self.info.url.removeprefix("unix://"))
            for each in (tmp_path, *tmp_path.parents):
                if not each.stat().st_mode & stat.S_IXOTH:
                    each.chmod(0o755)
            os.chown(folder, owner.st_uid, owner.st_gid)
        return folder

    def bound(self, folder: Path, **options: Any) -> Workspace:
        return Workspace.bind(folder, allowed=[folder.parent], **options)

    @needs(Feature.VOLUMES)
    def test_files_in_a_volume_are_there_for_the_next_session(self, volume: str) -> None:
        """`.volume(name, create=True, keep=True)`."""
        with self.create(workspace=Workspace.volume(volume)) as session:
            sh(session, "mkdir folder; echo kept >folder/file; chmod 640 folder/file").check()
        with self.create(workspace=Workspace.volume(volume, create=False)) as session:
            assert read(session, "folder/file") == "kept\n"
            assert sh(session, "stat -c %a folder/file").stdout == "640\n"
            sh(session, "echo more >>folder/file").check()

    @needs(Feature.VOLUMES)
    def test_a_missing_volume_is_refused_without_create(self) -> None:
        """And not made."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        with pytest.raises(ConfigError, match=name) as caught:
            self.create(workspace=Workspace.volume(name, create=False))
        assert caught.value.details["field"] == "workspace.name"
        assert self.volumes.inspect(name) is None

    @needs(Feature.VOLUMES)
    def test_a_volume_that_is_not_kept_goes_with_its_session(self) -> None:
        """`keep=False`; with the session, not before."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        with self.create(workspace=Workspace.volume(name, keep=False)) as session:
            sh(session, "echo x >file").check()
            prune(backend=self.backend)
            assert self.volumes.inspect(name) is not None
        assert self.volumes.inspect(name) is None

    @needs(Feature.VOLUMES)
    def test_an_existing_volume_is_kept_whatever_keep_says(self, volume: str) -> None:
        """A session removes only what was made for it."""
        self.volumes.ensure(volume, {})
        with self.create(workspace=Workspace.volume(volume, keep=False)) as session:
            sh(session, "echo x >file").check()
        assert self.volumes.inspect(volume) is not None

    @needs(Feature.VOLUMES)
    def test_a_volume_of_a_session_that_could_not_start_is_rolled_back(self) -> None:
        """A failure rolls back what was made; what was there stays."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        start = self.backend.start

        def fail(container_id: str) -> None:
            raise ConfigError("no")

        for existed in (False, True):
            if existed:
                self.volumes.ensure(name, {})
            self.backend.start = fail  # type: ignore[method-assign]
            try:
                with pytest.raises(ConfigError, match="no"):
                    self.create(workspace=Workspace.volume(name))
            finally:
                self.backend.start = start  # type: ignore[method-assign]
            assert (self.volumes.inspect(name) is not None) is existed
        assert self.volumes.remove(name)

    @needs(Feature.VOLUMES)
    def test_a_second_session_on_a_volume_is_refused(self, volume: str) -> None:
        """One writer a named volume; the first is not disturbed, and once it is gone the next may."""
        with self.create(workspace=Workspace.volume(volume)) as session:
            for second in (Workspace.volume(volume), Workspace.volume(volume, shared=True)):
                with pytest.raises(SessionBusyError, match=session.id) as caught:
                    self.create(workspace=second)
                assert caught.value.code is ErrorCode.SESSION_BUSY
                assert caught.value.details["volume"] == volume
            assert session.exec("true").ok
        with self.create(workspace=Workspace.volume(volume)) as session:
            assert session.exec("true").ok

    @needs(Feature.VOLUMES)
    def test_of_sessions_made_at_once_on_a_volume_one_wins(self, volume: str) -> None:
        """Never two, and not none."""

        def attempt() -> Session | None:
            try:
                return self.create(workspace=Workspace.volume(volume))
            except SessionBusyError:
                return None

        for _ in range(3):
            made = [session for session in together([attempt] * 3) if session is not None]
            assert len(made) == 1
            made[0].destroy()

    @needs(Feature.VOLUMES)
    def test_a_shared_volume_is_written_by_several(self, volume: str) -> None:
        """`shared=True`, if all say so; by different users too."""
        shared = Workspace.volume(volume, shared=True)
        with self.create(workspace=shared) as one, self.create(workspace=shared) as other:
            sh(one, "echo one >one").check()
            sh(other, "echo other >other").check()
            assert (read(one, "other"), read(other, "one")) == ("other\n", "one\n")
            with pytest.raises(SessionBusyError):
                self.create(workspace=Workspace.volume(volume))

    @needs(Feature.VOLUMES, Feature.USERS)
    @pytest.mark.parametrize("user", [None, "1000:1000", "app", "4321"])
    def test_a_volume_is_writable_for_the_sessions_user(self, volume: str, user: str | None) -> None:
        """Writable by the session's user on every engine, root or not, with a read-only root too."""
        for readonly_rootfs in (False, True):
            security = Security(user=user, readonly_rootfs=readonly_rootfs)
            with self.create(workspace=Workspace.volume(volume), security=security) as session:
                sh(session, 'echo x >"$1" && mkdir "$1.d"', fresh()).check()
                if readonly_rootfs:
                    sh(session, "echo x >/tmp/file").check()
                    assert not sh(session, "echo x >/file").ok

    @needs(Feature.VOLUMES, Feature.USERS, Feature.IMAGES)
    def test_a_volume_follows_its_sessions_user(self, volume: str) -> None:
        """First root's, then an image's own user's."""
        with self.create(workspace=Workspace.volume(volume)) as session:
            sh(session, "echo root >root").check()
        with self.create("nonroot", workspace=Workspace.volume(volume)) as session:
            assert sh(session, "id -u").stdout == "1000\n"
            assert read(session, "root") == "root\n"
            sh(session, "echo app >app").check()

    @needs(Feature.BINDS)
    def test_a_folder_of_the_host_is_read_and_written(self, folder: Path) -> None:
        """`.bind(host_path)`; what is written belongs to the folder's owner."""
        (folder / "given").write_text("from the host\n")
        with self.create(workspace=self.bound(folder)) as session:
            assert read(session, "given") == "from the host\n"
            sh(session, "echo from inside >made").check()
        assert (folder / "made").read_text() == "from inside\n"
        assert (folder / "made").stat().st_uid == folder.stat().st_uid

    @needs(Feature.BINDS)
    def test_a_read_only_folder_is_only_read(self, folder: Path) -> None:
        """`read_only=True`."""
        (folder / "given").write_text("from the host\n")
        with self.create(workspace=self.bound(folder, read_only=True)) as session:
            assert read(session, "given") == "from the host\n"
            assert not sh(session, "echo x >made").ok
            assert not sh(session, "rm given").ok
        assert [path.name for path in folder.iterdir()] == ["given"]

    @needs(Feature.BINDS)
    def test_a_folder_outlives_its_session(self, folder: Path) -> None:
        """Whatever ends it."""
        session = self.create(workspace=self.bound(folder))
        running = Background(lambda: sh(session, "echo x >made; exec sleep 1000"))
        while not (folder / "made").exists():
            session.exec("true")
        session.destroy()
        with pytest.raises(Exception, match="destroyed"):
            running.result()
        assert (folder / "made").exists()

    @needs(Feature.BINDS)
    def test_dangerous_folders_are_refused(self, tmp_path: Path) -> None:
        """Refuses `/`, the engine's socket, home and anything not owned or listed."""
        home = os.path.expanduser("~")
        link = tmp_path / "link"
        link.symlink_to("/")
        (tmp_path / "file").touch()
        for wrong in (
            "/",
            home,
            "/etc",
            "/proc",
            "/var/run",
            "/usr",
            str(link),
            "relative",
            tmp_path / "missing",
            tmp_path / "file",
        ):
            for allowed in ((), ("/",)):
                with pytest.raises(ConfigError, match="host_path"):
                    Workspace.bind(wrong, allowed=allowed)
        for wrong in ("/etc/ssl", "/usr/share", "/sys/kernel"):
            with pytest.raises(ConfigError, match="host_path"):
                Workspace.bind(wrong)

    @without(Feature.VOLUMES)
    def test_a_volume_is_unsupported(self) -> None:
        """A feature that is not declared raises."""
        with pytest.raises(UnsupportedError, match=r"Workspace\.volume"):
            self.create(workspace=Workspace.volume("conformance"))

    @without(Feature.BINDS)
    def test_a_bind_is_unsupported(self, tmp_path: Path) -> None:
        """A feature that is not declared raises."""
        with pytest.raises(UnsupportedError, match=r"Workspace\.bind"):
            self.create(workspace=Workspace.bind(tmp_path))
