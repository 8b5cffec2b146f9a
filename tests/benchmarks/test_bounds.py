"""Each bound holds at its limit and breaks beyond it, and a figure that is missing breaks it too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bounds import BOUNDS, Bound, Verdict, best, judge
from benchmarks.check import ATTEMPTS, check_engine, check_file, conclude, needed
from benchmarks.competitors import ENTRIES
from benchmarks.measures import MEASURES
from benchmarks.results import Results, Row

EACH_BOUND = pytest.mark.parametrize(
    ("bound", "engine"), [pytest.param(b, e, id=f"{b.id}-{e}") for b in BOUNDS for e in b.engines]
)
UNMEASURED = ["exec", "abort"]  # by the machine of some tests: a bound without its figures is broken
KINDLY = 0.9  # how far inside or outside of its limit a value is put


def figures(bound: Bound, engine: str, value: float) -> Results:
    """Results by which the bound has that value: the figures it needs, of which ours makes the difference."""
    needs = sorted(bound.needs(engine))
    rows = dict.fromkeys(needs, 1.0)
    scaled = [need for need in needs if need[1] == "sandboxkit"]
    if len(needs) == len(scaled) > 1 and bound.must == 0:  # a sum
        rows[scaled[-1]] = value - (len(scaled) - 1)
    elif bound.id == "tunnel-request":  # a difference, from 1
        rows["port-request", "sandboxkit"] = value + 1
    elif len(scaled) == len(needs) == 2:  # two figures of ours: the second one is the measure of the first
        first = next(need for need in scaled if need[0] in ("abort", "cold"))
        rows[first] = value
    elif bound.at_most:
        rows[scaled[0]] = value
    else:
        rows[scaled[0]] = 1 / value
    return Results({"engines": {engine: ""}}, [Row.of(engine, m, c, [v]) for (m, c), v in rows.items()])


def holds(bound: Bound, engine: str, value: float) -> bool:
    found = [v for v in judge(figures(bound, engine, value), engine, best, 1.0) if v.bound is bound]
    assert [v.value for v in found] == [pytest.approx(value)]
    return found[0].ok


@EACH_BOUND
def test_a_bound_holds_at_its_limit(bound: Bound, engine: str) -> None:
    assert holds(bound, engine, bound.must)


@EACH_BOUND
def test_a_bound_breaks_beyond_its_limit(bound: Bound, engine: str) -> None:
    assert not holds(bound, engine, (bound.must / KINDLY or 1.0) if bound.at_most else bound.must * KINDLY)


@EACH_BOUND
def test_a_figure_that_is_missing_breaks_the_bound(bound: Bound, engine: str) -> None:
    complete = figures(bound, engine, bound.must)
    for row in complete.rows:
        others = [each for each in complete.rows if each is not row]
        lost = Row(row.engine, row.metric, row.competitor, reason="it died")
        (found,) = [v for v in judge(Results(rows=[*others, lost]), engine, best, 1.0) if v.bound is bound]
        assert not found.ok
        assert "it died" in found.missing


@EACH_BOUND
def test_what_a_bound_needs_is_measured_of_somebody_who_runs_there(bound: Bound, engine: str) -> None:
    measured = {
        (metric.id, competitor)
        for measure in needed([bound], engine, short=True)
        for metric in measure.metrics.values()
        for competitor in measure.only
    }
    assert bound.needs(engine) <= measured
    assert all(engine in ENTRIES[competitor].engines for _, competitor in measured)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.id)
def test_a_margin_widens_a_noisy_bound_and_no_other(bound: Bound) -> None:
    wider = bound.limit(1.5)
    if not bound.noisy:
        assert wider == bound.must
    else:
        assert wider == pytest.approx(bound.must * 1.5 if bound.at_most else bound.must / 1.5)
    assert bound.holds(bound.must)
    assert bound.holds(bound.aim)


def test_one_process_that_survived_in_any_run_is_not_outvoted_by_the_runs_without() -> None:
    bound = next(bound for bound in BOUNDS if bound.id == "survivors")
    found = Results(
        rows=[
            Row.of("docker", "abort-survivors", "sandboxkit", [0.0] * 50 + [1.0]),
            Row.of("docker", "timeout-survivors", "sandboxkit", [0.0]),
        ]
    )
    (verdict,) = [v for v in judge(found, "docker", best, 1.5) if v.bound is bound]
    assert not verdict.ok


def measuring(id: str, values: list[float], asked: list[list[str]]) -> tuple[Results, Callable[[list[Bound]], object]]:
    """A machine on which one bound gets one value after the other, and every other one what it aims at."""
    results = Results()

    def measure(bounds: list[Bound]) -> None:
        asked.append([bound.id for bound in bounds])
        for bound in bounds:
            if bound.id == id:
                results.rows.extend(figures(bound, "host", values.pop(0)).rows)
            elif bound.id not in UNMEASURED:
                results.rows.extend(figures(bound, "host", bound.aim).rows)

    return results, measure


def broken(verdicts: list[Verdict]) -> list[str]:
    return [verdict.bound.id for verdict in verdicts if not verdict.ok]


def test_what_noise_may_have_broken_is_measured_again_and_nothing_else() -> None:
    asked: list[list[str]] = []
    results, measure = measuring("threads", [0.1, 1.0], asked)
    assert broken(check_engine(results, "host", measure, 1.0)) == UNMEASURED
    assert asked[1:] == [["exec", "abort", "threads"], UNMEASURED]


def test_what_stays_broken_fails() -> None:
    asked: list[list[str]] = []
    results, measure = measuring("threads", [0.1] * ATTEMPTS, asked)
    assert broken(check_engine(results, "host", measure, 1.0)) == [*UNMEASURED, "threads"]
    assert len(asked) == ATTEMPTS


def test_what_noise_does_not_move_gets_no_second_try() -> None:
    asked: list[list[str]] = []
    results, measure = measuring("flood", [99.0], asked)
    assert "flood" in broken(check_engine(results, "host", measure, 1.0))
    assert all("flood" not in again for again in asked[1:])


def test_a_file_of_results_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs = {need for bound in BOUNDS if "host" in bound.engines for need in bound.needs("host")}
    values = {metric: 0.0 if metric.endswith("survivors") else 1.0 for metric, _ in needs}
    rows = [Row.of("host", metric, competitor, [values[metric]]) for metric, competitor in sorted(needs)]
    results = Results({"engines": {"host": "bubblewrap"}}, rows)
    results.save(tmp_path / "latest.json")
    assert broken(check_file(tmp_path / "latest.json")) == []
    results.rows.append(Row.of("host", "flood", "sandboxkit", [99.0]))
    results.save(tmp_path / "latest.json")
    assert broken(check_file(tmp_path / "latest.json")) == ["flood"]
    assert "BROKEN host             growth" in capsys.readouterr().out


def test_a_bound_that_is_broken_fails_and_so_does_nothing_at_all() -> None:
    kept, lost = (Verdict("host", BOUNDS[0], value, 1.0) for value in (1, 9))
    assert [conclude(verdicts) for verdicts in ([kept], [kept, lost], [])] == [0, 1, 1]


def test_no_figure_has_the_name_of_another() -> None:
    ids = [metric.id for measure in MEASURES for metric in measure.metrics.values()]
    assert len(ids) == len(set(ids))
