"""Running tests as an ordinary user, from tests that run as root: the same files, in a pytest of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

UID = 59321
"""A user without an account, a group, a home or a process of its own."""


@contextmanager
def ordinary_user(uid: int = UID) -> Iterator[dict[str, Any]]:
    """Options for `subprocess.run` that make it this user's, with an environment and a home of its own."""
    # In /tmp whatever TMPDIR says: that may be in a folder of root's.
    with tempfile.TemporaryDirectory(prefix="sandboxkit-ordinary-", dir="/tmp") as home:
        if os.geteuid() != 0:
            yield {"env": environment(home)}
            return
        os.chown(home, uid, uid)
        yield {"env": environment(home), "user": uid, "group": uid, "extra_groups": []}


def home(options: dict[str, Any]) -> str:
    """That of `ordinary_user`."""
    found: str = options["env"]["HOME"]
    return found


def environment(home: str) -> dict[str, str]:
    """Nothing of the caller's but what finds this checkout, its dependencies and the programs."""
    paths = [ROOT, ROOT / "backends", ROOT / "tools", *filter(None, sys.path)]
    kept = {name: os.environ[name] for name in ("CI", "SANDBOXKIT_TEST_MARGIN") if name in os.environ}
    return {
        **kept,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@functools.lru_cache(maxsize=1)
def python() -> str:
    """An interpreter that this user may execute and that finds pytest: this one may be out of reach, in root's home."""
    check = "import pytest, sys, sandboxkit; sys.exit(sys.version_info < (3, 10))"
    with ordinary_user() as options:
        for candidate in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
            try:
                if subprocess.run([candidate, "-c", check], capture_output=True, cwd="/", **options).returncode == 0:
                    return candidate
            except OSError:
                continue
    raise AssertionError(f"no Python that uid {UID} may execute finds pytest and {ROOT}: all may have to read both")


def run_pytest(*arguments: str, timeout: float) -> None:
    """AssertionError with the end of pytest's own report when a test fails, or none ran."""
    with ordinary_user() as options:
        result = subprocess.run(
            [
                python(),
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                f"--basetemp={home(options)}/pytest",
                *arguments,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )
    assert result.returncode == 0, (result.stdout + result.stderr)[-8000:]


def run_program(program: str, *arguments: str, uid: int = UID, timeout: float = 60) -> str:
    """The standard output of a Python program of that user's, which has to succeed."""
    command: Sequence[str] = [python(), "-c", program, *arguments]
    with ordinary_user(uid) as options:
        result = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=timeout, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)
