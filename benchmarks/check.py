"""`make bench-check`: fails when a bound is broken.

    python -m benchmarks.check [--short] [--engine NAME]... [--file results/latest.json]

Measures what the bounds need, with the clients in the developer's environment; `--short` in CI's time, with smaller
sizes and wider margins. Both sides of a ratio are the best of their interleaved runs, since a busy machine only adds
time; a broken bound on them is measured anew, twice, before it counts. `--file` judges the medians of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from . import machine
from .bounds import BOUNDS, Bound, Verdict, best, judge, middle
from .competitors.base import Engine
from .driver import Scale
from .measures import MEASURES, MIB, Measure
from .results import Results
from .run import Run, Say

ATTEMPTS = 3
FULL_MARGIN, SHORT_MARGIN = 1.1, 1.5
FULL = Scale("check", rounds=0.5, budget=0.5)
SHORT = Scale("short", rounds=0.34, budget=0.15)
# The short form's arguments: what a ratio or a growth shows of a smaller size.
SMALLER = {
    "stdout-256MiB": {"size": 64 * MIB},
    "flood": {"size": 128 * MIB},
    "rate-64": {"threads": 64, "each": 10},
    "port-download": {"size": 64 * MIB},
    "port-upload": {"size": 64 * MIB},
}


def needed(bounds: list[Bound], engine: str, *, short: bool) -> list[Measure]:
    """The measures that give what the bounds need, with those they compare; in the short form with smaller sizes."""
    needs = {need for bound in bounds for need in bound.needs(engine)}
    found = []
    for measure in MEASURES:
        ids = {metric.id for metric in measure.metrics.values()}
        if competitors := {competitor for metric, competitor in needs if metric in ids}:
            arguments = SMALLER.get(measure.name, measure.arguments) if short else measure.arguments
            found.append(replace(measure, only=tuple(sorted(competitors)), arguments=arguments))
    return found


def check_engine(
    results: Results, engine: str, measure: Callable[[list[Bound]], object], margin: float
) -> list[Verdict]:
    """Measure and judge one engine, what noise may have broken up to three times. The last verdict on each bound."""
    verdicts: dict[str, Verdict] = {}
    bounds = [bound for bound in BOUNDS if engine in bound.engines]
    for _ in range(ATTEMPTS):
        measure(bounds)
        verdicts |= {v.bound.id: v for v in judge(results, engine, best, margin) if v.bound in bounds}
        bounds = [v.bound for v in verdicts.values() if not v.ok and v.bound.noisy]
        if not bounds:
            break
    return list(verdicts.values())


def check_now(engines: list[Engine], *, short: bool, say: Say) -> list[Verdict]:
    """All engines, one after the other; prints each verdict."""
    results = Results()
    run = Run(results, SHORT if short else FULL, own=False, say=say)
    found: list[Verdict] = []
    for engine in engines:

        def measure(bounds: list[Bound], engine: Engine = engine) -> None:
            measures = needed(bounds, engine.name, short=short)
            run.engine(engine, measures, sorted({name for each in measures for name in each.only}))

        verdicts = check_engine(results, engine.name, measure, SHORT_MARGIN if short else FULL_MARGIN)
        for verdict in verdicts:
            print(verdict, flush=True)
        found += verdicts
    return found


def check_file(path: Path) -> list[Verdict]:
    """The medians of an earlier run; prints each verdict."""
    results = Results.load(path)
    verdicts = [v for engine in results.about["engines"] for v in judge(results, engine, middle, FULL_MARGIN)]
    for verdict in verdicts:
        print(verdict)
    return verdicts


def conclude(verdicts: list[Verdict]) -> int:
    """The exit status."""
    failed = [verdict for verdict in verdicts if not verdict.ok]
    print(f"{len(verdicts) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not verdicts else 0


def main() -> int:
    """0 if every bound holds, 1 if not, 2 if there is nothing to measure on."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=lines[0])
    parser.add_argument("--short", action="store_true", help="in CI's time")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME", help="may be repeated")
    parser.add_argument("--file", type=Path, help="judge these results instead of measuring")
    parser.add_argument("--verbose", action="store_true", help="show each measure as it is done")
    options = parser.parse_args()
    if options.file:
        verdicts = check_file(options.file)
    else:
        engines = [each for each in machine.engines() if not options.engine or each.name in options.engine]
        if len(engines) < 2 and not options.engine:
            print("there is no engine to measure on: run `make engines images`", file=sys.stderr)
            return 2
        say: Say = (lambda line: print(line, flush=True)) if options.verbose else (lambda _: None)
        verdicts = check_now(engines, short=options.short, say=say)
    return conclude(verdicts)


if __name__ == "__main__":
    sys.exit(main())
