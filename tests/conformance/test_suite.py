"""The suite itself: what it is made of, what it leaves out when, and that its leak check sees leaks."""

from __future__ import annotations

import ast
import importlib
import re
import tempfile
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from sandboxkit import conformance
from sandboxkit.backend import Feature
from sandboxkit.conformance import Conformance, Trait
from sandboxkit.conformance._suite import standard_tests

SOURCES = sorted(Path(conformance.__file__).parent.glob("*.py"))
ENGINES = {"docker", "podman", "bubblewrap", "local"}


def class_of(features: frozenset[Feature], traits: frozenset[Trait]) -> type[Conformance]:
    return type("TestSome", (Conformance,), {"features": features, "traits": traits})


def selected(suite: type[Conformance]) -> set[str]:
    return {name for name in standard_tests(suite) if getattr(suite, name) is not None}


def test_every_test_says_what_it_holds_a_backend_to() -> None:
    for name, test in standard_tests(Conformance).items():
        assert test.__doc__, name


def test_no_two_areas_have_a_test_of_the_same_name() -> None:
    names = [name for base in Conformance.__mro__ for name in vars(base) if name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_no_test_asks_which_engine_it_is(path: Path) -> None:
    strings = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert strings & ENGINES == set()


@pytest.mark.parametrize("feature", Feature)
def test_a_feature_adds_tests_or_takes_the_refusal_away(feature: Feature) -> None:
    everything = frozenset(Feature)
    with_it = selected(class_of(everything, frozenset(Trait)))
    without_it = selected(class_of(everything - {feature}, frozenset(Trait)))
    assert with_it != without_it


def test_a_backend_without_any_feature_still_has_most_of_the_suite() -> None:
    least = selected(class_of(frozenset(), frozenset()))
    assert len(least) > 150
    assert {"test_true_exits_with_0", "test_a_network_is_refused"} <= least
    assert "test_killing_everything_kills_only_commands" not in least, "it would kill the caller's own processes"


def test_plain_asserts_explain_themselves_in_anybodys_run() -> None:
    for path in SOURCES:
        if path.name != "__init__.py":
            module = importlib.import_module(f"{conformance.__name__}.{path.stem}")
            assert isinstance(module.__loader__, AssertionRewritingHook), path.name


def test_the_example_in_the_docstring_makes_a_test_class() -> None:
    code = re.search(r"run pytest::\n\n(.*?)\n\n`features`", conformance.__doc__ or "", re.DOTALL)
    assert code
    names: dict[str, type[Conformance]] = {}
    exec(re.sub(r"^    ", "", code[1], flags=re.MULTILINE), names)
    assert "test_true_exits_with_0" in selected(names["TestFirecracker"])


HEAD = """
import pytest
from tests.conformance.test_local import TestLocalNamespace as Base

class TestOnly(Base):
    features = Base.features

for name in dir(TestOnly):
    if name.startswith("test_") and name != "test_no_standard_test_is_dropped":
        setattr(TestOnly, name, None)
del Base
"""


def run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makepyfile(test_only=HEAD + body)
    pytester.makeini("[pytest]\nxfail_strict = true\n")
    plugins = ("cacheprovider", "hypothesispytest", "xdist", "timeout", "randomly")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(pytester.path))  # where what a leaky test leaves is thrown away
        return pytester.runpytest_inprocess(*(option for plugin in plugins for option in ("-p", f"no:{plugin}")))


LEAKS = {
    "process": "sh(self.rig.shared('shell'), 'setsid sleep 1000 >/dev/null 2>&1 &')",
    "file": "kept.append(open('/dev/null'))",
    "thread": "threading.Thread(target=time.sleep, args=(3,), name='sandboxkit-left', daemon=True).start()",
    "child": "kept.append(subprocess.Popen(['sleep', '3']))",
    "session": "kept.append(self.sandbox().create_session())",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_the_leak_check_sees(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, leak: str) -> None:
    """A leak check around every engine test."""
    monkeypatch.setattr("sandboxkit.conformance._suite.SETTLE", 0.2)
    body = f"""
import subprocess, threading, time
from sandboxkit.conformance._inside import sh
kept = []

class TestLeaky(TestOnly):
    test_no_standard_test_is_dropped = None
    def test_leaves_something(self):
        {LEAKS[leak]}
    def test_is_not_blamed(self):
        pass
    @classmethod
    def end_class(cls):
        for thing in kept:
            for name in ("destroy", "close", "kill", "wait"):
                getattr(thing, name, int)()
        super().end_class()

del TestOnly
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines("*the test left something behind*")


def dropped(**overrides: object) -> None:
    """The suite's own test for a class that overrides some of the others."""
    members = {"features": frozenset(Feature), "traits": frozenset(Trait), **overrides}
    suite = type("TestSome", (Conformance,), members)
    suite().test_no_standard_test_is_dropped()


def test_a_class_that_overrides_nothing_drops_nothing() -> None:
    dropped()


@pytest.mark.parametrize(
    "override", [None, lambda self: None, pytest.mark.xfail(lambda self: None), pytest.mark.skip(lambda self: None)]
)
def test_dropping_a_test_without_a_reason_is_a_failure(override: object) -> None:
    """No silent opt-outs."""
    with pytest.raises(AssertionError, match="test_true_exits_with_0"):
        dropped(test_true_exits_with_0=override)


def test_dropping_a_test_with_a_strict_reason_is_none() -> None:
    """Dropping a standard test needs a strict, reasoned xfail."""

    @pytest.mark.xfail(strict=True, reason="not yet")
    def override(self: Conformance) -> None: ...

    dropped(test_true_exits_with_0=override)
