"""What ships, made once for a run: checkout → sdist → wheel → an empty environment outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# musl, which the agent's binaries contain, is compiled once for this checkout and not again by each build below.
BUILD_ENVIRONMENT: Mapping[str, str] = {"ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build/zig-cache"), **os.environ}
PIP_WHEEL = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")


def run_python(*arguments: str | Path, cwd: Path, python: Path | str = sys.executable) -> str:
    result = subprocess.run([python, *arguments], cwd=cwd, env=BUILD_ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def clean_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a fresh clone has them: without what was built in this one."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "_agents", "*.egg-info")
    for folder in ("agent", "backends", "sandboxkit", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for name in ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="session")
def sdist(clean_checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("sdist")
    run_python("-m", "build", "--sdist", "--no-isolation", "--outdir", output, cwd=clean_checkout)
    (path,) = output.iterdir()
    return path


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("wheel")
    run_python(*PIP_WHEEL, output, sdist, cwd=output)
    (path,) = output.iterdir()
    return path


@pytest.fixture(scope="session")
def second_wheel(sdist: Path, clean_checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout instead of the sdist, over what an older build left in ``build/lib``."""
    stale = clean_checkout / "build/lib"
    for name in ("sandboxkit/removed.py", "sandboxkit_removed/__init__.py"):
        stale.joinpath(name).parent.mkdir(parents=True)
        stale.joinpath(name).touch()
    output = tmp_path_factory.mktemp("second_wheel")
    run_python(*PIP_WHEEL, output, clean_checkout, cwd=output)
    (path,) = output.iterdir()
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that holds the wheel and what the wheel itself asks for, no extra."""
    return environment_with(wheel, tmp_path_factory.mktemp("installed"))


def environment_with(package: str | Path, folder: Path, *options: str) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run_python("-m", "pip", "install", "--quiet", *options, package, cwd=folder, python=python)
    return python
