"""The agent's own memcpy, memmove and memset, as each CPU has them."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.agent import build

RENAMED = tuple(f"-D{name}=agent_{name}" for name in ("memcpy", "memmove", "memset"))
SOURCE = Path(__file__).with_name("memory_check.c")


@pytest.mark.parametrize("variant", ["own", "any CPU"])
def test_every_size_offset_and_overlap(variant: str) -> None:
    assert platform.machine() in ("x86_64", "aarch64")
    other = ("-DANY_CPU",) if variant == "any CPU" else ()
    program = build.harness(SOURCE, defines=("-D__clang__=1", *RENAMED, *other))
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all are right\n", "")


def test_the_agent_that_ships_has_them() -> None:
    if platform.machine() == "x86_64":
        shown = subprocess.run(["objdump", "-d", build.release()], capture_output=True, text=True, check=True).stdout
        assert "rep movsb" in shown
