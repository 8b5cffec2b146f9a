"""The page and the chart say what was measured, and why something was not."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import chart
from benchmarks.measures import metrics
from benchmarks.render import cell, picture, quantity, report, write_report
from benchmarks.results import Results, Row

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> Results:
    about = {
        "scale": "quick",
        "machine": {"processor": "a <fast> one"},
        "engines": {"docker": "docker 1"},
        "competitors": {"docker-py": {"version": "docker 7", "note": ""}},
    }
    return Results(
        about,
        [
            Row.of("docker", "exec-true", "sandboxkit", [0.001] * 10),
            Row.of("docker", "exec-true", "docker-py", [0.07] * 9 + [0.2]),
            Row("docker", "exec-true", "smolagents", reason="ImportError: no such module"),
            Row.of("docker", "stdout-64MiB", "sandboxkit", [0.5]),
        ],
    )


def test_a_cell_has_the_median_the_p95_and_the_ratio(results: Results) -> None:
    row = results.find("docker", "exec-true", "docker-py")
    assert cell(row, metrics()["exec-true"], results) == "70 ms (p95 200 ms) **70x**"


def test_a_cell_of_a_large_transfer_has_its_rate(results: Results) -> None:
    row = results.find("docker", "stdout-64MiB", "sandboxkit")
    assert cell(row, metrics()["stdout-64MiB"], results) == "500 ms, 128 MiB/s"


def test_who_could_not_run_is_in_the_page_with_the_reason(results: Results) -> None:
    page = report(results)
    assert "| 1 ms (p95 1 ms) | 70 ms (p95 200 ms) **70x** | n/a |" in page
    assert "- smolagents: ImportError: no such module (`true` in a warm session)" in page


def test_the_page_says_that_a_quick_run_was_one(results: Results) -> None:
    assert "This was a `quick` run" in report(results)
    results.about["scale"] = "full"
    assert "This was a" not in report(results)


def test_a_broken_bound_is_marked(results: Results) -> None:
    results.rows.append(Row.of("docker", "exec-true", "subprocess.run", [0.0001]))
    (line,) = [line for line in report(results).splitlines() if line.startswith("| warm `true`, against")]
    assert line.endswith("| 10x ! |")


def test_the_chart_is_a_picture_with_a_bar_for_each_competitor(results: Results) -> None:
    root = ET.fromstring(picture(results, "docker"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"sandboxkit", "docker-py", "1x", "70x"} <= set(texts)
    assert (
        len(list(root.iter(f"{SVG}rect"))) == 1 + 2
    )  # the background, and two bars: alone, 64 MiB compares with nobody


@pytest.mark.parametrize("ratios", [[1.0], [0.0, 1.0], [0.001, 1.0, 5000.0], [1.0, 1.0]])
def test_bars_are_longer_for_greater_ratios_and_stay_inside(ratios: list[float]) -> None:
    bars = [chart.Bar("a <b> & c", ratio) for ratio in ratios]
    root = ET.fromstring(chart.draw("title", [chart.Panel("panel", bars)]))
    widths = [float(rect.get("width", "")) for rect in root.iter(f"{SVG}rect")][1:]
    assert widths == sorted(widths)
    assert all(0 < width <= chart.WIDTH - chart.LEFT - chart.RIGHT for width in widths)


def test_the_report_is_written_beside_the_results(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "results" / "latest.json")
    write_report(results, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["RESULTS.md", "docker.svg", "latest.json"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.5, "s", "2.5 s"),
        (0.0123, "s", "12.3 ms"),
        (0.00002, "s", "20 µs"),
        (0.64, "MiB", "0.64 MiB"),
        (4.0, "processes", "4"),
    ],
)
def test_quantities_have_a_unit_that_suits_them(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
