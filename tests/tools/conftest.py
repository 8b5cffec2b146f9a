"""A session on this host, without any isolation, and all the tools of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Limits, Sandbox, Session
from tests.support.local import LocalBackend


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Shared by a module's tests: each keeps to names of its own."""
    backend = LocalBackend(tmp_path_factory.mktemp("engine"))
    with Sandbox("host", backend, limits=Limits(allow_unenforced=True)).create_session() as made:
        yield made
    backend.close()


@pytest.fixture
def own_session(tmp_path: Path) -> Iterator[Session]:
    """One of the test's own."""
    backend = LocalBackend(tmp_path)
    with Sandbox(
        "host", backend, limits=Limits(allow_unenforced=True, timeout=5, max_timeout=5)
    ).create_session() as made:
        yield made
    backend.close()
