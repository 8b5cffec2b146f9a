"""The command line with one backend more, `local`: the agent as a plain process (tests/support/local.py).

`python -m tests.tools.local_cli FOLDER ARGS...`
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import EntryPoint

from sandboxkit import _registry
from sandboxkit.cli import main

ENTRY = EntryPoint("local", "tests.support.local:LocalBackend", _registry.GROUP)

if __name__ == "__main__":
    # Whatever runs the tests may ignore Ctrl-C; a terminal does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, folder, command, *args = sys.argv
    _registry._entries = lambda: {"local": ENTRY}  # type: ignore[assignment]
    sys.argv = ["sandboxkit", command, *(["--backend", "local", "--url", folder] if folder else []), *args]
    main()
