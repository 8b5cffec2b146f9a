"""The binaries under test, each compiled once for a state of the sources: the one that ships, and one with sanitizers.

``python tests/agent/build.py`` prints their paths.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agent.build_agent import build_agents

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "agent"
BUILD = ROOT / "build" / "agent"
SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def flags() -> list[str]:
    return (SOURCES / "CFLAGS").read_text().split()


def c_files() -> list[Path]:
    return sorted(SOURCES.glob("*.c"))


def compile_once(name: str, command: Sequence[str], inputs: Sequence[Path]) -> Path:
    """`command` plus the output's name, unless these inputs were compiled by it before. Safe in parallel."""
    digest = hashlib.sha256(repr(command).encode())
    for path in sorted([*inputs, *SOURCES.rglob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    output = BUILD / f"{name}-{digest.hexdigest()[:16]}"
    if not output.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        scratch = output.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(scratch)], check=True)
        scratch.replace(output)
    return output


def release(arch: str = "x86_64") -> Path:
    """What the package build makes, by the package build's own code."""
    return build_agents() / f"agent-{arch}"


def sanitized() -> Path:
    """The same sources under AddressSanitizer and UBSan, by the system's compiler."""
    files = c_files()
    return compile_once("sanitized", ["gcc", *flags(), *SANITIZE, *map(str, files)], files)


def tool(name: str) -> Path:
    """A program that tests run, as a static one."""
    source = Path(__file__).with_name(f"{name}.c")
    return compile_once(name, ["gcc", *flags(), "-O1", "-static", str(source)], [source])


def harness(source: Path, *agent_files: str, defines: Sequence[str] = ()) -> Path:
    """A test program in C, compiled with the agent's files that it tests, under the sanitizers."""
    files = [source, *(SOURCES / name for name in agent_files)]
    options = [*flags(), *SANITIZE, f"-I{SOURCES}", *defines]
    return compile_once(source.stem, ["gcc", *options, *map(str, files)], files)


if __name__ == "__main__":
    print(release(), sanitized(), sep="\n")
