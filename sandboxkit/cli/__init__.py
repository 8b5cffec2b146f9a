"""The command line: `sandboxkit` (`pip install 'sandboxkit[cli]'`)."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """What the console script runs. Without its packages one line says which extra is missing."""
    for name in ("click", "rich"):
        if importlib.util.find_spec(name) is None:
            sys.exit(f"sandboxkit: the package {name} is missing: pip install 'sandboxkit[cli]'")
    from ._commands import cli

    cli(prog_name="sandboxkit")
