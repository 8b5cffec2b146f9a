"""examples/agent_loop.py: the loop around a scripted model, on this host and on engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _http import read_engines

ROOT = Path(__file__).parents[2]
SAID = [
    "exec_command refused: Error: 'pip' is not allowed here. Allowed: python3.",
    "exec_command done: The command exited with 1 after",
    "search_files done: prices.py:4: def total(prices, discount=0):",
    'read_file done: """Prices in cents."""',
    "edit_file refused: Error: 'tests/test_prices.py' may not be written here. Use another path.",
    "edit_file done: prices.py was changed once.",
    "exec_command done: The command exited with 0 after",
    "The tests pass.",
]


def check(arguments: list[str], **env: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[: len(said)] for line, said in zip(lines, SAID, strict=True)] == SAID


def test_the_example_without_an_engine(tmp_path: Path) -> None:
    program = (
        "import importlib.util, runpy, sys; from pathlib import Path; import sandboxkit\n"
        "from tests.support.local import LocalBackend\n"
        "plain = sandboxkit.Sandbox\n"
        f"sandboxkit.Sandbox = lambda image, **rest: plain(image, LocalBackend(Path({str(tmp_path)!r})), **rest)\n"
        "runpy.run_path('examples/agent_loop.py', run_name='__main__')"
    )
    check(["-c", program])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
@pytest.mark.parametrize("name", ["docker", "podman", "podman-rootless"])
def test_the_example_on_an_engine(name: str) -> None:
    backend, _, rootless = name.partition("-")
    engine = next(e for e in read_engines() if (e.backend, e.rootless) == (backend, bool(rootless)))
    check(
        ["examples/agent_loop.py"],
        SANDBOXKIT_BACKEND=backend,
        SANDBOXKIT_URL=engine.url,
        SANDBOXKIT_IMAGE="sandboxkit-test/python",
    )
