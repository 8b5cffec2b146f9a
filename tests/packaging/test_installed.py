"""The package as a user gets it, run from a folder that has nothing to do with the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.conftest import environment_with, run_python

pytestmark = pytest.mark.packaging

ENTRY_POINTS = """
from importlib.metadata import entry_points
for entry in sorted(entry_points(group="sandboxkit.backends"), key=lambda entry: entry.name):
    print(entry.name, entry.value)
"""
LOCATION = "import sandboxkit, pathlib; print(pathlib.Path(sandboxkit.__file__).parent)"


def test_it_imports_without_any_extra(installed: Path, tmp_path: Path) -> None:
    package = Path(run_python("-c", LOCATION, cwd=tmp_path, python=installed).strip())
    assert package.is_relative_to(installed.parent.parent)
    assert package.joinpath("py.typed").is_file()
    assert run_python("-m", "pip", "check", cwd=tmp_path, python=installed) == "No broken requirements found.\n"


def test_its_backends_are_found(installed: Path, tmp_path: Path) -> None:
    assert run_python("-c", ENTRY_POINTS, cwd=tmp_path, python=installed).splitlines() == [
        "bubblewrap sandboxkit_bubblewrap:BubblewrapBackend",
        "docker sandboxkit_docker:DockerBackend",
        "podman sandboxkit_podman:PodmanBackend",
    ]


def test_an_editable_install_has_the_agents_in_the_source_tree(clean_checkout: Path, tmp_path: Path) -> None:
    hook = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    wheel = tmp_path / run_python("-c", hook, cwd=clean_checkout).splitlines()[-1]
    python = environment_with(wheel, tmp_path / "environment")
    package = Path(run_python("-c", LOCATION, cwd=tmp_path, python=python).strip())
    assert package == clean_checkout / "sandboxkit"
    agents = package / "_agents"
    assert {path.name for path in agents.iterdir()} == {"agent-x86_64", "agent-aarch64", "manifest.json"}
    assert run_python("-c", "import sandboxkit_docker as it; print(it.__name__)", cwd=tmp_path, python=python)
