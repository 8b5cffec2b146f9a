"""Which folders of this host may be a workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxkit import ConfigError, Workspace
from sandboxkit._binds import bind_user, checked_engine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, below one more folder."""
    home = tmp_path / "homes" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


def test_a_project_in_a_home_is_accepted(home: Path) -> None:
    project = home / "project"
    project.mkdir()
    assert Workspace.bind(project).host_path == str(project)
    assert Workspace.bind(str(project), read_only=True).read_only


def test_symbolic_links_are_resolved_at_once(home: Path) -> None:
    project, link = home / "project", home / "link"
    project.mkdir()
    link.symlink_to(project)
    assert Workspace.bind(link).host_path == str(project)
    (home / "sly").symlink_to(home)
    with pytest.raises(ConfigError, match="host_path"):
        Workspace.bind(home / "sly")


def test_a_home_and_what_is_above_it_is_refused(home: Path) -> None:
    for wrong in (home, home.parent, home.parent.parent):
        with pytest.raises(ConfigError, match="host_path"):
            Workspace.bind(wrong, allowed=["/"])


def test_a_hidden_folder_of_a_home_has_to_be_listed(home: Path) -> None:
    hidden = home / ".ssh"
    hidden.mkdir()
    with pytest.raises(ConfigError, match="hidden"):
        Workspace.bind(hidden)
    assert Workspace.bind(hidden, allowed=[hidden]).host_path == str(hidden)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_has_to_be_listed(home: Path) -> None:
    folder = home / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to the calling user"):
        Workspace.bind(folder)
    assert Workspace.bind(folder, allowed=[home]).host_path == str(folder)
    # A name that only begins alike is another folder.
    with pytest.raises(ConfigError, match="belongs to the calling user"):
        Workspace.bind(folder, allowed=[str(folder)[:-1]])


@pytest.mark.parametrize("url", ["tcp://10.0.0.1:2375", "ssh://root@host", "http://localhost:1"])
def test_an_engine_that_may_be_elsewhere_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="elsewhere"):
        checked_engine(str(tmp_path), url)


def test_the_folder_of_the_engines_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="socket"):
        checked_engine(str(tmp_path), f"unix://{tmp_path}/run/engine.sock")


def test_commands_run_as_the_folders_owner(tmp_path: Path) -> None:
    found = tmp_path.stat()
    socket = tmp_path / "engine.sock"
    socket.touch()
    assert bind_user(str(tmp_path), f"unix://{socket}", rootless=False) == f"{found.st_uid}:{found.st_gid}"
    assert bind_user(str(tmp_path), f"unix://{socket}", rootless=True) == "0:0"
