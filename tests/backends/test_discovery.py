"""Where each engine is looked for, and what is said when it is not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxkit_docker import DockerBackend
from sandboxkit_docker import _discovery as docker_places
from sandboxkit_podman import PodmanBackend
from sandboxkit_podman import _discovery as podman_places

from sandboxkit.errors import ConfigError, EngineUnavailableError

from .fakes import (
    DOCKER_INFO,
    DOCKER_VERSION,
    PODMAN_INFO,
    PODMAN_VERSION,
    Answer,
    Answerer,
    FakeEngine,
    serving_tcp,
    serving_unix,
)

NAMES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"),
)
BACKENDS: list[Any] = [DockerBackend, PodmanBackend]
ODD: list[Any] = [{}, [], "x", None, b"<html>", {"Components": 5}]
each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=["docker", "podman"])


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def docker_urls(url: str | None = None) -> list[str]:
    return [address.url for address in docker_places.addresses(url)]


def podman_urls(url: str | None = None) -> list[str]:
    return [address.url for address in podman_places.addresses(url)]


def test_docker_is_looked_for_where_its_tools_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = ["unix:///var/run/docker.sock"]
    desktop = [f"unix://{tmp_path}/.docker/run/docker.sock", f"unix://{tmp_path}/.docker/desktop/docker.sock"]
    assert docker_urls() == usual + desktop
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert docker_urls() == [*usual, "unix:///run/user/7/docker.sock", *desktop]
    add_context(tmp_path / ".docker", "far", "tcp://far.example:2375")
    assert docker_urls() == ["tcp://far.example:2375"]
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert docker_urls()[0] == usual[0]
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    assert docker_urls() == ["unix:///elsewhere.sock"]
    assert docker_urls("tcp://127.0.0.1:1") == ["tcp://127.0.0.1:1"]


def add_context(folder: Path, name: str, host: str) -> None:
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    content = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (meta / "meta.json").write_text(json.dumps(content))
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))


def test_a_docker_context_that_is_gone_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(ConfigError, match="gone"):
        DockerBackend.connect()
    add_context(tmp_path / ".docker", "broken", "unix:///x.sock")
    next((tmp_path / ".docker").rglob("meta.json")).write_text("{")
    monkeypatch.setenv("DOCKER_CONTEXT", "broken")
    with pytest.raises(ConfigError, match="broken"):
        DockerBackend.connect()


def test_podman_is_looked_for_where_its_tools_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.getuid", lambda: 7)
    usual = ["unix:///run/user/7/podman/podman.sock", "unix:///run/podman/podman.sock"]
    assert podman_urls() == usual
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    usual.insert(0, f"unix://{tmp_path}/podman/podman.sock")
    # Docker's address is never followed.
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    assert podman_urls() == usual
    config = tmp_path / ".config" / "containers"
    config.mkdir(parents=True)
    older = '[engine]\nactive_service = "old"\n[engine.service_destinations.old]\nuri = "unix:///old.sock"\n'
    (config / "containers.conf").write_text(older)
    assert podman_urls() == ["unix:///old.sock", *usual]
    newer = {"Connection": {"Default": "new", "Connections": {"new": {"URI": "tcp://127.0.0.1:9"}}}}
    (config / "podman-connections.json").write_text(json.dumps(newer))
    assert podman_urls() == ["tcp://127.0.0.1:9", *usual]
    monkeypatch.setenv("CONTAINER_CONNECTION", "old")
    assert podman_urls() == ["unix:///old.sock"]
    monkeypatch.setenv("CONTAINER_HOST", "unix:///elsewhere.sock")
    assert podman_urls() == ["unix:///elsewhere.sock"]
    assert podman_urls("tcp://127.0.0.1:1") == ["tcp://127.0.0.1:1"]


@pytest.mark.parametrize("content", ["[", "engine = 1", '[engine]\nactive_service = "nobody"', "\udcff"])
def test_a_broken_podman_configuration_hides_nothing(tmp_path: Path, content: str) -> None:
    config = tmp_path / ".config" / "containers"
    config.mkdir(parents=True)
    (config / "containers.conf").write_bytes(content.encode("utf-8", "surrogateescape"))
    (config / "podman-connections.json").write_text('{"Connection": []}')
    assert "unix:///run/podman/podman.sock" in podman_urls()


def test_an_unknown_podman_connection_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_CONNECTION", "gone")
    with pytest.raises(ConfigError, match="gone"):
        PodmanBackend.connect()


@each_backend
@pytest.mark.parametrize(
    "url",
    ["", "docker", "/var/run/docker.sock", "unix://", "tcp://", "tcp://host", "tcp://host:port", "ftp://host:1", 7],
)
def test_a_malformed_url_is_a_config_error(backend: Any, url: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        backend.connect(url)
    assert caught.value.details["field"] == "url"


@pytest.mark.parametrize("name", ["DOCKER_HOST", "CONTAINER_HOST"])
def test_a_malformed_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "nonsense")
    backend: Any = DockerBackend if name == "DOCKER_HOST" else PodmanBackend
    with pytest.raises(ConfigError, match=name):
        backend.connect()


def refused(backend: Any, url: str | None, **options: Any) -> EngineUnavailableError:
    with pytest.raises(EngineUnavailableError) as caught:
        backend.connect(url, may_start=False, **options)
    error = caught.value
    tried = error.details["tried"]
    assert isinstance(tried, list)
    assert tried
    assert all(line in str(error) for line in tried)
    assert "Start " in str(error)
    assert error.retryable
    return error


@each_backend
def test_ssh_is_refused_with_advice(backend: Any) -> None:
    assert "ssh -N -L" in str(refused(backend, "ssh://me@far.example/run/engine.sock"))


@each_backend
def test_each_place_and_its_reason_are_told(backend: Any, tmp_path: Path) -> None:
    assert "no such file" in str(refused(backend, f"unix://{tmp_path}/none.sock"))
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left))
    assert "nothing listens" in str(refused(backend, f"unix://{left}"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert "refused" in str(refused(backend, f"tcp://127.0.0.1:{server.getsockname()[1]}"))


def test_every_usual_place_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("sandboxkit.engines.sockets.connect_unix", raise_missing)
    for backend, urls in ((DockerBackend, docker_urls()), (PodmanBackend, podman_urls())):
        tried = refused(backend, None).details["tried"]
        assert tried == [f"{url}: no such file" for url in urls]


def raise_missing(*_: object) -> None:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("backend", "version", "info", "reason"),
    [
        (DockerBackend, PODMAN_VERSION, PODMAN_INFO, "Podman answers there"),
        (PodmanBackend, DOCKER_VERSION, DOCKER_INFO, "not Podman"),
        *((backend, odd, {}, "") for backend in BACKENDS for odd in ODD),
    ],
)
def test_something_else_that_answers_is_refused(
    tmp_path: Path, backend: Any, version: object, info: object, reason: str
) -> None:
    with serving_unix(tmp_path / "socket", FakeEngine(version, info)) as url:
        assert reason in str(refused(backend, url))


@each_backend
def test_a_server_that_refuses_everything_is_refused(tmp_path: Path, backend: Any) -> None:
    for answer in (lambda _: Answer(404, b"not here"), lambda _: Answer(500, {"message": "sorry", "cause": "x"})):
        with serving_unix(tmp_path / "socket", answer) as url:
            assert "answer" in str(refused(backend, url))
        (tmp_path / "socket").unlink()


@each_backend
def test_info_without_what_it_should_hold_is_refused(tmp_path: Path, backend: Any) -> None:
    version = DOCKER_VERSION if backend is DockerBackend else PODMAN_VERSION
    with serving_unix(tmp_path / "socket", FakeEngine(version, ["odd"])) as url:
        refused(backend, url)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "silent"))
        server.listen()
        yield f"unix://{tmp_path}/silent"


@each_backend
def test_a_silent_server_is_given_up(backend: Any, silent: str) -> None:
    begin = time.monotonic()
    assert "timed out" in str(refused(backend, silent, timeout=0.5))
    assert time.monotonic() - begin < 5


@each_backend
def test_a_server_that_speaks_another_language_is_refused(backend: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "odd"))
        server.listen()
        server.settimeout(10)

        def talk() -> None:
            for _ in range(2):  # the look whether something listens is the first
                peer, _address = server.accept()
                with peer, contextlib.suppress(OSError):
                    peer.sendall(b"220 mail.example ESMTP\r\n")
                    peer.settimeout(5)
                    peer.recv(4096)

        thread = threading.Thread(target=talk)
        thread.start()
        refused(backend, f"unix://{tmp_path}/odd")
        thread.join(10)


def answering(version: object, info: object) -> Answerer:
    return FakeEngine(version, info)


def test_over_tcp_an_engine_is_found_too() -> None:
    with serving_tcp(answering(DOCKER_VERSION, DOCKER_INFO)) as port:
        docker = DockerBackend.connect(f"tcp://127.0.0.1:{port}")
        assert (docker.info().version, docker.info().enforceable) == ("99.0", frozenset({"memory"}))
        docker.close()
    with serving_tcp(answering(PODMAN_VERSION, PODMAN_INFO)) as port:
        podman = PodmanBackend.connect(f"tcp://127.0.0.1:{port}")
        assert (podman.info().version, podman.info().enforceable) == ("9.9.9", frozenset({"memory"}))
        podman.close()


@pytest.mark.parametrize(
    ("rootless", "version", "manager", "enforceable"),
    [
        (False, "v1", "cgroupfs", {"memory", "pids", "cpus"}),
        (True, "v1", "cgroupfs", set()),
        (True, "v1", "systemd", set()),
        (True, "v2", "cgroupfs", set()),
        (True, "v2", "systemd", {"memory", "pids", "cpus"}),
    ],
)
def test_what_podman_enforces(
    tmp_path: Path, rootless: bool, version: str, manager: str, enforceable: set[str]
) -> None:
    host = {
        "arch": "arm64",
        "cgroupVersion": version,
        "cgroupManager": manager,
        "cgroupControllers": ["cpu", "memory", "pids"],
        "security": {"rootless": rootless},
    }
    with serving_unix(tmp_path / "socket", FakeEngine(PODMAN_VERSION, {"host": host, "store": {}})) as url:
        backend = PodmanBackend.connect(url)
        info = backend.info()
        backend.close()
    assert info.enforceable == enforceable
    assert (info.rootless, info.arch, info.cgroup_version) == (rootless, "aarch64", int(version[1]))


def test_what_docker_enforces(tmp_path: Path) -> None:
    flags = {"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": False, "CgroupVersion": "1"}
    options = {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}
    for driver, enforceable in (("cgroupfs", {"memory", "pids"}), ("none", set())):
        fake = FakeEngine(DOCKER_VERSION, {**DOCKER_INFO, **flags, **options, "CgroupDriver": driver})
        with serving_unix(tmp_path / driver, fake) as url:
            backend = DockerBackend.connect(url)
            info = backend.info()
            backend.close()
        assert info.enforceable == enforceable
        assert (info.rootless, info.cgroup_version) == (True, 1)


@each_backend
def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    name = "docker" if backend is DockerBackend else "podman"
    for module in list(sys.modules):
        if module == f"sandboxkit_{name}._api" or module == f"sandboxkit_{name}._sdk":
            monkeypatch.delitem(sys.modules, module)
        if module == name or module.startswith(f"{name}."):
            monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineUnavailableError, match=rf"pip install 'sandboxkit\[{name}\]'") as caught:
        backend.connect()
    assert caught.value.details["tried"]
    assert not caught.value.retryable
