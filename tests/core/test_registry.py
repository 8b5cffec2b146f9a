"""Finding backends: in which order, from where, and what is said when there is none, or one can't be loaded."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from sandboxkit import ConfigError, EngineUnavailableError, Sandbox
from sandboxkit import _registry as registry
from sandboxkit.backend import Backend
from tests.support.forks import in_child

from .background import Call
from .fake_backend import FakeBackend

MODULE = "tests_core_registry_backends"


class Answers(FakeBackend):
    """A backend that answers, and records how it was asked."""

    asked: list[tuple[str, str | None, bool]]
    name = "answers"

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> FakeBackend:
        cls.asked.append((cls.name, url, may_start))
        return cls()


class Silent(Answers):
    """One that does not."""

    name = "silent"

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> FakeBackend:
        cls.asked.append((cls.name, url, may_start))
        raise EngineUnavailableError(
            f"{cls.name} does not answer. Start it.", details={"tried": [f"unix:///{cls.name}: no such file"]}
        )


class Startable(Answers):
    """One that answers when it may be started."""

    name = "startable"

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> FakeBackend:
        cls.asked.append((cls.name, url, may_start))
        if not may_start:
            raise EngineUnavailableError("not running")
        return cls()


class Installed:
    """Which entry points there are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = types.ModuleType(MODULE)
        for kind in (Answers, Silent, Startable):
            setattr(self.module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, MODULE, self.module)
        self.entries: dict[str, EntryPoint] = {}
        monkeypatch.setattr(registry, "_entries", lambda: self.entries)

    def set(self, **kinds: str) -> None:
        """Name → class."""
        self.entries = {
            name: EntryPoint(name, kind if ":" in kind else f"{MODULE}:{kind}", registry.GROUP)
            for name, kind in kinds.items()
        }


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    for name in ("SANDBOXKIT_BACKEND", "SANDBOXKIT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registry, "_connected", {})
    Answers.asked = []
    yield Installed(monkeypatch)
    registry.forget()


def test_the_order_is_podman_docker_then_by_name(installed: Installed) -> None:
    installed.set(zeta="Silent", docker="Silent", alpha="Silent", podman="Silent", bubblewrap="Silent")
    assert registry.available() == ("podman", "docker", "alpha", "bubblewrap", "zeta")


def test_auto_takes_the_first_that_answers(installed: Installed) -> None:
    installed.set(podman="Silent", docker="Answers", other="Answers")
    assert registry.connect().name == "answers"
    assert Answers.asked == [("silent", None, False), ("answers", None, False)]


def test_auto_starts_nothing_while_something_runs(installed: Installed) -> None:
    installed.set(podman="Startable", docker="Answers")
    assert registry.connect().name == "answers"
    Answers.asked.clear()
    registry.forget()
    installed.set(podman="Startable", docker="Silent")
    assert registry.connect().name == "startable"
    assert Answers.asked == [("startable", None, False), ("silent", None, False), ("startable", None, True)]


def test_auto_never_takes_the_host_s_own_programs(installed: Installed) -> None:
    installed.set(bubblewrap="Answers", docker="Silent")
    with pytest.raises(EngineUnavailableError, match="No engine answers"):
        registry.connect()
    assert registry.connect("bubblewrap").name == "answers"


def test_nothing_answers(installed: Installed) -> None:
    installed.set(podman="Silent", docker="Silent")
    with pytest.raises(
        EngineUnavailableError, match=r"No engine answers\.\nsilent does not answer. Start it\."
    ) as caught:
        Sandbox("image").engine()
    assert caught.value.details["tried"] == [
        "podman: unix:///silent: no such file",
        "docker: unix:///silent: no such file",
    ]
    assert caught.value.retryable


def test_nothing_is_installed(installed: Installed) -> None:
    with pytest.raises(EngineUnavailableError, match=r"No backend is installed.*pip install 'sandboxkit\[podman\]'"):
        registry.connect()


def test_unknown_names_list_the_known(installed: Installed) -> None:
    installed.set(docker="Answers", zeta="Answers")
    with pytest.raises(ConfigError, match="backend is 'dokcer'; accepted: 'auto', 'docker', 'zeta'") as caught:
        registry.connect("dokcer")
    assert caught.value.details["field"] == "backend"
    assert not Answers.asked


def test_the_environment_chooses_for_auto_alone(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.set(podman="Silent", docker="Answers")
    monkeypatch.setenv("SANDBOXKIT_BACKEND", "docker")
    monkeypatch.setenv("SANDBOXKIT_URL", "tcp://there")
    registry.connect()
    registry.connect("auto", "tcp://here")
    registry.connect("docker")
    assert Answers.asked == [("answers", url, True) for url in ("tcp://there", "tcp://here", None)]
    monkeypatch.setenv("SANDBOXKIT_BACKEND", "dokcer")
    with pytest.raises(ConfigError, match="SANDBOXKIT_BACKEND is 'dokcer'; accepted: 'auto', 'podman', 'docker'"):
        registry.connect()


@pytest.mark.parametrize("from_environment", [True, False])
def test_an_address_needs_a_backend(
    from_environment: bool, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.set(docker="Answers")
    if from_environment:
        monkeypatch.setenv("SANDBOXKIT_URL", "tcp://there")
    with pytest.raises(
        ConfigError, match=r"url is 'tcp://there', but no backend is named; accepted: .*SANDBOXKIT_BACKEND"
    ):
        registry.connect("auto", None if from_environment else "tcp://there")
    assert not Answers.asked


@pytest.mark.parametrize("kind", ["no_such_module_here:Backend", f"{MODULE}:NoSuchClass"])
def test_a_backend_that_cannot_be_loaded(kind: str, installed: Installed) -> None:
    installed.set(podman=kind, docker="Answers")
    assert registry.connect().name == "answers"
    with pytest.raises(EngineUnavailableError, match=r"The backend podman can't be loaded.*pip install"):
        registry.connect("podman")
    installed.set(podman=kind)
    registry.forget()
    with pytest.raises(
        EngineUnavailableError, match=r"No engine answers\.\nThe backend podman can't be loaded"
    ) as caught:
        registry.connect()
    assert len(caught.value.details["tried"]) == 1  # type: ignore[arg-type]


def test_one_backend_a_process_and_address(installed: Installed) -> None:
    installed.set(docker="Answers")
    calls: list[Call[Backend]] = [Call(lambda: registry.connect("docker", "a")) for _ in range(16)]
    assert len({id(call.get()) for call in calls}) == 1
    assert registry.connect("docker", "b") is not registry.connect("docker", "a")
    assert Answers.asked == [("answers", "a", True), ("answers", "b", True)]


def test_forget_closes_what_this_process_connected(installed: Installed) -> None:
    installed.set(docker="Answers")
    backend = registry.connect("docker")
    registry.forget()
    assert backend.calls == ["close"]  # type: ignore[attr-defined]
    assert registry.connect("docker") is not backend


def test_a_forked_child_connects_anew(installed: Installed) -> None:
    installed.set(docker="Answers")
    backend = registry.connect("docker")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with registry._lock:
            held.set()
            release.wait(30)

    holder = Call(hold)
    assert held.wait(10)

    def child() -> None:
        assert registry.connect("docker") is not backend
        registry.forget()

    in_child(child)
    release.set()
    holder.get()
    assert registry.connect("docker") is backend
    assert backend.calls == []  # type: ignore[attr-defined]


def test_the_installed_backends_are_the_entry_points() -> None:
    registry._entries.cache_clear()
    assert registry.available()[:2] == ("podman", "docker")
