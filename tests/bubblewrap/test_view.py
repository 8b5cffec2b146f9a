"""What a sandbox on the host's programs sees: files, environment, further folders, users, sizes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import attrs
import pytest
from sandboxkit_bubblewrap._limits import sizes_for
from sandboxkit_bubblewrap._paths import extra_folders, is_below
from sandboxkit_bubblewrap._privilege import Mapping, mapping_in

from sandboxkit import ConfigError, Limits, Network, Sandbox, Security, Session, UnsupportedError, Workspace
from tests.support.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def python_home(tmp_path: Path) -> Path:
    """A virtual environment of this very Python."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    folder.joinpath(
        "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "canary.py"
    ).write_text("WORD = 'found'\n")
    return folder


def create(limits: Limits, **options: object) -> Session:
    return Sandbox.host(limits=limits, **options).create_session()


def test_the_hosts_programs_run(session: Session) -> None:
    assert session.exec("awk", ["BEGIN { print 6 * 7 }"]).check().stdout == "42\n"
    assert session.shell("ls /usr/bin | head -1 && date && getent passwd sandbox").ok


def test_of_the_environment_there_are_path_lang_and_term(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/home/me/bin:/usr/games:relative:/opt/x/bin:/usr/bin")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("CANARY", "secret")
    with create(limits, env={"GIVEN": "x=y"}) as session:
        found = dict(line.split("=", 1) for line in session.exec("env").stdout.splitlines())
    path = found.pop("PATH").split(":")
    assert path[:2] == ["/usr/games", "/usr/bin"]
    assert not {"/home/me/bin", "relative", "/opt/x/bin"} & set(path)
    assert found == {"LANG": "C.UTF-8", "TERM": "dumb", "HOME": "/workspace", "PWD": "/workspace", "GIVEN": "x=y"}


def test_the_environment_is_in_no_list_of_processes(limits: Limits) -> None:
    with create(limits, env={"SECRET": "hunter2"}):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    assert b"hunter2" not in entry.joinpath("cmdline").read_bytes()
                except OSError:
                    continue


def test_a_virtual_environments_python_works(limits: Limits, python_home: Path) -> None:
    with create(limits, extra_paths=[python_home]) as session:
        for python in ("python", f"{python_home}/bin/python3"):
            result = session.exec(python, ["-c", "import canary, sys; print(canary.WORD, sys.prefix)"]).check()
            assert result.stdout.split() == ["found", str(python_home)]
        assert not session.shell(f"echo x >{python_home}/new").ok


def test_an_extra_folder_is_there_read_only_and_its_neighbours_are_not(limits: Limits) -> None:
    # Not below /tmp, of which a sandbox has its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name in ("shown", "hidden"):
            Path(folder, name).mkdir()
            Path(folder, name, "file").write_text("content")
        os.chmod(folder, 0o755)
        with create(limits, extra_paths=[f"{folder}/shown", "/usr/share"]) as session:
            assert session.exec("cat", [f"{folder}/shown/file"]).check().stdout == "content"
            assert session.exec("ls", [folder]).check().stdout == "shown\n"
            assert session.exec("ls", ["/var"]).check().stdout == "tmp\n"
            for path in (f"{folder}/shown/file", f"{folder}/shown/new", f"{folder}/new", "/var/new"):
                assert not session.shell(f"echo x >{path}").ok, path


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/no/such/folder",
            "/etc/passwd",
            "/",
            "/proc",
            "/proc/self",
            "/dev",
            "/dev/shm",
            "/sys/kernel",
            "/run",
            "/etc",
        ),
        *("/var/run", "/run/lock", "/tmp", "/usr"),
    ],
)
def test_an_extra_path_that_cannot_be_mounted_is_refused(limits: Limits, path: str) -> None:
    with pytest.raises(ConfigError, match=r"extra_paths\[1\] is ") as caught:
        create(limits, extra_paths=["/usr/share", path])
    assert caught.value.details["field"] == "extra_paths[1]"


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    tmp_path.joinpath("link").symlink_to("/run")
    with pytest.raises(ConfigError):
        extra_folders([str(tmp_path / "link")])


@pytest.mark.parametrize("paths", ["/usr", ["relative"], ["/a/../b"], [1], [""], ["/a\0"], {"/usr": 1}])
def test_malformed_extra_paths_are_refused_at_once(paths: object) -> None:
    with pytest.raises(ConfigError, match="extra_paths"):
        Sandbox.host(extra_paths=paths)


