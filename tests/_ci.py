"""What every run of the tests obeys: cheap layers go first, and in CI no skip passes in silence.

A plugin: ``tests/conftest.py`` names it in ``pytest_plugins``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

# Test id → why CI can't run it. Empty is how it should be.
ALLOWED_SKIPS: dict[str, str] = {}

FIRST = ("test_imports.py", "test_ci.py")
LAST = ("conformance", "packaging")


def stage(path: Path) -> int:
    tests = Path(__file__).parent
    layer = path.relative_to(tests).parts[0] if path.is_relative_to(tests) else ""
    if layer in FIRST:
        return 0
    return 2 + LAST.index(layer) if layer in LAST else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: stage(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):  # pytest reports an expected failure as skipped
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if "CI" in os.environ and report.skipped and report.nodeid not in ALLOWED_SKIPS:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\nIn CI a skip is a failure, unless tests/_ci.py lists it with a reason."
