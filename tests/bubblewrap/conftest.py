from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sandboxkit_bubblewrap import BubblewrapBackend

from sandboxkit import Limits, Sandbox, Session

Inside = Callable[..., str]


def python_paths() -> list[str]:
    """What a sandbox needs besides /usr for a `python3` of its own: nothing, or the virtual environment of this one."""
    return [] if shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") else [sys.prefix]


@pytest.fixture(scope="session")
def backend() -> BubblewrapBackend:
    return BubblewrapBackend.connect()


@pytest.fixture(scope="session")
def limits(backend: BubblewrapBackend) -> Limits:
    """Limits that hold here: an ordinary user may have no cgroup."""
    return Limits(allow_unenforced=not {"memory", "pids"} <= backend.info().enforceable)


@pytest.fixture(scope="module")
def session(limits: Limits) -> Iterator[Session]:
    """On the host's own programs."""
    with Sandbox.host(limits=limits, extra_paths=python_paths()).create_session() as session:
        yield session


@pytest.fixture
def in_threads() -> Callable[[Callable[[], str], int], list[str]]:
    """What a function returns in each of so many threads, all at once."""

    def run(function: Callable[[], str], count: int) -> list[str]:
        with ThreadPoolExecutor(count) as pool:
            return [future.result() for future in [pool.submit(function) for _ in range(count)]]

    return run


@pytest.fixture
def inside(session: Session) -> Inside:
    """Run Python in the sandbox; what it prints."""

    def run(program: str, *args: object) -> str:
        result = session.exec("python3", ["-c", program, *map(str, args)])
        assert result.ok, result.stderr
        return result.stdout.strip()

    return run
