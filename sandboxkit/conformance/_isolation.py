"""What a command can't do and what a limit holds, seen from inside."""

from __future__ import annotations

import pytest

from sandboxkit import Limits, Network, Security, Session, Workspace
from sandboxkit.backend import AGENT_FOLDER, Feature
from sandboxkit.errors import ErrorCode, ImageNotFoundError

from ._inside import fresh, sh
from ._suite import Suite, Trait, needs
from ._watch import Stopwatch, allowed


def status(session: Session, process: str = "self") -> dict[str, str]:
    """/proc/PID/status."""
    lines = session.exec("cat", [f"/proc/{process}/status"]).check().stdout.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mounts(session: Session) -> dict[str, tuple[str, set[str]]]:
    """/proc/self/mounts: from the mount point to type and options."""
    lines = session.exec("cat", ["/proc/self/mounts"]).check().stdout.splitlines()
    return {point: (kind, set(options.split(","))) for _, point, kind, options, *_ in map(str.split, lines)}


class Confinement(Suite):
    """seen from inside."""

    @needs(Feature.ISOLATION)
    @pytest.mark.parametrize("process", ["self", "1"])
    def test_every_capability_is_dropped(self, session: Session, process: str) -> None:
        """For commands and for the agent alike."""
        found = status(session, process)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(found[name], 16) == 0, name

    @needs(Feature.ISOLATION)
    @pytest.mark.parametrize("process", ["self", "1"])
    def test_no_new_privileges_is_in_force(self, session: Session, process: str) -> None:
        """podman-py#502: the same setting is effective on each engine."""
        assert status(session, process)["NoNewPrivs"] == "1"

    @needs(Feature.ISOLATION)
    @pytest.mark.parametrize("process", ["self", "1"])
    def test_a_seccomp_filter_is_in_force(self, session: Session, process: str) -> None:
        """The engine's default seccomp profile."""
        assert status(session, process)["Seccomp"] == "2"

    @needs(Feature.ISOLATION)
    def test_the_network_is_off(self, session: Session) -> None:
        """Network none: loopback alone, no route, nothing can be reached."""
        lines = session.exec("cat", ["/proc/net/dev"]).check().stdout.splitlines()
        assert [line.split(":")[0].strip() for line in lines[2:]] == ["lo"]
        assert session.exec("cat", ["/proc/net/route"]).check().stdout.splitlines()[1:] == []

    @needs(Feature.ISOLATION)
    def test_privileged_calls_are_refused(self, session: Session) -> None:
        """None of these works without capabilities, as root or not."""
        for command, args in (
            ("mount", ["-t", "tmpfs", "none", "/mnt"]),
            ("chroot", ["/", "true"]),
            ("mknod", [fresh(), "c", "1", "3"]),
            ("hostname", ["other"]),
            ("unshare", ["-m", "true"]),
            ("dmesg", []),
        ):
            assert not session.exec(command, args).ok, command

    @needs(Feature.ISOLATION, Trait.OWN_FILES)
    def test_the_kernels_settings_cannot_be_written(self, session: Session) -> None:
        """Nothing of the host can be changed."""
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname"):
            assert not sh(session, 'echo x >"$1"', path).ok, path

    @needs(Feature.ISOLATION, Trait.OWN_FILES)
    def test_nothing_of_the_host_is_mounted(self, session: Session) -> None:
        """No host mounts: beside the kernel's own there are the workspace and the agent's folder."""
        found = mounts(session)
        assert {session.workspace, AGENT_FOLDER} <= set(found)
        for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/host"):
            assert not session.exec("test", ["-e", path]).ok, path
        kernels = {"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs", "ramfs"}
        # Engines write these three for each container.
        files = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv", "/.dockerenv"}
        ours = {"/", session.workspace, AGENT_FOLDER}
        strange = {
            point: kind for point, (kind, _) in found.items() if kind not in kernels and point not in files | ours
        }
        assert strange == {}

    @needs(Trait.OWN_FILES)
    def test_the_agents_folder_cannot_be_written(self, session: Session) -> None:
        """Its volume is mounted read-only, so no command can put another agent there."""
        assert "ro" in mounts(session)[AGENT_FOLDER][1]
        assert not sh(session, f"echo x >{AGENT_FOLDER}/new").ok
        assert not sh(session, f"echo x >>{AGENT_FOLDER}/agent").ok
        assert not sh(session, f"rm {AGENT_FOLDER}/agent").ok

    @needs(Trait.OWN_PROCESSES)
    def test_the_agent_is_pid_1_and_has_no_more_than_a_command(self, session: Session) -> None:
        """Same user and no more capability than the commands it runs."""
        agent, command = status(session, "1"), status(session)
        for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "NoNewPrivs", "Seccomp"):
            assert agent[name] == command[name], name

    @needs(Feature.ISOLATION)
    def test_set_user_id_gives_nothing(self) -> None:
        """No-new-privileges: a set-uid program of root's runs as its caller."""
        with self.create("nonroot") as session:
            assert session.exec("id", ["-u"]).check().stdout == "1000\n"
            # A set-uid root file can't be made by user 1000; the setting is what makes one in an image harmless.
            assert status(session)["NoNewPrivs"] == "1"
            assert not sh(session, "echo x >/etc/passwd").ok

    @needs(Feature.ISOLATION)
    def test_descriptors_and_processes_are_limited(self, session: Session) -> None:
        """Nofile and nproc set explicitly."""
        limits = session.exec("cat", ["/proc/self/limits"]).check().stdout.splitlines()
        values = {line[:26].strip(): line[26:].split()[:2] for line in limits}
        for name in ("Max open files", "Max processes"):
            assert all(value.isdigit() for value in values[name]), values[name]

    @needs(Feature.READONLY_ROOTFS)
    def test_a_read_only_root_leaves_the_workspace_and_tmp(self) -> None:
        """llm-sandbox#121: only the workspace and /tmp are writable."""
        with self.create(security=Security(readonly_rootfs=True)) as session:
            for folder, writable in (("/", False), ("/etc", False), ("/tmp", True), (session.workspace, True)):
                assert sh(session, 'echo x >"$1/new"', folder).ok is writable, folder

    @needs(Feature.READONLY_ROOTFS, Feature.USERS)
    def test_a_read_only_root_works_for_a_user_other_than_root(self) -> None:
        """llm-sandbox#121: read-only root, non-root user."""
        with self.create(security=Security(readonly_rootfs=True, user="1000")) as session:
            assert session.exec("id", ["-u"]).check().stdout == "1000\n"
            for folder, writable in (("/", False), ("/etc", False), ("/tmp", True), (session.workspace, True)):
                assert sh(session, 'echo x >"$1/new"', folder).ok is writable, folder

    @needs(Feature.USERS)
    @pytest.mark.parametrize(
        ("user", "uid", "gid"), [("1000", "1000", None), ("1000:1000", "1000", "1000"), ("app", "1000", "1000")]
    )
    def test_a_user_can_be_chosen(self, user: str, uid: str, gid: str | None) -> None:
        """`Security.user`: name, uid or uid:gid; the workspace is theirs to write."""
        with self.create(security=Security(user=user)) as session:
            assert session.exec("id", ["-u"]).check().stdout == f"{uid}\n"
            if gid is not None:
                assert session.exec("id", ["-g"]).check().stdout == f"{gid}\n"
            assert sh(session, "echo x >new && mkdir folder").ok

    @needs(Feature.TMPFS)
    def test_a_workspace_in_memory_is_bounded(self) -> None:
        """`Workspace.tmpfs`: at most size_mb MiB, a tmpfs."""
        with self.create(workspace=Workspace.tmpfs(size_mb=8)) as session:
            assert mounts(session)[session.workspace][0] == "tmpfs"
            assert sh(session, "head -c 7000000 /dev/zero >some").ok
            full = sh(session, "head -c 7000000 /dev/zero >more")
            assert not full.ok
            assert session.exec("echo", ["next"]).stdout == "next\n"

    @needs(Feature.TMPFS, Feature.USERS)
    def test_a_workspace_in_memory_belongs_to_the_user(self) -> None:
        """Whoever the commands run as can write it."""
        with self.create(workspace=Workspace.tmpfs(size_mb=8), security=Security(user="1000")) as session:
            assert sh(session, "echo x >new").ok

    @needs(Feature.BRIDGE)
    def test_a_bridge_is_there_when_asked_for(self) -> None:
        """`Network.bridge`: a network beside loopback."""
        with self.create(network=Network.bridge()) as session:
            lines = session.exec("cat", ["/proc/net/dev"]).check().stdout.splitlines()
            assert len([line for line in lines[2:] if line.split(":")[0].strip() != "lo"]) == 1


