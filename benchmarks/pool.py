"""How long a session from a warm pool takes to get, against making one: ratios of medians, per engine.

    python benchmarks/pool.py [--runs 10]

Cold is create_session and a first `true`; warm is entering `pool.acquire()` when the pool is full, and the same with a
first `true`.
"""

from __future__ import annotations

import argparse
import statistics
import time

from _engines import Engine, engines

from sandboxkit import Pool, Sandbox


def cold(sandbox: Sandbox) -> float:
    """Seconds from nothing to the result of a first command."""
    start = time.perf_counter()
    with sandbox.create_session() as session:
        session.exec("true").check()
        return time.perf_counter() - start


def warm(pool: Pool) -> tuple[float, float]:
    """Seconds until the session is there, and until the result of a first command in it."""
    pool.wait_warm()
    start = time.perf_counter()
    with pool.acquire() as session:
        acquired = time.perf_counter() - start
        session.exec("true").check()
        return acquired, time.perf_counter() - start


def measure(engine: Engine, runs: int) -> None:
    """One engine."""
    sandbox = engine.sandbox()
    cold(sandbox)
    with Pool(sandbox, 1) as pool:
        times = []
        for _ in range(runs):
            acquired, ran = warm(pool)
            pool.wait_warm()  # or making the next one would slow the cold start beside it
            times.append((cold(sandbox), acquired, ran))
    colds, acquires, firsts = (statistics.median(column) for column in zip(*times, strict=True))
    print(engine)
    print(f"  cold start with a first command    {colds * 1000:9.3f} ms")
    print(f"  acquire  {acquires * 1000:9.3f} ms   1/{colds / acquires:.0f} (must be at most 1/50)")
    print(f"  acquire with a first command       {firsts * 1000:9.3f} ms   1/{colds / firsts:.0f}")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    for engine in engines():
        measure(engine, options.runs)


if __name__ == "__main__":
    main()
