"""The same tests as an ordinary user: most of the backend's users are, and everything is made in another way then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import ordinary

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES)
def test_all_of_it_holds_for_an_ordinary_user(file: str) -> None:
    if os.geteuid() == 0:  # else this very run is one
        ordinary.run_pytest(str(HERE / file), timeout=600)
