"""Engines that answer late, or never: each call ends, leaves nothing, and stops no other."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _http import Engine

from sandboxkit.backend import AgentBundle, ContainerSpec
from sandboxkit.config import Workspace
from sandboxkit.errors import ConfigError, EngineError, EngineUnavailableError, ImageNotFoundError
from tests.support.waiting import wait_until

from .conftest import connect
from .fakes import DOCKER_INFO, DOCKER_VERSION, PODMAN_INFO, PODMAN_VERSION, Answer, FakeEngine, Request, serving_unix

CONTAINER: dict[str, Any] = {
    "Id": "c0ffee",
    "Name": "wanted",
    "State": {"Status": "created", "Running": False, "ExitCode": 0},
    "HostConfig": {},
}


class LateEngine:
    """Makes a container at once, or if `late` when that was looked for in vain; or another's is there already."""

    def __init__(self, backend: str, *, late: bool = False, taken: bool = False, image: bool = True) -> None:
        version, info = (DOCKER_VERSION, DOCKER_INFO) if backend == "docker" else (PODMAN_VERSION, PODMAN_INFO)
        self.fake = FakeEngine(version, info, self.answer)
        self.late = late
        self.image = image
        self.labels: dict[str, str] | None = {} if taken else None
        self.go = threading.Event()

    def answer(self, request: Request) -> Answer:
        method, path, _ = request
        if path == "/containers/create":
            asked = request.json()
            if self.labels is not None or not self.image:
                return Answer(500, {"message": "in words that change", "cause": "in words"})
            if self.late:
                self.go.wait(60)
            self.labels = asked.get("Labels") or asked.get("labels")
            return Answer(201, {"Id": "c0ffee"})
        if path.startswith("/images/") and self.image:
            return Answer(200, {"Id": "sha256:1", "RepoTags": ["docker.io/library/image:latest"]})
        if path.startswith("/containers/") and self.labels is not None:
            if method == "DELETE":
                self.labels = None
                return Answer(204)
            if path.endswith("/json"):
                return Answer(200, {**CONTAINER, "Config": {"Labels": self.labels}})
        if path == "/containers/wanted/json":
            self.go.set()
        return Answer(404, {"message": "no", "cause": "no"})


@pytest.fixture(params=["docker", "podman"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(agent: AgentBundle) -> ContainerSpec:
    # In memory: nothing is to be done to the workspace after the one call that counts.
    return ContainerSpec(name="wanted", image="image", agent=agent, workspace=Workspace.tmpfs())


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Any]:
    """Connects to a fake engine with a timeout."""
    opened: list[Any] = []

    def open_one(engine: LateEngine, name: str, timeout: float) -> Any:
        served = serving_unix(tmp_path / "socket", engine.fake)
        backend = connect(Engine(name, served.__enter__()), timeout=timeout)
        opened.append((engine, backend, served))
        return backend

    yield open_one
    for engine, backend, served in opened:
        engine.go.set()
        backend.close()
        served.__exit__(None, None, None)


def test_a_create_that_times_out_is_not_repeated_and_its_container_is_removed(
    at: Any, name: str, spec: ContainerSpec
) -> None:
    engine = LateEngine(name, late=True)
    backend = at(engine, name, timeout=0.7)
    with pytest.raises(EngineError) as caught:
        backend.create(spec)
    assert caught.value.retryable
    assert "timed out" in str(caught.value)
    assert len(engine.fake.asked("POST", "/containers/create")) == 1
    assert len(engine.fake.asked("DELETE", "/containers/c0ffee")) == 1
    assert engine.labels is None


def test_a_create_that_is_interrupted_leaves_nothing(at: Any, name: str, spec: ContainerSpec) -> None:
    engine = LateEngine(name, late=True)
    backend = at(engine, name, timeout=10)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: engine.fake.asked("POST", "/containers/create"), "the engine is asked")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        backend.create(spec)
    thread.join()
    assert len(engine.fake.asked("DELETE", "/containers/c0ffee")) == 1
    assert engine.labels is None


def test_anothers_container_of_that_name_stays(at: Any, name: str, spec: ContainerSpec) -> None:
    engine = LateEngine(name, taken=True)
    with pytest.raises(ConfigError, match="wanted"):
        at(engine, name, timeout=5).create(spec)
    assert not [request for request in engine.fake.requests if request.method == "DELETE"]


def test_a_missing_image_is_found_out_by_asking(at: Any, name: str, spec: ContainerSpec) -> None:
    with pytest.raises(ImageNotFoundError, match="'image'"):
        at(LateEngine(name, image=False), name, timeout=5).create(spec)


def test_a_call_that_hangs_stops_no_other(at: Any, name: str, spec: ContainerSpec) -> None:
    engine = LateEngine(name, late=True)
    backend = at(engine, name, timeout=30)
    thread = threading.Thread(target=backend.create, args=(spec,))
    thread.start()
    try:
        wait_until(lambda: engine.fake.asked("POST", "/containers/create"), "the engine is asked")
        begin = time.monotonic()
        for _ in range(5):
            with pytest.raises(EngineError):
                backend.list({})  # a 404 here: what matters is that it is answered
        assert time.monotonic() - begin < 5
    finally:
        engine.go.set()
        thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("call", ["inspect", "start", "attach", "remove"])
def test_an_engine_that_is_gone_is_unavailable(tmp_path: Path, name: str, call: str) -> None:
    engine = LateEngine(name)
    with serving_unix(tmp_path / "socket", engine.fake) as url:
        backend = connect(Engine(name, url), timeout=2)
    (tmp_path / "socket").unlink()
    begin = time.monotonic()
    with pytest.raises(EngineUnavailableError) as caught:
        getattr(backend, call)("c0ffee")
    assert caught.value.retryable
    assert caught.value.details["reason"]
    assert time.monotonic() - begin < 2
    backend.close()


def test_a_removal_that_the_engine_never_ends_is_an_error_at_the_deadline(at: Any, name: str) -> None:
    class Stuck(LateEngine):
        def answer(self, request: Request) -> Answer:
            if request.method == "DELETE":
                return Answer(409, {"message": "already in progress", "cause": "busy"})
            return super().answer(request)

    backend = at(Stuck(name, taken=True), name, timeout=0.5)
    begin = time.monotonic()
    with pytest.raises(EngineError, match="did not remove") as caught:
        backend.remove("c0ffee")
    assert caught.value.retryable
    assert caught.value.details["container"] == "c0ffee"
    assert time.monotonic() - begin < 5
