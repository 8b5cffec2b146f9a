"""tests/_ci.py really fails what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MODULE_SKIP = "import pytest; pytest.skip('no engine', allow_module_level=True)\n"
TESTS = """
import pytest

@pytest.mark.skip(reason="no engine")
def test_marked(): ...

def test_called(): pytest.skip("no engine")

@pytest.mark.xfail(strict=True, reason="known")
def test_expected(): raise ValueError

def test_passes(): ...
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests._ci", "-p", "no:cacheprovider", f"--rootdir={folder}", folder],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\n")
    tmp_path.joinpath("test_some.py").write_text(TESTS)
    return tmp_path


def test_a_skip_in_ci_is_a_failure(folder: Path) -> None:
    result = run(folder, CI="true")
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in result.stdout
    assert "no engine\nIn CI a skip is a failure" in result.stdout
    assert result.returncode == 1


def test_a_module_skipped_in_ci_is_an_error(folder: Path) -> None:
    folder.joinpath("test_some.py").write_text(MODULE_SKIP)
    result = run(folder, CI="true")
    assert "no engine\nIn CI a skip is a failure" in result.stdout
    assert result.returncode == 2


def test_outside_ci_a_skip_is_a_skip(folder: Path) -> None:
    result = run(folder)
    assert "1 passed, 2 skipped, 1 xfailed" in result.stdout
    assert result.returncode == 0
