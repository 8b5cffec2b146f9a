"""RESULTS.md and its chart, from results/latest.json.

python -m benchmarks.render [FOLDER | FOLDER/results/unfinished.json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from . import chart
from .bounds import BOUNDS, EVERYWHERE, Verdict, judge, middle
from .competitors import ENTRIES, FLOOR, OURS
from .measures import MEASURES, SECTIONS, Measure, Metric, metrics
from .results import Results, Row

CHARTED = ("exec-true", "cold", "close", "stdout-64MiB", "write-1MiB", "read-1MiB")
NAMES = {
    "docker": "Docker",
    "podman": "Podman, root",
    "podman-rootless": "Podman, rootless",
    "host": "Without an engine",
}


def write_report(results: Results, folder: Path) -> None:
    """RESULTS.md, and results/ENGINE.svg for each engine."""
    folder.joinpath("RESULTS.md").write_text(report(results), "utf-8")
    for engine in results.about.get("engines", {}):
        folder.joinpath("results", f"{engine}.svg").write_text(picture(results, engine), "utf-8")


def report(results: Results) -> str:
    """The page."""
    engines = [line for engine in _engines(results) for line in _engine(results, engine)]
    return "\n".join([*_head(results), *_bounds(results), *engines])


def picture(results: Results, engine: str) -> str:
    """The chart of one engine: each competitor's time as a multiple of sandboxkit's."""
    panels = []
    for metric in CHARTED:
        bars = []
        for name in ENTRIES:
            row = results.find(engine, metric, name)
            ratio = results.ratio(row) if row else None
            if ratio is not None:
                kind = chart.OURS if name == OURS else chart.FLOOR if name == FLOOR else chart.THEIRS
                bars.append(chart.Bar(name, ratio, kind))
        if len(bars) > 1:
            panels.append(chart.Panel(metrics()[metric].title, sorted(bars, key=lambda bar: bar.ratio)))
    title = f"{NAMES.get(engine, engine)}: time in multiples of sandboxkit's, logarithmic (shorter is faster)"
    return chart.draw(title, panels)


def cell(row: Row | None, metric: Metric, results: Results) -> str:
    """Median, 95th percentile of two runs or more, in bold the multiple of sandboxkit's; n/a where a note says why."""
    if row is None:
        return ""
    if row.median is None or row.p95 is None:
        return "n/a"
    if metric.unit != "s":
        return quantity(row.median, metric.unit)
    text = quantity(row.median, "s")
    if metric.mib is not None and row.median > 0:
        text += f", {chart.number(metric.mib / row.median)} MiB/s"
    else:
        text += f" (p95 {quantity(row.p95, 's')})" if row.count > 1 else " (one run)"
    ratio = results.ratio(row)
    if ratio is not None and row.competitor != OURS:
        text += f" **{chart.number(ratio)}x**"
    return text


def quantity(value: float, unit: str) -> str:
    """With a unit that suits its size."""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e-3, "ms")):
            if value >= factor:
                return f"{chart.number(value / factor)} {name}"
        return f"{chart.number(value * 1e6)} µs"
    if unit == "bytes":
        return f"{value:,.0f} bytes"
    return f"{chart.number(value)} MiB" if unit == "MiB" else f"{value:g}"


