"""The driver: who is asked when, what counts, and what happens to those who fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from benchmarks.competitors import ENTRIES, FLOOR
from benchmarks.competitors.base import Engine
from benchmarks.driver import FailedError, Scale, Worker, interleave
from benchmarks.measures import MEASURES, Measure, Metric
from benchmarks.operations import TREE_SIZE, Samples

ONCE = Scale("test", rounds=1.0, budget=1.0, deadline=20.0)
MEASURE = Measure("Commands", "exec", {"seconds": Metric("exec", "a command")}, rounds=3, budget=100.0)


class Scripted:
    """A worker that says what it is told to, and keeps who was asked in which order."""

    def __init__(self, name: str, asked: list[str], failure: FailedError | None = None) -> None:
        self.entry = replace(ENTRIES[FLOOR], name=name)
        self._asked = asked
        self._failure = failure

    def start(self) -> None:
        """It is there."""

    def ask(self, operation: str, arguments: dict[str, Any], repeat: int, deadline: float) -> Samples:
        self._asked.append(self.entry.name)
        if self._failure:
            raise self._failure
        return {"seconds": [float(len(self._asked))]}


def run(*workers: Scripted, measure: Measure = MEASURE) -> dict[str, tuple[Samples, str]]:
    """Of each what it gave and why it failed, in the order in which they were finished."""
    found: dict[str, tuple[Samples, str]] = {}

    def finished(worker: Worker, samples: Samples, error: FailedError | None) -> None:
        assert worker.entry.name not in found
        found[worker.entry.name] = (samples, str(error or ""))

    interleave([cast("Worker", worker) for worker in workers], measure, ONCE, finished)
    return found


def test_competitors_take_turns_and_the_first_call_of_each_is_not_counted() -> None:
    asked: list[str] = []
    found = run(Scripted("a", asked), Scripted("b", asked))
    assert "".join(asked) == "abababab"
    assert found == {"a": ({"seconds": [3.0, 5.0, 7.0]}, ""), "b": ({"seconds": [4.0, 6.0, 8.0]}, "")}


def test_one_that_fails_is_asked_once_and_its_reason_kept() -> None:
    asked: list[str] = []
    found = run(Scripted("a", asked), Scripted("b", asked, FailedError("it has none")))
    assert "".join(asked) == "abaaa"
    assert found["b"] == ({}, "it has none")
    assert list(found) == ["b", "a"]  # told as soon as it is known


def test_one_that_is_too_slow_for_its_budget_keeps_its_only_sample() -> None:
    asked: list[str] = []
    found = run(Scripted("a", asked), measure=replace(MEASURE, budget=0.0))
    assert found == {"a": ({"seconds": [1.0]}, "")}


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker(ENTRIES[FLOOR], Engine("host"), sys.executable)
    try:
        yield found
    finally:
        found.close()


def test_a_worker_answers_with_as_many_samples_as_it_is_asked_for(worker: Worker) -> None:
    samples = worker.ask("exec", {"argv": ["true"]}, 3, 20.0)["seconds"]
    assert len(samples) == 3
    assert all(sample > 0 for sample in samples)
    assert "attrs" in worker.versions


def test_what_a_competitor_lacks_is_a_reason(worker: Worker) -> None:
    with pytest.raises(FailedError, match="no pool of ready sandboxes") as caught:
        worker.ask("pool", {}, 1, 20.0)
    assert not caught.value.slow


def test_a_wrong_answer_is_no_figure(worker: Worker) -> None:
    with pytest.raises(FailedError, match="CalledProcessError"):
        worker.ask("exec", {"argv": ["false"]}, 1, 20.0)


def test_one_that_does_not_answer_in_time_is_killed_and_started_anew(worker: Worker) -> None:
    with pytest.raises(FailedError, match=r"not done within 0\.5 s") as caught:
        worker.ask("exec", {"argv": ["sleep", "60"]}, 1, 0.5)
    assert caught.value.slow
    assert worker.ask("exec", {"argv": ["true"]}, 1, 20.0)["seconds"]


def test_processes_that_outlive_an_abort_are_counted_and_have_no_time(worker: Worker) -> None:
    # subprocess.run kills its child alone.
    assert worker.ask("abort", {}, 1, 20.0) == {"seconds": [], "survivors": [float(TREE_SIZE)]}


def test_files_and_output_are_compared_not_only_timed(worker: Worker) -> None:
    for operation in ("stdout", "write", "read"):
        assert worker.ask(operation, {"size": 1000}, 1, 20.0)["seconds"]
    assert worker.ask("list", {"count": 20}, 1, 20.0)["seconds"]
    assert worker.ask("threads", {"threads": 4, "each": 2}, 1, 20.0)["seconds"]


def test_every_measure_names_an_operation_and_figures_of_it(worker: Worker) -> None:
    for operation in {measure.operation for measure in MEASURES}:
        with pytest.raises(FailedError) as caught:
            worker.ask(operation, {"nobody": "knows"}, 1, 20.0)
        assert "unexpected keyword argument" in str(caught.value)
