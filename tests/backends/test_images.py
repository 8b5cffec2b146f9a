"""Finding and pulling images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _http import Engine
from sandboxkit_podman._images import is_named, local_references, pull_references

from sandboxkit.backend import AgentBundle, Progress
from sandboxkit.config import Pull
from sandboxkit.errors import ImageNotFoundError

from .conftest import connect, engine_named
from .fakes import (
    PODMAN_INFO,
    PODMAN_VERSION,
    Answer,
    FakeEngine,
    Request,
    registry,
    serving_tcp,
    serving_unix,
    small_layer,
)
from .lab import BUSYBOX, Lab

UNREACHABLE = "127.0.0.1:1/nobody/nothing"


def test_an_image_is_found_under_the_name_it_was_made_with(lab: Lab) -> None:
    for name in (BUSYBOX, f"{BUSYBOX}:latest"):
        lab.backend.ensure_image(name, Pull.NEVER)
        lab.backend.ensure_image(name, Pull.MISSING)


@pytest.mark.parametrize("name", ["busybox", "sandboxkit-test/busybox:no-such-tag", "test/busybox"])
def test_an_image_of_a_like_name_is_another(lab: Lab, name: str) -> None:
    with pytest.raises(ImageNotFoundError) as caught:
        lab.backend.ensure_image(name, Pull.NEVER)
    message = str(caught.value)
    assert repr(name) in message
    assert f"{lab.engine.backend} pull " in message
    assert "pull='missing'" in message


@pytest.mark.parametrize("pull", [Pull.MISSING, Pull.ALWAYS])
def test_an_image_that_cant_be_pulled_is_not_found_and_the_engine_says_why(lab: Lab, pull: Pull) -> None:
    with pytest.raises(ImageNotFoundError) as caught:
        lab.backend.ensure_image(UNREACHABLE, pull)
    assert "refused" in str(caught.value.details["reason"])
    assert UNREACHABLE in str(caught.value)


def test_creating_from_a_missing_image_says_so_and_leaves_nothing(lab: Lab) -> None:
    spec = lab.spec("/bin/cat", image="sandboxkit-test/no-such-image")
    with pytest.raises(ImageNotFoundError, match="no-such-image"):
        lab.backend.create(spec)


@pytest.fixture
def docker(agent: AgentBundle) -> Iterator[Lab]:
    engine = engine_named("docker")
    backend = connect(engine)
    yield Lab(engine, backend, agent)
    backend.close()


@pytest.mark.engine
def test_docker_pulls_and_tells_the_progress_of_each_layer(docker: Lab, tmp_path: Path) -> None:
    # Only Docker takes a registry without TLS, on the loopback, without being told to.
    with serving_tcp(registry("lab/pulled", small_layer(tmp_path / "layer.tar"))) as port:
        image = f"127.0.0.1:{port}/lab/pulled"
        steps: list[Progress] = []
        try:
            docker.backend.ensure_image(image, Pull.MISSING, steps.append)
            docker.backend.ensure_image(image, Pull.NEVER)
            again: list[Progress] = []
            docker.backend.ensure_image(image, Pull.MISSING, again.append)
            assert again == []
            docker.backend.ensure_image(image, Pull.ALWAYS, again.append)
            assert again
        finally:
            docker.remove_image(image)
    assert {step.image for step in steps} == {image}
    assert any(step.layer and step.total and step.current for step in steps)


@pytest.mark.engine
def test_what_the_progress_callback_raises_reaches_the_caller(docker: Lab, tmp_path: Path) -> None:
    def stop(_: Progress) -> None:
        raise LookupError("enough")

    with serving_tcp(registry("lab/stopped", small_layer(tmp_path / "layer.tar"))) as port:
        image = f"127.0.0.1:{port}/lab/stopped"
        try:
            with pytest.raises(LookupError, match="enough"):
                docker.backend.ensure_image(image, Pull.ALWAYS, stop)
        finally:
            docker.remove_image(image)


def test_podman_pulls_a_short_name_from_docker_hub_first_and_tells_its_steps(tmp_path: Path) -> None:
    here: set[str] = set()

    def answer(request: Request) -> Answer:
        if request.path == "/images/pull":
            here.add("docker.io/library/thing")
            return Answer(200, b'{"stream":"Copying blob\\n"}\n\n{"images":["abc"],"id":"abc"}\n')
        name = request.path.removeprefix("/images/").removesuffix("/json")
        if name in here:
            return Answer(200, {"Id": "abc", "User": "me", "RepoTags": [f"{name}:latest"]})
        return Answer(404, {"cause": "no", "message": "no"})

    with serving_unix(tmp_path / "socket", FakeEngine(PODMAN_VERSION, PODMAN_INFO, answer)) as url:
        backend = connect(Engine("podman", url))
        steps: list[Progress] = []
        backend.ensure_image("thing", Pull.MISSING, steps.append)
        backend.close()
    assert steps == [Progress(image="thing", status="Copying blob")]


def test_short_names_on_podman() -> None:
    assert local_references("a/b") == ["localhost/a/b", "docker.io/a/b", "a/b"]
    assert local_references("a:1") == ["localhost/a:1", "docker.io/library/a:1", "a:1"]
    assert local_references("quay.io/a/b") == ["quay.io/a/b"]
    assert local_references("localhost:5000/a") == ["localhost:5000/a"]
    assert pull_references("a") == ["docker.io/library/a", "a"]
    assert is_named("a", "0123", ["quay.io/a:latest"])
    assert is_named("a/b:1", "0123", ["quay.io/a/b:1"])
    assert not is_named("b", "0123", ["quay.io/a/b:latest"])
    assert not is_named("a", "0123", ["quay.io/a:2"])
    assert is_named("0123456789ab", "sha256:0123456789abcdef", [])
