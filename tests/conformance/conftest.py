"""Around each test here: temporary files go to a folder of the run's own, and none stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this process and its children put what they make for a moment. Others use the machine's own."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    assert os.listdir(folder) == [], "temporary files were left behind"


@pytest.fixture(autouse=True)
def no_temporary_files(temporary_folder: Path) -> Iterator[None]:
    before = set(os.listdir(temporary_folder))
    yield
    new = {name for name in os.listdir(temporary_folder) if not name.startswith("sandboxkit-local-")} - before
    assert new == set(), "the test left temporary files behind"
