"""`python -m sandboxkit.cli` is the console script."""

from . import main

main()
