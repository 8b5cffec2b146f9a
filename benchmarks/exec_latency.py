"""How long one command takes: a warm `true` in a session against a local subprocess and the engine's own exec call.

    python benchmarks/exec_latency.py [--runs 300]

Needs `make images`. Absolute times mean nothing on a shared machine; the ratios are of one run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Callable

from _engines import Engine, engine_container, engines, interleaved


def measure(engine: Engine, runs: int) -> None:
    """One engine: a line a competitor, then the two ratios."""
    sdk = f"{engine.backend} SDK exec_run"
    with engine_container(engine) as container, engine.sandbox().create_session() as session:
        calls: dict[str, Callable[[], object]] = {
            "sandboxkit": lambda: session.exec("true"),
            "subprocess.run": lambda: subprocess.run(["true"], capture_output=True, check=True),
            sdk: lambda: container.exec_run("true"),
        }
        times = interleaved(calls, {"sandboxkit": runs, "subprocess.run": runs, sdk: max(runs // 10, 10)})
    medians = {name: statistics.median(found) for name, found in times.items()}
    ours = medians["sandboxkit"]
    print(engine)
    for name, found in times.items():
        p95 = sorted(found)[int(len(found) * 0.95)]
        print(f"  {name:22} median {medians[name] * 1000:8.3f} ms   p95 {p95 * 1000:8.3f} ms")
    print(f"  sandboxkit / subprocess.run: {ours / medians['subprocess.run']:.2f} (must be at most 1.5)")
    print(f"  {sdk} / sandboxkit: {medians[sdk] / ours:.0f} (must be at least 50 for docker)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description="Latency of one command.")
    parser.add_argument("--runs", type=int, default=300)
    runs = parser.parse_args().runs
    for engine in engines():
        measure(engine, runs)


if __name__ == "__main__":
    main()
