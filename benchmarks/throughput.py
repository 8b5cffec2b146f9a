"""Output alone: `python -m benchmarks.throughput` measures `stdout-*`; its report goes to build/bench/throughput."""

from __future__ import annotations

import sys

from .environments import BUILD
from .run import main

if __name__ == "__main__":
    sys.exit(main(["--only", "stdout-*", "--output", str(BUILD / "throughput"), *sys.argv[1:]]))
