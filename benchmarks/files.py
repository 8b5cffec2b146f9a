"""Files alone: `python -m benchmarks.files` measures `write-*`, `read-*`, `list-*`; report in build/bench/files."""

from __future__ import annotations

import sys

from .environments import BUILD
from .run import main

if __name__ == "__main__":
    figures = ("write-*", "read-*", "list-*")
    chosen = [argument for figure in figures for argument in ("--only", figure)]
    sys.exit(main([*chosen, "--output", str(BUILD / "files"), *sys.argv[1:]]))
