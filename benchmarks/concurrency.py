"""How many commands a second 64 threads get through: one session against as many threads of local `subprocess.run`.

    python benchmarks/concurrency.py [--threads 64] [--each 100]

Needs `make images`. Every result is checked; the two take turns, and the ratio is of one run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from _engines import Engine, engines, timed

ROUNDS = 3


def in_threads(threads: int, each: int, call: Callable[[int], str]) -> None:
    """`each` calls in each of `threads` threads; every one must answer with its own number."""

    def work(thread: int) -> None:
        for number in range(thread * each, (thread + 1) * each):
            answer = call(number)
            assert answer == f"{number}\n", f"{answer!r} came, not {number}"

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, thread) for thread in range(threads)]:
            done.result()


def local(number: int) -> str:
    """The floor: what the standard library does on this host."""
    return subprocess.run(["echo", str(number)], capture_output=True, text=True, check=True).stdout


def measure(engine: Engine, threads: int, each: int) -> None:
    """One engine: commands a second of both, then the ratio."""
    with engine.sandbox().create_session() as session:
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            ours.append(timed(lambda: in_threads(threads, each, lambda n: session.exec("echo", [str(n)]).stdout)))
            theirs.append(timed(lambda: in_threads(threads, each, local)))
    rate, floor = threads * each / statistics.median(ours), threads * each / statistics.median(theirs)
    print(engine)
    print(f"  sandboxkit             {rate:8.0f} commands/s")
    print(f"  subprocess.run         {floor:8.0f} commands/s")
    print(f"  sandboxkit / subprocess.run: {rate / floor:.2f} (must be at least 0.8)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description="Commands a second from many threads.")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--each", type=int, default=100)
    options = parser.parse_args()
    for engine in engines():
        measure(engine, options.threads, options.each)


if __name__ == "__main__":
    main()