def _head(results: Results) -> Iterator[str]:
    about = results.about
    machine = about.get("machine", {})
    yield "# Benchmark results"
    yield ""
    yield "Made by `make bench`; do not edit. [README.md](README.md) tells what is measured, and what to mind."
    yield ""
    yield "Medians of interleaved runs on one machine. **Bold** is a figure in multiples of sandboxkit's of one run;"
    yield "only that compares across machines. Above 1x sandboxkit is faster."
    yield ""
    if about.get("scale") != "full":
        yield f"**This was a `{about.get('scale')}` run: fewer repetitions, larger noise.**"
        yield ""
    minutes = about.get("minutes")
    if minutes is None:
        yield "**This run was interrupted: what follows was measured until then.**"
        yield ""
    took = "interrupted" if minutes is None else f"{minutes} minutes"
    yield "| | |"
    yield "|---|---|"
    yield f"| run | {about.get('scale')}, {about.get('started')}, {took} |"
    yield (
        f"| machine | {machine.get('processor')}, {machine.get('cores')} cores, {machine.get('memory_gib')} GiB, "
        f"load before the run {machine.get('load_before')} |"
    )
    yield f"| system | {machine.get('system')}, Linux {machine.get('kernel')}, Python {machine.get('python')} |"
    for name, text in about.get("engines", {}).items():
        yield f"| {NAMES.get(name, name)} | {text} |"
    for name, facts in about.get("competitors", {}).items():
        text = "; ".join(part for part in (facts["version"], facts["note"]) if part)
        yield f"| {name} | {text or 'part of Python'} |"
    yield ""


def _bounds(results: Results) -> Iterator[str]:
    """Each bound with what was found on each engine."""
    engines = [engine for engine in _engines(results) if engine in EVERYWHERE]
    yield "## What must hold"
    yield ""
    yield "From medians. `make bench-check` enforces the second column; the third is aimed at. A ! breaks the bound."
    yield ""
    yield f"| | must | aim | {' | '.join(NAMES.get(engine, engine) for engine in engines)} |"
    yield f"|---|---|---|{'---|' * len(engines)}"
    found = {(v.engine, v.bound.id): v for engine in engines for v in judge(results, engine, middle, 1.0)}
    for bound in BOUNDS:
        sign = "≤" if bound.at_most else "≥"
        cells = [_verdict(found.get((engine, bound.id))) for engine in engines]
        limits = [f"{sign} {limit:g}{bound.unit}" for limit in (bound.must, bound.aim)]
        yield f"| {bound.title} | {' | '.join([*limits, *cells])} |"
    yield ""


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.value is None:
        return "n/a"
    return f"{chart.number(verdict.value)}{verdict.bound.unit}{'' if verdict.ok else ' !'}"


def _engines(results: Results) -> list[str]:
    return [engine for engine in results.about.get("engines", {}) if any(r.engine == engine for r in results.rows)]


def _engine(results: Results, engine: str) -> Iterator[str]:
    yield f"## {NAMES.get(engine, engine)}"
    yield ""
    yield f"![Times in multiples of sandboxkit's](results/{engine}.svg)"
    yield ""
    sections: dict[str, list[Measure]] = {section: [] for section in SECTIONS}
    for measure in MEASURES:
        sections[measure.section].append(measure)
    reasons: dict[str, set[str]] = {}
    for section, measures in sections.items():
        shown = [m for measure in measures for m in measure.metrics.values() if _any(results, engine, m)]
        names = [n for n in ENTRIES if any(results.find(engine, m.id, n) for m in shown)]
        if not shown:
            continue
        yield f"### {section}"
        yield ""
        # One row a figure, one column a competitor: what is compared stands side by side.
        yield f"| | {' | '.join(names)} |"
        yield f"|---|{'---|' * len(names)}"
        for metric in shown:
            rows = [results.find(engine, metric.id, name) for name in names]
            yield f"| {metric.title} | {' | '.join(cell(row, metric, results) for row in rows)} |"
            for row in rows:
                if row is not None and row.reason:
                    reasons.setdefault(f"{row.competitor}: {row.reason}", set()).add(metric.title)
        yield ""
    if reasons:
        yield "Why some figures are not available:"
        yield ""
        yield from (f"- {reason} ({'; '.join(sorted(titles))})" for reason, titles in sorted(reasons.items()))
        yield ""


def _any(results: Results, engine: str, metric: Metric) -> bool:
    return any(r.engine == engine and r.metric == metric.id for r in results.rows)


def main() -> int:
    """Render again what an earlier run has measured, or what an interrupted one had."""
    asked = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    file = asked / "results" / "latest.json" if asked.is_dir() else asked
    write_report(Results.load(file), file.parent.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
