"""How long one command takes: a warm `true` in a session against a local subprocess and the engine's own exec call.

    python benchmarks/exec_latency.py [--runs 300]

Every engine in build/engines.json (`make engines images`) is measured; competitors take turns within one run, so that a busy
machine slows them alike, and only ratios are compared. Prints, per engine, the medians and both ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import docker
import podman

from sandboxkit import Limits, Sandbox

ENGINES = Path(__file__).parent.parent / "build" / "engines.json"
IMAGE = "sandboxkit-test/busybox"
KEEP_ALIVE = ["sleep", "100000"]


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: dict[str, Callable[[], object]], runs: dict[str, int]) -> dict[str, list[float]]:
    """Each call so many times, taking turns; the first round is not counted."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    most = max(runs.values())
    for turn in range(most):
        for name, call in calls.items():
            # The slow ones run less often, spread over the whole run.
            if turn * runs[name] // most != (turn + 1) * runs[name] // most:
                times[name].append(timed(call))
    return times


class EngineExec:
    """A container of the engine's own, and one `true` in it through the engine's own SDK."""

    def __init__(self, backend: str, url: str) -> None:
        client = docker.DockerClient(base_url=url) if backend == "docker" else podman.PodmanClient(base_url=url)
        self._container = client.containers.create(
            IMAGE, KEEP_ALIVE, network_mode="none", **({"ulimits": _ulimits()} if backend == "podman" else {})
        )
        self._container.start()

    def __call__(self) -> None:
        self._container.exec_run(["true"])

    def close(self) -> None:
        self._container.kill()
        self._container.remove(force=True)


def _ulimits() -> list[dict[str, object]]:
    # Rootful Podman refuses its own defaults on hosts with lower hard limits.
    return [{"Name": "nofile", "Soft": 1024, "Hard": 1024}, {"Name": "nproc", "Soft": 4096, "Hard": 4096}]


def measure(backend: str, url: str, runs: int) -> None:
    """One engine, one line a competitor."""
    sandbox = Sandbox(IMAGE, backend, url, limits=Limits(allow_unenforced=True), pull="never")
    engine = EngineExec(backend, url)
    try:
        with sandbox.create_session() as session:
            calls: dict[str, Callable[[], object]] = {
                "sandboxkit": lambda: session.exec("true"),
                "subprocess.run": lambda: subprocess.run(["true"], capture_output=True),
                f"{backend} SDK exec_run": engine,
            }
            times = interleaved(calls, {"sandboxkit": runs, "subprocess.run": runs, f"{backend} SDK exec_run": max(runs // 10, 10)})
    finally:
        engine.close()
    ours = statistics.median(times["sandboxkit"])
    print(f"{backend} at {url}")
    for name, found in times.items():
        found.sort()
        median, p95 = statistics.median(found), found[int(len(found) * 0.95)]
        print(f"  {name:22} median {median * 1000:8.3f} ms   p95 {p95 * 1000:8.3f} ms   {median / ours:7.2f} x ours")
    local = ours / statistics.median(times["subprocess.run"])
    faster = statistics.median(times[f"{backend} SDK exec_run"]) / ours
    print(f"  ratio to local subprocess.run: {local:.2f} (must be at most 1.5)")
    print(f"  faster than {backend} SDK exec_run: {faster:.0f} times (must be at least 50 on docker)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    for engine in json.loads(ENGINES.read_text("utf-8")):
        measure(engine["backend"], engine["url"], options.runs)


if __name__ == "__main__":
    main()
