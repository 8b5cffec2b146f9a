"""Limits by cgroups where there are any, by rlimits where not, and never a silent nothing."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from sandboxkit_bubblewrap import BubblewrapBackend
from sandboxkit_bubblewrap._cgroups import Controllers, Group, Values, find_controllers
from sandboxkit_bubblewrap._limits import Fallback

from sandboxkit import EngineError, Limits, LimitsNotEnforceableError, Sandbox, Session

MIB = 1024 * 1024
NONE = Controllers(1, {})
FORKS = "i=0; while [ $i -lt {} ]; do sleep 1000 & i=$((i+1)); done; echo made it"


@pytest.fixture
def without_cgroups(monkeypatch: pytest.MonkeyPatch) -> BubblewrapBackend:
    """As for an ordinary user to whom no cgroup is delegated."""
    monkeypatch.setattr("sandboxkit_bubblewrap._backend.find_controllers", lambda: NONE)
    return BubblewrapBackend.connect()


def group_of(session: Session) -> Group | None:
    """As the kernel has it at this moment."""
    controllers = find_controllers()
    folders = {
        limit: folder
        for limit, parent in controllers.parents.items()
        for folder in parent.glob(f"*sandboxkit-{session.id}")
    }
    return Group(controllers.version, folders, Limits()) if folders else None


def test_what_can_be_enforced_is_what_the_kernel_offers(backend: BubblewrapBackend) -> None:
    info = backend.info()
    assert "disk" in info.enforceable
    assert info.enforceable - {"disk"} == find_controllers().parents.keys()
    if os.geteuid() == 0:
        assert {"memory", "pids"} <= info.enforceable
    names = {"memory": "limits.memory_mb", "pids": "limits.pids", "cpus": "limits.cpus"}
    told = {note.split(":")[0] for note in info.notes if note.startswith("limits.")}
    assert told == {name for limit, name in names.items() if limit not in info.enforceable}


class TestGroups:
    """With cgroups. An ordinary user may have none: then there is nothing to see here."""

    def test_they_are_in_force_and_gone_afterwards(self, backend: BubblewrapBackend) -> None:
        if not {"memory", "pids", "cpus"} <= backend.info().enforceable:
            return
        with Sandbox("host", backend, limits=Limits(memory_mb=100, pids=50, cpus=0.5)).create_session() as session:
            group = group_of(session)
            assert group is not None
            assert group.read() == Values(memory_bytes=100 * MIB, pids=50, cpus=0.5)
            status = backend.inspect(f"sandboxkit-{session.id}")
            assert (status.effective.memory_bytes, status.effective.pids, status.effective.cpus) == (100 * MIB, 50, 0.5)
        assert group_of(session) is None

    def test_cpu_time_is_bounded(self, backend: BubblewrapBackend) -> None:
        if "cpus" not in backend.info().enforceable:
            return
        with Sandbox.host(limits=Limits(cpus=0.2, allow_unenforced=True)).create_session() as session:
            result = session.exec("timeout", ["3", "sh", "-c", "while :; do :; done"])
        assert result.exit_code == 124
        assert result.cpu_seconds < 3 * 0.2 + 0.5

    def test_memory_is_bounded_over_all_processes_and_files(self, backend: BubblewrapBackend) -> None:
        if "memory" not in backend.info().enforceable:
            return
        with Sandbox.host(limits=Limits(memory_mb=64, allow_unenforced=True)).create_session() as session:
            hog = "exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'"
            result = session.shell(hog, timeout=60)
            assert (result.exit_code, result.oom_killed) == (137, True)
            # Half of it is the workspace's; a full one is no reason to kill anybody.
            full = session.shell("head -c 100000000 /dev/zero >file")
            assert "No space left" in full.stderr
            assert session.exec("echo", ["next"]).stdout == "next\n"

    def test_those_of_a_process_that_is_gone_are_swept(self) -> None:
        controllers = find_controllers()
        if not controllers.parents:
            return
        with subprocess.Popen(["true"]) as gone:
            pass
        namespace = os.stat("/proc/self/ns/pid").st_ino
        stale = f"sandboxkit.{namespace}.{gone.pid}.1.sandboxkit-stale"
        elsewhere = f"sandboxkit.1.{gone.pid}.1.sandboxkit-elsewhere"
        parents = set(controllers.parents.values())
        for parent in parents:
            (parent / stale).mkdir()
            (parent / elsewhere).mkdir()
        own = controllers.group("sandboxkit-own", Limits())
        for folder in own.folders.values():
            folder.mkdir()
        try:
            controllers.sweep()
            assert not any((parent / stale).exists() for parent in parents)
            assert all((parent / elsewhere).exists() for parent in parents)
            assert all(folder.exists() for folder in own.folders.values())
        finally:
            own.remove()
            for parent in parents:
                (parent / elsewhere).rmdir()
        assert not any(folder.exists() for folder in own.folders.values())

    def test_a_controller_that_is_not_asked_for_is_left_alone(self) -> None:
        group = find_controllers().group("sandboxkit-few", Limits(memory_mb=None, pids=None, cpus=None))
        assert group.folders == {}
        assert list(group.orders()) == []

    def test_one_that_cannot_be_made_is_told_and_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        controllers = find_controllers()
        if "pids" not in controllers.parents:
            return

        def orders(self: Group) -> Iterator[str]:
            yield f"+{self.folders['pids']}"
            yield f"={self.folders['pids']}/pids.max\tnonsense"

        monkeypatch.setattr(Group, "orders", orders)
        with pytest.raises(EngineError, match="bubblewrap could not make the sandbox"):
            Sandbox.host().create_session(id="no-such-limit")
        assert not [found for parent in controllers.parents.values() for found in parent.glob("*no-such-limit")]


class TestVersion2:
    """On a made-up tree: the host of these tests may have version 1."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Callable[..., Path]:
        def make(own: str, handed_down: dict[str, str], controllers: str = "cpu memory pids") -> Path:
            mount = tmp_path / "cgroup"
            for folder in ("", "user", "user/app", "user/app/own"):
                (mount / folder).mkdir()
                (mount / folder / "cgroup.procs").touch()
                (mount / folder / "cgroup.controllers").write_text(controllers)
                (mount / folder / "cgroup.subtree_control").write_text(handed_down.get(folder, ""))
            proc = tmp_path / "proc"
            proc.mkdir()
            proc.joinpath("cgroup").write_text(f"0::{own}\n")
            proc.joinpath("mountinfo").write_text(f"30 23 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
            return proc

        return make

    def test_the_nearest_that_hands_the_controllers_down_is_taken(
        self, tree: Callable[..., Path], tmp_path: Path
    ) -> None:
        proc = tree("/user/app/own", {"user": "memory pids cpu", "user/app": "memory pids cpu"})
        # A plain file keeps the last word written to it alone: nothing is enabled in "own", as where a kernel refuses.
        found = find_controllers(proc=proc, is_root=False)
        assert found.version == 2
        assert set(found.parents.values()) == {tmp_path / "cgroup/user/app"}

    def test_without_controllers_there_is_nothing(self, tree: Callable[..., Path]) -> None:
        proc = tree("/user/app/own", {}, controllers="")
        assert find_controllers(proc=proc, is_root=False).parents == {}

    def test_what_is_not_this_users_is_not_taken(self, tree: Callable[..., Path], tmp_path: Path) -> None:
        if os.geteuid() == 0:
            return  # to root everything is writable
        proc = tree("/user/app/own", {"user": "memory pids", "user/app": ""}, controllers="")
        tmp_path.joinpath("cgroup/user").chmod(0o500)
        assert find_controllers(proc=proc, is_root=False).parents == {}

    def test_the_limits_are_written_and_read(self, tmp_path: Path) -> None:
        controllers = Controllers(2, dict.fromkeys(("memory", "pids", "cpus"), tmp_path))
        group = controllers.group("session", Limits(memory_mb=100, pids=50, cpus=1.5))
        (folder,) = set(group.folders.values())
        assert list(group.orders()) == [
            f"+{folder}",
            f"={folder}/memory.max\t{100 * MIB}",
            f"?{folder}/memory.swap.max\t0",
            f"={folder}/pids.max\t50",
            f"={folder}/cpu.max\t150000 100000",
            f"@{folder}/cgroup.procs",
        ]
        assert list(group.mounts()) == [(folder, "/sys/fs/cgroup")]
        folder.mkdir()
        values = {"memory.max": str(100 * MIB), "pids.max": "50", "cpu.max": "150000 100000"}
        for file, value in values.items():
            folder.joinpath(file).write_text(f"{value}\n")
        assert group.read() == Values(memory_bytes=100 * MIB, pids=50, cpus=1.5)
        folder.joinpath("cpu.max").write_text("max 100000\n")
        folder.joinpath("memory.max").write_text("max\n")
        assert group.read() == Values(memory_bytes=0, pids=50, cpus=0.0)

    def test_what_is_not_limited_has_no_group(self, tmp_path: Path) -> None:
        controllers = Controllers(2, dict.fromkeys(("memory", "pids", "cpus"), tmp_path))
        group = controllers.group("session", Limits(memory_mb=None, pids=None))
        assert list(group.mounts()) == []
        assert group.read() == Values()


class TestWithoutGroups:
    """Second best, and said so."""

    def test_a_limit_that_would_be_ignored_is_refused(self, without_cgroups: BubblewrapBackend) -> None:
        sandbox = Sandbox("host", without_cgroups)
        with pytest.raises(LimitsNotEnforceableError, match=r"limits\.memory_mb, limits\.pids") as caught:
            sandbox.create_session()
        assert caught.value.details["limits"] == ["memory_mb", "pids"]
        with pytest.raises(LimitsNotEnforceableError, match=r"limits\.cpus"):
            Sandbox("host", without_cgroups, limits=Limits(memory_mb=None, pids=None, cpus=1)).create_session()
        with Sandbox(
            "host", without_cgroups, limits=Limits(memory_mb=None, pids=None, disk_mb=8)
        ).create_session() as session:
            assert session.exec("true").ok

    def test_rlimits_stand_in_when_that_is_allowed(self, without_cgroups: BubblewrapBackend) -> None:
        limits = Limits(memory_mb=200, pids=40, allow_unenforced=True)
        with Sandbox("host", without_cgroups, limits=limits).create_session() as session:
            lines = session.exec("cat", ["/proc/self/limits"]).stdout.splitlines()
            values = {line[:26].strip(): line[26:].split()[:2] for line in lines}
            assert values["Max data size"] == [str(200 * MIB)] * 2
            assert values["Max processes"] == ["40"] * 2
            hog = session.shell("exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'", timeout=60)
            assert not hog.ok
            assert not hog.timed_out
            bomb = session.shell(
                "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo made it", timeout=60
            )
            assert bomb.stdout == ""
            assert "ork" in bomb.stderr
        notes = without_cgroups.info().notes
        assert any(note.startswith("limits.memory_mb:") and "RLIMIT_DATA" in note for note in notes)
        assert any(note.startswith("limits.pids:") and "RLIMIT_NPROC" in note for note in notes)
        assert any(note.startswith("limits.cpus:") for note in notes)

    def test_two_sandboxes_do_not_count_together(self, without_cgroups: BubblewrapBackend) -> None:
        sandbox = Sandbox("host", without_cgroups, limits=Limits(pids=40, allow_unenforced=True))
        fill = FORKS.format(30)
        with sandbox.create_session() as one, sandbox.create_session() as other:
            assert one.shell(fill).stdout == "made it\n"
            assert other.shell(fill).stdout == "made it\n"

    def test_on_an_old_kernel_processes_cannot_be_counted_and_it_is_said(self) -> None:
        fallback = Fallback.where(NONE, privileged=False)
        old = attrs.evolve(fallback, pids_are_its_own=False)
        numbers = {number: soft for number, soft, _ in old.rlimits(Limits(pids=40))}
        assert numbers[resource.RLIMIT_NPROC] > 40
        assert any("bounds nothing" in note for note in old.notes() if note.startswith("limits.pids:"))
