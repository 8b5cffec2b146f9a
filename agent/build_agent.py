"""Compile the agent: the C sources beside this file become one static binary for each CPU, and a manifest.

Three ways in, one result, ``sandboxkit/_agents/``:

- the package build (``pip install .``, ``python -m build``) runs the ``build_agent`` step for the wheel;
- an editable install runs the same step, which then writes into the source tree;
- ``make agent`` (``python agent/build_agent.py``) updates the source tree without pip.

The compiler is clang with musl, from the PyPI package ``ziglang``, so no system compiler takes part. Binaries
are kept in ``build/agent-cache/<digest>``; the digest covers whatever decides their bytes (sources, flags,
targets, compiler), is compiled in as ``AGENT_BUILD`` and stands in the manifest as ``build``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
AGENTS = "sandboxkit/_agents"
MANIFEST = "manifest.json"
CPUS = ("x86_64", "aarch64")
# CFLAGS holds what the tests' builds of the agent share: the language and the warnings.
# No exceptions, so no unwind tables: a seventh of the size.
SIZE = ("-Os", "-static", "-s", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
FLAGS = (*SIZE, *(ROOT / "agent/CFLAGS").read_text().split())


def agent_name(cpu: str) -> str:
    return f"agent-{cpu}"


OUTPUTS = (*map(agent_name, CPUS), MANIFEST)


def source_files() -> list[str]:
    """The C sources and headers, relative to the project's root; subfolders (the fuzzers) are not part."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "agent").glob("*.[ch]"))


def build_digest() -> str:
    """16 hex digits that change whenever the binaries would."""
    digest = hashlib.sha256(json.dumps([importlib.metadata.version("ziglang"), CPUS, FLAGS]).encode())
    for source in source_files():
        digest.update(f"\0{source}\0".encode() + (ROOT / source).read_bytes())
    return digest.hexdigest()[:16]


def compile_agent(cpu: str, digest: str, output: Path) -> None:
    """Sources are named relative to the working folder, so every checkout gives the same bytes."""
    sources = [Path(source).name for source in source_files() if source.endswith(".c")]
    options = ["-target", f"{cpu}-linux-musl", *FLAGS, f'-DAGENT_BUILD="{digest}"']
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *options, *sources, "-o", output],
        # Not the root, which may hold the compiler in .venv: zig would then cache its files under other names.
        cwd=ROOT / "agent",
        # The first build for a CPU compiles musl, about a minute; this cache keeps it.
        env={"ZIG_GLOBAL_CACHE_DIR": str(BUILD / "zig-cache"), **os.environ},
        check=True,
    )


def write_manifest(folder: Path, digest: str) -> None:
    manifest: dict[str, object] = {"build": digest}
    for cpu in CPUS:
        binary = (folder / agent_name(cpu)).read_bytes()
        manifest[cpu] = {"sha256": hashlib.sha256(binary).hexdigest(), "size": len(binary)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def build_agents() -> Path:
    """The folder of finished outputs for the present sources, compiled now if no earlier build left one."""
    digest = build_digest()
    cache = BUILD / "agent-cache"
    finished = cache / digest
    if not finished.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as scratch, ThreadPoolExecutor() as pool:
            folder = Path(scratch, digest)
            folder.mkdir()
            list(pool.map(lambda cpu: compile_agent(cpu, digest, folder / agent_name(cpu)), CPUS))
            write_manifest(folder, digest)
            try:
                folder.rename(finished)  # the outputs appear all at once or not at all
            except OSError:
                # Another build may have been first: its outputs are the same bytes.
                if not finished.is_dir():
                    raise
    return finished


def place_agents(target: Path) -> None:
    """Put the outputs in ``target``, the manifest last; files that are right already are left alone."""
    finished = build_agents()
    target.mkdir(parents=True, exist_ok=True)
    for name in OUTPUTS:
        source, placed = finished / name, target / name
        if placed.is_file() and placed.read_bytes() == source.read_bytes():
            continue
        # Replaced, never rewritten: an agent that runs from this file keeps its own.
        scratch = placed.with_name(f".{name}.{os.getpid()}")
        shutil.copy2(source, scratch)
        scratch.replace(placed)


class BuildAgent(Command):
    """The ``build_agent`` step of the package build; setuptools' SubCommand protocol."""

    description = "compile the agent for every CPU"
    user_options: ClassVar[list[Any]] = []
    editable_mode = False
    build_lib = ""

    def initialize_options(self) -> None:
        self.build_lib = ""

    def finalize_options(self) -> None:
        self.build_lib = self.get_finalized_command("build_py").build_lib

    def run(self) -> None:
        place_agents((ROOT if self.editable_mode else Path(self.build_lib)) / AGENTS)

    def get_source_files(self) -> list[str]:
        """What an sdist needs to run this step, and the page that the sources cite."""
        return [*source_files(), "agent/CFLAGS", "agent/build_agent.py", "agent/PROTOCOL.md"]

    def get_outputs(self) -> list[str]:
        return [f"{self.build_lib}/{AGENTS}/{name}" for name in OUTPUTS]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.editable_mode:
            return {}
        return dict(zip(self.get_outputs(), (f"{AGENTS}/{name}" for name in OUTPUTS), strict=True))


class Build(build):
    """``build`` with the agent step, and without what an earlier build left behind."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_agent", None)]

    def run(self) -> None:
        # setuptools copies into build/lib but deletes nothing there: removed modules would come back.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


if __name__ == "__main__":
    try:
        place_agents(ROOT / AGENTS)
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.returncode)  # the compiler has said what is wrong
