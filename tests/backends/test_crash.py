"""When the host process is killed, its container and its volume go by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import allowed, wait_until

from .lab import Lab

ROOT = Path(__file__).parents[2]
HOST = """
import sys, time
from pathlib import Path
from sandboxkit.backend import AgentBundle
from _http import Engine
from tests.backends.conftest import connect
from tests.backends.lab import Lab
name, url, build, arch, path = sys.argv[1:]
engine = Engine(name, url)
lab = Lab(engine, connect(engine), AgentBundle(build=build, paths={arch: Path(path)}))
with lab.running("/bin/cat") as running:
    running.send(b"alive")
    assert running.receive_exactly(5) == b"alive"
    print(running.id, *lab.volumes, flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_no_container_and_no_volume(lab: Lab) -> None:
    lab.backend.install_agent(lab.agent, "sandboxkit-test/busybox")
    [(arch, path)] = lab.agent.paths.items()
    arguments = [lab.engine.backend, lab.engine.url, lab.agent.build, arch, str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends"), str(ROOT / "tools")])},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        container_id, volume = process.stdout.readline().split()
        # Both are seen before: only then does their absence say something.
        assert lab.backend.inspect(container_id).running
        assert lab.volume_exists(volume)
        process.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    wait_until(lambda: lab.request("GET", f"/containers/{container_id}/json").status == 404, "the container is gone")
    wait_until(lambda: not lab.volume_exists(volume), "its volume is gone")
    assert time.monotonic() - begin < allowed(2)
