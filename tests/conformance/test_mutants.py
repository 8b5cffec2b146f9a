"""The suite is worth its time: each thing broken on purpose turns the tests red that are named for it."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator

import pytest

from sandboxkit.conformance import Conformance
from sandboxkit.conformance._suite import applies, standard_tests

from . import mutants_network, test_local
from .mutants import MUTANTS, Mutant

# A class of its own with the named tests alone: to collect the whole suite takes longer than to run a few.
MODULE = """
from tests.conformance.test_local import TestLocal

class TestOnly(TestLocal):
    features = TestLocal.features

for name in dir(TestOnly):
    if name.startswith("test_") and name not in {names}:
        setattr(TestOnly, name, None)

del TestLocal
"""


assert mutants_network  # its mutants are among the others


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr("sandboxkit.conformance._suite.SETTLE", 0.2)
    try:
        mutant.apply(patch)
        yield
    finally:
        patch.undo()


def run(pytester: pytest.Pytester, *tests: str) -> dict[str, set[str]]:
    """Those tests of the suite on the local backend, in this process: from a test's name to the phases that failed."""
    names = {test.partition("[")[0] for test in tests}
    path = pytester.makepyfile(test_only=MODULE.format(names=names))
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    plugins = ("cacheprovider", "hypothesispytest", "xdist", "timeout", "randomly")
    options = [option for plugin in plugins for option in ("-p", f"no:{plugin}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(pytester.path))  # where what a broken library leaves is thrown away
        record = pytester.inline_run(*options, "-q", *(f"{path}::TestOnly::{test}" for test in tests))
    failed: dict[str, set[str]] = {}
    for report in record.getreports("pytest_runtest_logreport"):
        assert isinstance(report, pytest.TestReport)
        name = report.nodeid.rpartition("TestOnly::")[2]
        failed.setdefault(name, set())
        if report.failed:
            failed[name].add(report.when)
    return failed


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_is_broken_is_noticed(pytester: pytest.Pytester, mutant: Mutant) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a broken library leaves things to the collector
        with broken(mutant):
            failed = run(pytester, *mutant.tests)
    assert set(failed) == set(mutant.tests), "a named test is not there"
    assert {name for name, phases in failed.items() if not phases} == set(), "not noticed"
    assert all("setup" not in phases for phases in failed.values())


def test_what_is_not_broken_passes(pytester: pytest.Pytester) -> None:
    """So the failures above are the mutants' doing, not this way of running tests."""
    names = ["test_true_exits_with_0", "test_leaving_the_block_destroys", "test_a_timeout_leaves_no_process"]
    assert run(pytester, *names) == {name: set() for name in names}


def test_every_mutant_names_tests_of_the_suite() -> None:
    standard = standard_tests(Conformance)
    for mutant in MUTANTS:
        for test in mutant.tests:
            found = standard[test.partition("[")[0]]
            assert applies(found, {*test_local.TestLocal.features, *test_local.TestLocal.traits}), test