class EnforcedLimits(Suite):
    """Memory and process limits, where the engine enforces them; see also `test_a_limit_is_in_force_or_refused`."""

    @needs(Feature.LIMITS)
    def test_a_command_out_of_memory_is_told_so(self) -> None:
        """Out of memory → 137, SIGKILL and oom_killed=True; the agent is the last to be killed."""
        if "memory" not in self.info.enforceable:
            return
        with self.create(limits=Limits(memory_mb=64)) as session:
            result = sh(session, "exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'", timeout=60)
            assert (result.exit_code, result.signal, result.oom_killed) == (137, "SIGKILL", True)
            assert (result.timed_out, result.aborted) == (False, False)
            plain = sh(session, "kill -9 $$")
            assert (plain.exit_code, plain.oom_killed) == (137, False)

    @needs(Feature.LIMITS)
    def test_a_fork_bomb_ends_at_its_timeout_and_the_session_goes_on(self) -> None:
        """With no process left to make, a timeout must still kill."""
        if "pids" not in self.info.enforceable:
            return
        with self.create(limits=Limits(pids=64)) as session:
            with Stopwatch() as watch:
                result = sh(session, "bomb() { bomb | bomb & }; bomb; sleep 1000", timeout=1, kill_grace=0.2)
            assert (result.timed_out, result.exit_code) == (True, None)
            assert watch.seconds < allowed(1.25)
            assert session.exec("echo", ["next"]).check().stdout == "next\n"

    @needs(Feature.LIMITS)
    def test_no_more_processes_than_the_limit(self) -> None:
        """Pids counts all of the container."""
        if "pids" not in self.info.enforceable:
            return
        with self.create(limits=Limits(pids=32)) as session:
            result = sh(
                session,
                "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo $(ls /proc | grep -c '^[0-9]')",
            )
            assert result.exit_code != 0 or int(result.stdout) <= 32
            assert result.stderr


