"""Every example in the docs runs, and the output they print is what comes out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engines import ENGINES, Engine

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The images of the examples come from a registry; the tests' own stand in for them.
STAND_INS = {"docker.io/library/python:3.12-slim": "sandboxkit-test/python"}

pytestmark = pytest.mark.engine


def python_blocks() -> list[tuple[str, str]]:
    """`page:number` and source of every Python block, in order."""
    return [
        (f"{page.name}:{index}", source)
        for page in PAGES
        for index, (language, source) in enumerate(BLOCK.findall(page.read_text("utf-8")))
        if language == "python"
    ]


def run(source: str, engine: Engine) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, with the engine as `auto` finds it."""
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
        env={**os.environ, "SANDBOXKIT_BACKEND": engine.backend, "SANDBOXKIT_URL": engine.url},
    )


def self_contained(source: str) -> str:
    """The block with stand-ins for images, and a session around it when it uses one that the page made before."""
    for image, ours in STAND_INS.items():
        source = source.replace(image, ours)
    if "create_session" in source or "session" not in source:
        return source
    indented = "".join(f"    {line}" for line in source.splitlines(keepends=True))
    return (
        "from sandboxkit import *\n"
        "with Sandbox('sandboxkit-test/python', limits=Limits(allow_unenforced=True)).create_session() as session:\n"
        "    session.exec('mkdir', ['logs']).check()\n" + indented
    )


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if not engine.rootless], ids=str)
@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in python_blocks()])
def test_every_python_block_of_the_docs_runs(source: str, engine: Engine) -> None:
    done = run(self_contained(source), engine)
    assert done.returncode == 0, done.stderr


def test_the_first_example_prints_what_it_is_said_to_print(engine: Engine) -> None:
    if engine.rootless:
        pytest.skip("the first example sets limits, which this engine does not enforce on cgroup v1")
    done = run(self_contained(python_blocks()[0][1]), engine)
    assert re.fullmatch(r"42\n 0 0\.\d+\nTrue None\n", done.stdout), done


def test_the_quickstart_prints_what_the_readme_shows(engine: Engine) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={
            **os.environ,
            "SANDBOXKIT_BACKEND": engine.backend,
            "SANDBOXKIT_URL": engine.url,
            "SANDBOXKIT_IMAGE": "sandboxkit-test/busybox",
        },
    )
    assert done.returncode == 0, done.stderr
    shown = re.search(r"<!-- output: examples/quickstart.py -->\n```\n(.*?)```", PAGES[0].read_text("utf-8"), re.DOTALL)
    assert shown is not None
    # The first line names the engine, and times differ; all else is the same on every engine.
    assert normal(done.stdout) == normal(shown.group(1))


def normal(output: str) -> list[str]:
    """Without the engine's line and the times."""
    return [re.sub(r"in \d+ ms|after [\d.]+ s", "<time>", line) for line in output.splitlines()[1:]]
