"""What the benchmarks share: the engines of `make engines`, and a container of the engine's own to compare with."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import docker
import podman

from sandboxkit import Limits, Sandbox

ENGINES = Path(__file__).parent.parent / "build" / "engines.json"
IMAGE = "sandboxkit-test/busybox"


@attrs.frozen
class Engine:
    """One line of build/engines.json."""

    backend: str
    url: str
    rootless: bool

    def __str__(self) -> str:
        return f"{'rootless ' if self.rootless else ''}{self.backend} at {self.url}"

    def cli(self, *arguments: str) -> list[str]:
        """A command line of the engine's own client at this very address."""
        return [self.backend, "--host" if self.backend == "docker" else "--url", self.url, *arguments]

    def sandbox(self, limits: Limits | None = None) -> Sandbox:
        """Ours, on this engine."""
        return Sandbox(IMAGE, self.backend, self.url, limits=limits or Limits(allow_unenforced=True), pull="never")


def engines() -> list[Engine]:
    """Those that `make engines` set up."""
    return [Engine(**line) for line in json.loads(ENGINES.read_text("utf-8"))]


class EngineContainer:
    """A container that does nothing, and the SDK's exec call in it."""

    def __init__(self, engine: Engine) -> None:
        # Rootful Podman refuses its own default limits where the host's are lower.
        limits = [{"Name": "nofile", "Soft": 1024, "Hard": 1024}, {"Name": "nproc", "Soft": 4096, "Hard": 4096}]
        if engine.backend == "docker":
            self._client = docker.DockerClient(base_url=engine.url)
            options = {}
        else:
            self._client = podman.PodmanClient(base_url=engine.url)
            options = {"ulimits": limits}
        self._container = self._client.containers.create(IMAGE, ["sleep", "100000"], network_mode="none", **options)
        self.id: str = self._container.id
        self._container.start()

    def exec_run(self, *command: str) -> bytes:
        """The SDK's own exec, output collected."""
        output: bytes = self._container.exec_run(list(command))[1]
        return output

    def remove(self) -> None:
        """End it at once, and the client's connections."""
        self._container.kill()
        self._container.remove(force=True)
        self._client.close()


@contextmanager
def engine_container(engine: Engine) -> Iterator[EngineContainer]:
    """One for the length of a block."""
    container = EngineContainer(engine)
    try:
        yield container
    finally:
        container.remove()


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: dict[str, Callable[[], object]], runs: dict[str, int]) -> dict[str, list[float]]:
    """Each call so many times, taking turns, so that a busy machine slows all alike; a first round is not counted."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    most = max(runs.values())
    for turn in range(most):
        for name, call in calls.items():
            # Those with fewer runs have them spread over the whole.
            if turn * runs[name] // most != (turn + 1) * runs[name] // most:
                times[name].append(timed(call))
    return times


def piped(command: list[str]) -> int:
    """Run a client into a pipe and count what comes out, as a program that captures output would."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        total = 0
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            total += len(chunk)
    return total
