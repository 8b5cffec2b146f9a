"""The agent's volume: filled once, whole or not at all, and filled again when it was lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from _http import Engine

from sandboxkit.backend import AGENT_FOLDER, AgentBundle, AgentMissing, Backend
from sandboxkit.config import Pull

from .conftest import connect
from .lab import BUSYBOX, Lab

ROOT = Path(__file__).parents[2]


def put_agent(lab: Lab, content: bytes) -> None:
    """What a filler that died half-way, and did not do it as ours does, would leave."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("agent")
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    backend: Any = lab.backend
    with backend._helper(lab.agent, BUSYBOX) as helper:
        backend._api.files.put(helper, AGENT_FOLDER, archive.getvalue())


def our_helpers(backend: Backend) -> list[str]:
    labels = {"sandboxkit.role": "agent-installer", "sandboxkit.owner.pid": str(os.getpid())}
    return [container.name for container in backend.list(labels)]


@pytest.fixture
def fresh(lab: Lab) -> Any:
    """A backend that remembers nothing of this engine."""
    backend = connect(lab.engine)
    yield backend
    backend.close()


def test_installing_leaves_the_labelled_volume_and_no_container(lab: Lab, fresh: Backend) -> None:
    lab.remove_volume(lab.agent.volume)
    for _ in range(2):
        fresh.install_agent(lab.agent, BUSYBOX)
    assert our_helpers(fresh) == []
    path = f"/volumes/{lab.agent.volume}" + ("/json" if lab.engine.backend == "podman" else "")
    assert lab.request("GET", path).json()["Labels"]["sandboxkit.role"] == "agent"


def test_the_agent_can_be_run_and_read_and_not_written(lab: Lab) -> None:
    script = f"stat -c '%a %u' {AGENT_FOLDER}/agent; touch {AGENT_FOLDER}/x 2>/dev/null || echo read-only"
    assert lab.run(script).stdout == "555 0\nread-only\n"


def start_and_remove(lab: Lab) -> None:
    container_id = lab.create(lab.spec("/bin/true"))
    try:
        stream = lab.backend.attach(container_id)
        try:
            lab.backend.start(container_id)
        finally:
            stream.close()
    finally:
        lab.backend.remove(container_id)


def test_a_pruned_volume_is_noticed_at_the_start_and_filled_again(lab: Lab) -> None:
    start_and_remove(lab)
    lab.remove_volume(lab.agent.volume)
    with pytest.raises(AgentMissing):
        start_and_remove(lab)
    start_and_remove(lab)
    assert our_helpers(lab.backend) == []


@pytest.mark.parametrize("size", [0, 100])
def test_a_backend_that_comes_later_replaces_half_an_agent(lab: Lab, fresh: Backend, size: int) -> None:
    start_and_remove(lab)
    put_agent(lab, lab.agent.read(lab.backend.info().arch)[:size])
    fresh.install_agent(lab.agent, BUSYBOX)
    start_and_remove(lab)


def test_a_volume_that_somebody_else_made_is_filled(lab: Lab, fresh: Backend) -> None:
    lab.remove_volume(lab.agent.volume)
    reply = lab.request("POST", "/volumes/create", {"Name": lab.agent.volume})
    assert reply.status == 201, reply.text
    fresh.install_agent(lab.agent, BUSYBOX)
    start_and_remove(lab)


FILLER = """
import sys
from pathlib import Path
from _http import Engine
from sandboxkit.backend import AgentBundle, AgentMissing
from tests.backends.conftest import connect
from tests.backends.lab import Lab
backend_name, url, build, arch, path = sys.argv[1:]
engine = Engine(backend_name, url)
agent = AgentBundle(build=build, paths={arch: Path(path)})
backend = connect(engine)
lab = Lab(engine, backend, agent)
for attempt in range(6):
    try:
        print(lab.run("echo ran").stdout, end="")
        break
    except AgentMissing:
        pass
backend.close()
"""


def filler(engine: Engine, agent: AgentBundle) -> subprocess.Popen[str]:
    [(arch, path)] = agent.paths.items()
    arguments = [engine.backend, engine.url, agent.build, arch, str(path)]
    folders = [str(ROOT), str(ROOT / "backends"), str(ROOT / "tools")]
    return subprocess.Popen(
        [sys.executable, "-c", FILLER, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_fill_it_at_once_all_get_their_container(lab: Lab) -> None:
    lab.remove_volume(lab.agent.volume)
    processes = [filler(lab.engine, lab.agent) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["ran\n"] * 3


def test_threads_that_fill_it_at_once_all_get_their_container(lab: Lab, fresh: Backend) -> None:
    lab.remove_volume(lab.agent.volume)
    other = Lab(lab.engine, fresh, lab.agent)
    fresh.ensure_image(BUSYBOX, Pull.NEVER)
    outputs: list[str] = []

    def run() -> None:
        for _ in range(6):
            try:
                outputs.append(other.run("echo ran").stdout)
                return
            except AgentMissing:
                continue

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outputs == ["ran\n"] * 4
    assert our_helpers(fresh) == []
