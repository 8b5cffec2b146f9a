"""What the labels of a session say: whose it is, whether that process lives, and with which settings it was made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from sandboxkit import Limits, Network, Security, Workspace
from sandboxkit._bundle import bundle
from sandboxkit._labels import Owner, created_at, expires_at, owner_labels
from sandboxkit._settings import SETTINGS, Settings, settings_label
from sandboxkit.backend import ContainerSpec


def changed(**labels: str) -> Owner:
    owner = Owner.of({**owner_labels(), **{f"sandboxkit.owner.{name}": value for name, value in labels.items()}})
    assert owner is not None
    return owner


def test_this_process_is_its_own_owner() -> None:
    owner = changed()
    assert (owner.pid, owner.is_alive, owner.is_this_process) == (os.getpid(), True, True)


def test_a_process_that_ended_is_known_to_be_dead() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert changed(pid=str(child.pid)).is_alive is False


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    stat = Path(f"/proc/{child.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    started = stat.read_text().rpartition(")")[2].split()[19]
    assert changed(pid=str(child.pid), started=started).is_alive is False
    child.wait()


def test_a_pid_that_was_given_away_again_is_another_process() -> None:
    assert changed(started="1").is_alive is False


@pytest.mark.parametrize("elsewhere", ["host", "boot", "namespace"])
def test_of_a_process_elsewhere_nothing_is_known(elsewhere: str) -> None:
    owner = changed(**{elsewhere: "another"})
    assert owner.is_alive is None
    assert not owner.is_this_process


@pytest.mark.parametrize("labels", [{}, {"sandboxkit.owner.pid": ""}, {"sandboxkit.owner.pid": "x"}])
def test_labels_that_name_nobody(labels: dict[str, str]) -> None:
    assert Owner.of(labels) is None


def test_labels_of_the_first_version_name_an_owner_of_whom_nothing_is_known() -> None:
    owner = Owner.of({"sandboxkit.owner.pid": "1", "sandboxkit.owner.host": "h", "sandboxkit.owner.started": "5"})
    assert owner is not None
    assert owner.is_alive is None


def test_times_that_can_not_be_read_are_unknown() -> None:
    assert (created_at({}), created_at({"sandboxkit.created": "soon"}), expires_at({"sandboxkit.expires": ""})) == (
        None,
        None,
        None,
    )
    assert expires_at({"sandboxkit.expires": "12.5"}) == 12.5


def spec(**changes: Any) -> ContainerSpec:
    return ContainerSpec(name="name", image="image", agent=bundle(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"limits": Limits(timeout=None, max_timeout=7, memory_mb=64, cpus=0.5, allow_unenforced=True)},
        {"network": Network.bridge(), "security": Security(readonly_rootfs=True, user="1000:1000")},
        {"network": Network.bridge(ports=[8000, 80])},
        {"network": Network.allow(["example.com", "*.example.org:8443"], private=["10.0.0.1:5432"], max_total_bytes=9)},
        {"workspace": Workspace.tmpfs(size_mb=8)},
        {"workspace": Workspace.volume("name", create=False, keep=False, shared=True)},
    ],
)
def test_settings_come_back_from_their_label(changes: dict[str, Any]) -> None:
    made = spec(**changes)
    found = Settings.of({SETTINGS: settings_label(made)})
    for name in ("limits", "network", "security", "workspace"):
        assert getattr(found, name) == getattr(made, name)


def test_a_seccomp_profile_is_left_out() -> None:
    made = spec(security=Security(seccomp='{"defaultAction": "SCMP_ACT_ALLOW"}', user="app"))
    assert "SCMP_ACT_ALLOW" not in settings_label(made)
    assert Settings.of({SETTINGS: settings_label(made)}).security == attrs.evolve(made.security, seccomp=None)


def test_what_is_secret_or_can_be_called_is_in_no_label() -> None:
    network = Network.allow(
        ["example.com"],
        credentials={"example.com": {"Authorization": "s3cret"}},
        audit=print,
        resolver=lambda host, port: [],
    )
    label = settings_label(spec(network=network))
    assert "s3cret" not in label
    found = Settings.of({SETTINGS: label}).network
    assert (found.allowed, found.credential_hosts, dict(found.credentials)) == (
        ("example.com",),
        ("example.com:443",),
        {},
    )
    assert (found.audit, found.resolver, found.ssl_context) == (None, None, None)


@pytest.mark.parametrize(
    "label", ["", "{", "[]", "3", '{"limits": 3}', '{"limits": {"timeout": "x"}}', '{"network": {"mode": "x"}}']
)
def test_settings_that_can_not_be_read_are_the_defaults(label: str) -> None:
    assert Settings.of({SETTINGS: label}) == Settings()


def test_fields_of_a_later_version_are_left_out() -> None:
    assert Settings.of({SETTINGS: '{"limits": {"timeout": 3, "colour": "red"}, "mood": 1}'}).limits == Limits(timeout=3)
