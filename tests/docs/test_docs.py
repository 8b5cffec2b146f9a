"""Every example in the docs runs, and the output they print is what comes out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _http import Engine, read_engines

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The images of the examples come from a registry; the tests' own stand in for them.
STAND_INS = {"docker.io/library/python:3.12-slim": "sandboxkit-test/python"}

ENGINES = ("docker", "podman", "podman-rootless")

pytestmark = pytest.mark.engine


def engine_named(name: str) -> Engine:
    """One that `make engines` has set up; its absence is a failure."""
    backend, _, rootless = name.partition("-")
    return next(e for e in read_engines() if (e.backend, e.rootless) == (backend, bool(rootless)))


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


@pytest.mark.parametrize("name", ["docker", "podman"])  # their limits hold wherever `make engines` works as root
@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in python_blocks()])
def test_every_python_block_of_the_docs_runs(source: str, name: str) -> None:
    done = run(self_contained(source), engine_named(name))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_first_example_prints_what_its_lines_say(name: str) -> None:
    done = run(self_contained(python_blocks()[0][1]), engine_named(name))
    assert re.fullmatch(r"42\n 0 \d+\.\d+\nTrue None\n", done.stdout), done


@pytest.mark.parametrize("name", ENGINES)
def test_the_quickstart_prints_what_the_readme_shows(name: str) -> None:
    engine = engine_named(name)
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
