"""Each engine of build/engines.json, and a check after each test that nothing of it is left there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _http import Engine, read_engines
from _system import ToolError

from sandboxkit.backend import AgentBundle, Backend
from tests.support.waiting import wait_until

from .lab import Lab, runner_bundle

# An engine that is missing fails its tests: it is never skipped.
ENGINES = ("docker", "podman", "podman-rootless")


def engine_named(name: str) -> Engine:
    backend, _, rootless = name.partition("-")
    try:
        engines = read_engines()
    except ToolError as error:
        pytest.fail(str(error))
    found = [engine for engine in engines if engine.backend == backend and engine.rootless == bool(rootless)]
    if not found:
        pytest.fail(f"build/engines.json has no {name}: run `make engines`")
    return found[0]


def connect(engine: Engine, timeout: float = 60.0) -> Backend:
    if engine.backend == "docker":
        from sandboxkit_docker import DockerBackend

        return DockerBackend.connect(engine.url, timeout=timeout, may_start=False)
    from sandboxkit_podman import PodmanBackend

    return PodmanBackend.connect(engine.url, timeout=timeout, may_start=False)


@pytest.fixture(scope="session")
def agent() -> AgentBundle:
    return runner_bundle()


@pytest.fixture(scope="session", params=[pytest.param(name, marks=pytest.mark.engine) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_named(request.param)


@pytest.fixture(scope="session")
def backend(engine: Engine, agent: AgentBundle) -> Iterator[Backend]:
    backend = connect(engine)
    yield backend
    Lab(engine, backend, agent).remove_volume(agent.volume)
    backend.close()


@pytest.fixture
def lab(engine: Engine, backend: Backend, agent: AgentBundle) -> Iterator[Lab]:
    lab = Lab(engine, backend, agent)
    yield lab
    # An engine removes by itself what ended by itself, a moment later.
    try:
        wait_until(lambda: not lab.left_over(), "nothing is left over", 5)
    except AssertionError:
        left = lab.left_over()
        for container in backend.list({"test.sandboxkit.lab": lab.token}):
            backend.remove(container.id)
        pytest.fail(f"left over: {left}")