class Images(Suite):
    """Images that have little or nothing in them, or are not there."""

    @needs(Feature.IMAGES)
    @pytest.mark.parametrize("command", ["sh", "/bin/sh", "ls", "true", "./x"])
    def test_an_empty_image_answers_127_to_everything(self, command: str) -> None:
        """The `empty` image answers 127: nothing needs to be in an image."""
        result = self.rig.shared("empty").exec(command)
        assert (result.exit_code, result.stdout_bytes) == (127, b"")
        assert command in result.stderr

    @needs(Feature.IMAGES)
    def test_an_image_of_one_static_binary_runs_it(self) -> None:
        """No shell is needed."""
        result = self.rig.shared("static").exec("/hello", ["one", "two words"])
        assert result.check().stdout == "hello from a static binary\n/hello\none\ntwo words\n"
        assert self.rig.shared("static").exec("sh").exit_code == 127

    @needs(Feature.IMAGES)
    def test_an_images_own_user_stays(self) -> None:
        """The image's user stays, unless set; the workspace is theirs to write."""
        session = self.rig.shared("nonroot")
        assert session.exec("id", ["-u"]).check().stdout == "1000\n"
        assert sh(session, "echo x >new && mkdir folder && rm new").ok

    @needs(Feature.IMAGES)
    @pytest.mark.parametrize("command", ["python", "python3"])
    def test_a_python_image_runs_python(self, python_session: Session, command: str) -> None:
        """The commonest use."""
        result = python_session.exec(command, ["-c", "import sys; print(6 * 7); sys.exit(3)"])
        assert (result.stdout, result.exit_code) == ("42\n", 3)

    @needs(Feature.IMAGES)
    def test_a_missing_image_is_named_with_the_way_to_get_it(self) -> None:
        """A missing image with pull="never" names the image and says how to get it."""
        image = "localhost/sandboxkit-test/no-such-image:1"
        with pytest.raises(ImageNotFoundError, match=image) as caught:
            self.create(image, pull="never")
        assert caught.value.code is ErrorCode.IMAGE_NOT_FOUND
        assert "pull" in str(caught.value)

    @needs(Feature.IMAGES)
    def test_an_image_that_cannot_be_pulled_is_named(self) -> None:
        """`ensure_image`: the same error when a pull was tried in vain."""
        image = "localhost:1/sandboxkit-test/no-such-image:1"
        with pytest.raises(ImageNotFoundError, match=image):
            self.create(image, pull="missing")

    @needs(Feature.IMAGES)
    @pytest.mark.parametrize("pull", ["missing", "never"])
    def test_an_image_that_is_there_is_not_pulled(self, pull: str) -> None:
        """`Pull.MISSING`: only if the engine lacks it; no registry is asked."""
        told: list[object] = []
        with self.create(pull=pull, on_pull=told.append) as session:
            assert session.exec("true").ok
        assert told == []
