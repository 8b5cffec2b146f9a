"""The `podman system service` that a process starts for itself."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _http import Engine
from sandboxkit_podman import PodmanBackend, _backend

from sandboxkit.backend import AgentBundle
from sandboxkit.engines.discovery import Address
from sandboxkit.errors import EngineUnavailableError
from tests.support.waiting import wait_until

from .conftest import engine_named
from .lab import Lab

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No service answers in any usual place."""
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    monkeypatch.delenv("CONTAINER_CONNECTION", raising=False)
    monkeypatch.setattr(_backend, "addresses", lambda url: iter([Address(url or f"unix://{tmp_path}/none.sock")]))


@pytest.fixture
def own(nowhere: None) -> Iterator[PodmanBackend]:
    engine_named("podman")  # Podman is there, and so are the images
    backend = PodmanBackend.connect()
    yield backend
    backend.close()


def socket_of(backend: PodmanBackend) -> Path:
    return Path(backend.info().url.removeprefix("unix://"))


def processes_with(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if text in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


@pytest.mark.engine
def test_it_runs_containers_and_ends_with_close(own: PodmanBackend, agent: AgentBundle) -> None:
    path = socket_of(own)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert processes_with(str(path))
    lab = Lab(Engine("podman", own.info().url), own, agent)
    assert lab.run("echo ran").stdout == "ran\n"
    assert lab.left_over() == []
    lab.remove_volume(agent.volume)
    own.close()
    own.close()
    assert processes_with(str(path)) == []
    assert not path.parent.exists()


@pytest.mark.engine
def test_a_forked_child_does_not_end_it(own: PodmanBackend) -> None:
    pid = os.fork()
    if not pid:
        try:
            own.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert processes_with(str(socket_of(own)))
    assert own.list({"no.such.label": ""}) == []


HOST = """
import sys, time
from pathlib import Path
from sandboxkit.backend import AgentBundle
from sandboxkit.engines.discovery import Address
from sandboxkit_podman import PodmanBackend, _backend
from _http import Engine
from tests.backends.lab import Lab
how, build, arch, path = sys.argv[1:]
_backend.addresses = lambda url: iter([Address("unix:///nowhere.sock")])
backend = PodmanBackend.connect()
lab = Lab(Engine("podman", backend.info().url), backend, AgentBundle(build=build, paths={arch: Path(path)}))
with lab.running("/bin/cat") as running:
    print(backend.info().url, running.id, *lab.volumes, flush=True)
    time.sleep(0 if how == "exit" else 60)
if how == "exit":
    sys.exit(0)  # without close()
"""


def start_host(agent: AgentBundle, how: str) -> tuple[subprocess.Popen[str], list[str]]:
    [(arch, path)] = agent.paths.items()
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, how, agent.build, arch, str(path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends"), str(ROOT / "tools")]),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()


@pytest.mark.engine
def test_it_ends_when_its_process_exits_without_close(agent: AgentBundle) -> None:
    process, (url, *_) = start_host(agent, "exit")
    process.communicate(timeout=30)
    assert process.returncode == 0
    path = Path(url.removeprefix("unix://"))
    assert processes_with(str(path)) == []
    assert not path.parent.exists()


@pytest.mark.engine
def test_it_ends_soon_after_its_process_was_killed_and_so_does_the_container(agent: AgentBundle) -> None:
    engine = engine_named("podman")
    process, (url, container_id, volume) = start_host(agent, "wait")
    with process:
        process.send_signal(signal.SIGKILL)
    path = Path(url.removeprefix("unix://"))

    def is_gone(target: str) -> bool:
        return engine.request("GET", f"/v4.0.0/libpod/{target}/exists").status == 404

    wait_until(lambda: is_gone(f"containers/{container_id}") and is_gone(f"volumes/{volume}"), "both are gone", 2)
    wait_until(lambda: not processes_with(str(path)) and not path.parent.exists(), "the service is gone", 10)


def refused(**options: Any) -> EngineUnavailableError:
    with pytest.raises(EngineUnavailableError) as caught:
        PodmanBackend.connect(**options)
    return caught.value


def test_what_a_podman_that_cant_serve_says_is_told(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho 'Error: no subuid ranges found' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    error = refused()
    assert "no subuid ranges found" in str(error)
    assert "125" in str(error)
    tried = error.details["tried"]
    assert isinstance(tried, list)
    assert len(tried) == 2
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_podman_that_is_said(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert "podman is not installed" in str(refused())


def test_none_is_started_unless_it_may_be(nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sandboxkit_podman._service.PodmanService.__init__", lambda *_: pytest.fail("started"))
    refused(may_start=False)
    refused(url=f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/none.sock")
    refused()
