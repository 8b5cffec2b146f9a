"""Statistics, ratios, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results import Results, Row, percentile

SAMPLES = st.lists(st.floats(min_value=1e-9, max_value=1e6), min_size=1, max_size=50)


def results(**seconds: float) -> Results:
    """One figure, of these competitors."""
    return Results(
        {"scale": "full"}, [Row.of("docker", "exec-true", name.replace("_", "-"), [s]) for name, s in seconds.items()]
    )


@given(SAMPLES, st.floats(min_value=0.01, max_value=1.0))
def test_a_percentile_is_a_sample_that_so_many_are_not_above(samples: list[float], share: float) -> None:
    found = percentile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= share * len(samples) - 1e-9
    assert sum(sample < found for sample in samples) < share * len(samples) + 1e-9


def test_of_a_hundred_the_95th_is_the_95th_percentile() -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], 0.95) == 95.0


def test_a_row_keeps_best_median_and_p95_of_all_its_runs() -> None:
    row = Row.of("docker", "exec-true", "docker-py", [3.0, 1.0, 2.0, 10.0])
    assert (row.count, row.best, row.median, row.p95) == (4, 1.0, 2.5, 10.0)


def test_a_ratio_is_in_multiples_of_sandboxkits_median_on_the_same_engine() -> None:
    found = results(sandboxkit=0.002, docker_py=0.1)
    found.rows.append(Row.of("podman", "exec-true", "podman-py", [0.1]))
    assert [found.ratio(row) for row in found.rows] == [1.0, pytest.approx(50.0), None]


def test_a_figure_measured_again_replaces_the_earlier_one() -> None:
    found = results(sandboxkit=0.002)
    found.rows.append(Row.of("docker", "exec-true", "sandboxkit", [0.001]))
    assert found.median("docker", "exec-true", "sandboxkit") == 0.001


def test_what_is_saved_can_be_loaded_and_holds_the_ratio(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    found = results(sandboxkit=0.002, docker_py=0.1)
    found.rows.append(Row("docker", "pool", "docker-py", reason="no pool"))
    found.save(path)
    assert Results.load(path) == found
    assert [row["ratio"] for row in json.loads(path.read_text())["rows"]] == [1.0, 50.0, None]


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    path.write_text('{"format": 0, "rows": []}')
    with pytest.raises(ValueError, match="run the benchmarks again"):
        Results.load(path)