def test_a_pyvenv_cfg_brings_nothing_but_a_python(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.joinpath("bin").mkdir(parents=True)
    folder = tmp_path / "environment"
    folder.mkdir()
    folder.joinpath("pyvenv.cfg").write_text(f"home = {private}/bin\nversion = 3.11\n")
    assert extra_folders([str(folder)]) == [str(folder)]
    private.joinpath("lib/python3.11").mkdir(parents=True)
    private.joinpath("lib/python3.11/os.py").touch()
    assert extra_folders([str(folder)]) == [str(folder), str(private / "bin"), str(private / "lib")]


def test_paths_are_compared_by_whole_names() -> None:
    assert is_below("/usr", ["/usr"])
    assert is_below("/usr/x", ["/usr/"])
    assert not is_below("/usrx", ["/usr"])
    assert is_below("/x", ["/"])


@pytest.mark.parametrize(
    ("user", "uid", "gid"), [("2000", 2000, 2000), ("2000:3000", 2000, 3000), ("sandbox", 1000, 1000)]
)
def test_a_user_can_be_chosen(limits: Limits, user: str, uid: int, gid: int) -> None:
    with create(limits, security=Security(user=user)) as session:
        assert session.shell("id -u; id -g; touch /workspace/new").check().stdout == f"{uid}\n{gid}\n"


@pytest.mark.parametrize("user", ["0", "root", "0:0"])
def test_root_inside_is_nobody_outside(limits: Limits, user: str) -> None:
    with create(limits, security=Security(user=user)) as session:
        status = session.exec("cat", ["/proc/self/status"]).check().stdout
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert session.exec("id", ["-u"]).stdout == "0\n"
        assert session.shell("touch /workspace/new").ok
        assert not session.shell("echo 1 >/proc/sys/kernel/sysrq").ok
        assert not session.shell("touch /usr/new").ok


def test_commands_of_root_are_nobody_on_the_host(session: Session) -> None:
    seconds = f"1000.{os.getpid()}"
    with session.exec_stream("sleep", [seconds]) as stream:
        (entry,) = wait_until(lambda: _processes(f"sleep\0{seconds}\0".encode()), "the command runs")
        owner = entry.stat().st_uid
        stream.kill()
    assert owner >= 0x70000000 if os.geteuid() == 0 else owner == os.geteuid()


def _processes(command: bytes) -> list[Path]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.joinpath("cmdline").read_bytes() == command:
                    found.append(entry)
    return found


class TestSizes:
    """All that can be written is memory, and bounded."""

    @pytest.mark.parametrize(
        ("limits", "workspace", "expected"),
        [
            (Limits(memory_mb=1024), Workspace.ephemeral(), (512, 256, 64)),
            (Limits(memory_mb=1024, disk_mb=100), Workspace.ephemeral(), (100, 50, 50)),
            (Limits(memory_mb=1024, disk_mb=100), Workspace.tmpfs(size_mb=8), (8, 4, 4)),
        ],
    )
    def test_they_follow_from_the_limits(
        self, limits: Limits, workspace: Workspace, expected: tuple[int, int, int]
    ) -> None:
        sizes = sizes_for(limits, workspace)
        assert (sizes.workspace, sizes.tmp, sizes.shared_memory) == tuple(size * MIB for size in expected)

    def test_without_any_limit_it_is_half_of_the_memory(self) -> None:
        sizes = sizes_for(Limits(memory_mb=None), Workspace.ephemeral())
        assert sizes.workspace == sizes.tmp * 2 > MIB

    def test_a_full_disk_is_no_space_left(self, limits: Limits) -> None:
        with create(attrs.evolve(limits, disk_mb=8)) as session:
            full = session.shell("head -c 9000000 /dev/zero >file")
            assert not full.ok
            assert "No space left" in full.stderr
            assert session.exec("rm", ["file"]).ok
            assert not session.shell("head -c 9000000 /dev/zero >/tmp/file").ok
            assert session.exec("echo", ["next"]).stdout == "next\n"


class TestMappings:
    """Which user of the host a sandbox that root makes runs as."""

    def test_it_is_one_that_nobody_else_is(self) -> None:
        found = {mapping_in([(0, 1 << 32)], 1000, f"session-{number}").host for number in range(100)}
        assert len(found) == 100
        assert all(0x70000000 <= host < 0x80000000 for host in found)
        assert mapping_in([(0, 1 << 32)], 1000, "same") == mapping_in([(0, 1 << 32)], 1000, "same")

    def test_in_a_namespace_it_is_one_that_the_namespace_has(self) -> None:
        for session in map(str, range(100)):
            assert 32769 <= mapping_in([(0, 1), (1, 65536)], 1000, session).host <= 65536

    def test_roots_own_id_inside_makes_way_for_one_asked_for(self) -> None:
        assert Mapping(1000, 5).lines == "0 0 1\n1000 5 1\n"
        assert Mapping(0, 5).lines == "65533 0 1\n0 5 1\n"


def test_what_it_lacks_is_refused(limits: Limits) -> None:
    for options, name in (
        ({"network": Network.bridge()}, r"Network\.bridge"),
        ({"security": Security(runtime="runsc")}, r"security\.runtime"),
        ({"security": Security(seccomp='{"defaultAction": "SCMP_ACT_ALLOW"}')}, r"security\.seccomp"),
    ):
        with pytest.raises(UnsupportedError, match=f"The backend bubblewrap has no {name}"):
            create(limits, **options)


def test_a_named_image_is_refused(limits: Limits) -> None:
    with pytest.raises(ConfigError, match=r"image is 'python:3\.12'; accepted by the backend bubblewrap: 'host'"):
        Sandbox("python:3.12", "bubblewrap", limits=limits).create_session()


ASK = """
import sandboxkit
try:
    print(sandboxkit.Sandbox("busybox").engine().backend)
except sandboxkit.SandboxError as error:
    print(error)
"""


def test_auto_never_means_it(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": "unix:///none", "CONTAINER_HOST": "unix:///none", "PATH": str(tmp_path)}
    environment = {**{name: value for name, value in os.environ.items() if name != "SANDBOXKIT_BACKEND"}, **nowhere}
    found = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert "bubblewrap" not in found.stdout
