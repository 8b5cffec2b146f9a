"""Who is compared: pinned, on engines that there are, and nobody's absence goes unsaid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.competitors import ENTRIES, PYTHON_IMAGE, Entry
from benchmarks.competitors.base import Engine
from benchmarks.driver import Finished, Scale, Worker
from benchmarks.environments import LAUNCHERS, REQUIREMENTS, PreparationError, python_of
from benchmarks.measures import MEASURES, Measure
from benchmarks.render import report
from benchmarks.results import Results
from benchmarks.run import Run, measure_all
from tests.benchmarks.test_driver import ONCE

PIN = re.compile(r"[\w-]+(\[[\w,]+\])?==[\w.]+(  # .*)?")
EACH = pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)


@EACH
def test_what_a_competitor_needs_is_pinned(entry: Entry) -> None:
    files = [f"{entry.name}.txt"] * entry.requirements + [f"{entry.name}.image.txt"] * (entry.image != PYTHON_IMAGE)
    for name in files:
        lines = REQUIREMENTS.joinpath(name).read_text("utf-8").splitlines()
        assert lines
        assert all(PIN.fullmatch(line) for line in lines)


def test_no_file_of_requirements_belongs_to_nobody() -> None:
    names = {path.name.removesuffix(".txt").removesuffix(".image") for path in REQUIREMENTS.iterdir()}
    assert names <= set(ENTRIES)
    assert {entry.name for entry in ENTRIES.values() if entry.image != PYTHON_IMAGE} == set(LAUNCHERS)


@EACH
def test_a_competitor_runs_on_engines_that_there_are(entry: Entry) -> None:
    assert set(entry.engines) <= {"docker", "podman", "podman-rootless", "host"}
    assert {name for measure in MEASURES for name in measure.only} <= set(ENTRIES)


def test_one_whose_packages_can_not_be_installed_is_in_the_results_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(entry: Entry, *, own: bool) -> str:
        raise PreparationError(f"no packages for {entry.name}")

    monkeypatch.setattr("benchmarks.run.python_of", refuse)
    measures = [measure for measure in MEASURES if measure.name == "exec-true"]
    results = Results()
    Run(results, ONCE, own=True, say=lambda _: None).engine(Engine("host"), measures, ["bwrap"])
    assert [(row.competitor, row.metric, row.reason) for row in results.rows] == [
        ("bwrap", "exec-true", "no packages for bwrap")
    ]


def test_without_environments_of_their_own_all_use_this_one() -> None:
    assert {Path(python_of(entry, own=False)).name for entry in ENTRIES.values()} == {
        Path(python_of(ENTRIES["bwrap"], own=True)).name
    }


def test_what_an_interrupted_run_has_measured_is_in_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(workers: Iterable[Worker], measure: Measure, scale: Scale, finished: Finished) -> None:
        if measure.name == "exec-python":
            raise KeyboardInterrupt
        for worker in workers:
            finished(worker, {"seconds": [0.5, 0.25]}, None)
            assert Results.load(kept).find("host", measure.name, worker.entry.name)

    monkeypatch.setattr("benchmarks.run.interleave", interrupted)
    measures = [measure for measure in MEASURES if measure.name in ("exec-true", "exec-python")]
    said: list[str] = []
    kept = tmp_path / "results" / "unfinished.json"
    with pytest.raises(KeyboardInterrupt):
        measure_all(measures, [Engine("host")], ["bwrap"], ONCE, own=False, say=said.append, kept=kept)
    left = Results.load(kept)
    assert [(row.competitor, row.metric, row.count) for row in left.rows] == [("bwrap", "exec-true", 2)]
    assert "This run was interrupted" in report(left)
    assert [re.sub(r"^ +\d+:\d\d +", "", line) for line in said[1:]] == [
        "host, 1 of 2: exec-true",
        "bwrap: 375 ms, 2 runs",
        "host, 2 of 2: exec-python",
    ]
    assert all(re.match(r" +\d+:\d\d  ", line) for line in said)
