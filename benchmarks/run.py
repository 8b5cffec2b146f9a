"""`make bench`: every competitor on every engine, into results/latest.json, RESULTS.md and the chart beside it.

    python -m benchmarks.run [--quick] [--only GLOB]... [--engine NAME]... [--competitor NAME]... [--output FOLDER]

`--only` names figures (`exec-*`, `stdout-64MiB`); `--list` prints them. Needs `make engines images`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import machine
from .competitors import ENTRIES, Entry
from .competitors.base import Engine
from .driver import FULL, QUICK, FailedError, Scale, Worker, interleave
from .environments import REQUIREMENTS, PreparationError, provide_image, python_of
from .measures import MEASURES, Measure, metrics
from .operations import Samples
from .render import quantity, write_report
from .results import Results, Row

HERE = Path(__file__).parent
Say = Callable[[str], object]


class Run:
    """Measures into `results` as it goes: `keep` is called whenever there is more, so that no interruption loses it."""

    def __init__(
        self, results: Results, scale: Scale, *, own: bool, say: Say, keep: Callable[[], object] = lambda: None
    ) -> None:
        self._results = results
        self._scale = scale
        self._own = own
        self._say = say
        self._keep = keep
        self._too_slow: dict[tuple[str, str, str], str] = {}

    def engine(self, engine: Engine, measures: list[Measure], names: list[str]) -> None:
        """One engine: its competitors' processes live through all its measures."""
        about = self._results.about
        about.setdefault("engines", {})[engine.name] = machine.describe_engine(engine)
        self._say(f"== {about['engines'][engine.name]}")
        workers = [
            worker
            for entry in ENTRIES.values()
            if engine.name in entry.engines and entry.name in names
            for worker in self._prepare(entry, engine, measures)
        ]
        here = [measure for measure in measures if not measure.engines or engine.name in measure.engines]
        try:
            for number, measure in enumerate(here, 1):
                self._say(f"{engine.name}, {number} of {len(here)}: {measure.name}")
                self._measure(engine, measure, [w for w in workers if not measure.only or w.entry.name in measure.only])
        finally:
            for worker in workers:
                self._describe(worker)
            self._keep()
            with ThreadPoolExecutor() as pool:  # some take ten seconds to end a container
                list(pool.map(Worker.close, workers))

    def _prepare(self, entry: Entry, engine: Engine, measures: list[Measure]) -> list[Worker]:
        try:
            python = python_of(entry, own=self._own)
            provide_image(entry, engine.url)
        except PreparationError as error:
            self._say(f"{entry.name}: {error}")
            self._results.rows += [
                Row(engine.name, metric.id, entry.name, reason=str(error))
                for measure in measures
                for metric in measure.metrics.values()
            ]
            return []
        return [Worker(entry, engine, python)]

    def _measure(self, engine: Engine, measure: Measure, workers: list[Worker]) -> None:
        willing = []
        for worker in workers:
            reason = self._too_slow.get((engine.name, worker.entry.name, measure.family))
            if reason and measure.family:
                self._add([Row(engine.name, m.id, worker.entry.name, reason=reason) for m in measure.metrics.values()])
            else:
                willing.append(worker)

        def finished(worker: Worker, samples: Samples, error: FailedError | None) -> None:
            if error is not None and error.slow:
                title = next(iter(measure.metrics.values())).title
                reason = f"not tried: {title}: {error}"
                self._too_slow[engine.name, worker.entry.name, measure.family] = reason
            rows = [
                Row.of(engine.name, metric.id, worker.entry.name, samples[key])
                if samples.get(key)
                else Row(engine.name, metric.id, worker.entry.name, reason=str(error or _nothing(key, samples)))
                for key, metric in measure.metrics.items()
            ]
            self._add(rows)

        interleave(willing, measure, self._scale, finished)

    def _add(self, rows: list[Row]) -> None:
        self._results.rows.extend(rows)
        self._keep()
        first = rows[0]
        if first.median is None:
            self._say(f"    {first.competitor}: {first.reason}")
        else:
            found = quantity(first.median, metrics()[first.metric].unit)
            self._say(f"    {first.competitor}: {found}, {first.count} run{'s' if first.count > 1 else ''}")

    def _describe(self, worker: Worker) -> None:
        entry = worker.entry
        if entry.name.endswith(" CLI"):
            version = machine.client_version(worker.engine.backend)
        else:
            version = ", ".join(f"{name} {number}" for name, number in pinned(entry, worker.versions).items())
        self._results.about.setdefault("competitors", {})[entry.name] = {"version": version, "note": entry.note}


def _nothing(key: str, samples: Samples) -> str:
    if key == "seconds" and samples.get("survivors"):
        return "some of it survived each time"
    return "no container to look into"


def pinned(entry: Entry, versions: dict[str, str]) -> dict[str, str]:
    """Of the packages in its environment, those that are its own choice and the SDKs."""
    file = REQUIREMENTS / f"{entry.name}.txt"
    chosen = re.findall(r"^[\w-]+", file.read_text("utf-8"), re.MULTILINE) if entry.requirements else ["sandboxkit"]
    chosen = [*chosen, "docker", "podman"] if entry.name not in ("subprocess.run", "bwrap") else []
    return {name: versions[name] for name in dict.fromkeys(chosen) if name in versions}


def select(only: list[str]) -> list[Measure]:
    """The measures that give a figure which one of the patterns names; without a pattern all."""
    return [
        measure
        for measure in MEASURES
        if not only or any(fnmatch(m.id, pattern) for m in measure.metrics.values() for pattern in only)
    ]


def measure_all(
    measures: list[Measure], engines: list[Engine], names: list[str], scale: Scale, *, own: bool, say: Say, kept: Path
) -> Results:
    """All of it, one engine after the other. What there is so far is always in the file `kept`."""
    now = datetime.now(timezone.utc)
    about: dict[str, Any] = {"scale": scale.name, "started": now.strftime("%Y-%m-%d %H:%M UTC")}
    results = Results({**about, "machine": machine.describe_machine()})
    begin = time.monotonic()

    def say_when(line: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - begin), 60)
        say(f"{minutes:3}:{seconds:02}  {line}")

    run = Run(results, scale, own=own, say=say_when, keep=lambda: results.save(kept))
    for engine in engines:
        run.engine(engine, measures, names)
    results.about["minutes"] = round((time.monotonic() - begin) / 60, 1)
    return results


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=lines[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer runs, without the largest sizes")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="figures by name; may be repeated")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME", help="docker, podman, ...; repeatable")
    parser.add_argument("--competitor", action="append", default=[], choices=list(ENTRIES), help="may be repeated")
    parser.add_argument("--output", type=Path, default=HERE, metavar="FOLDER", help="where the report goes")
    parser.add_argument("--list", action="store_true", help="print the names of the figures and end")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, save, render."""
    options = arguments(argv)
    if options.list:
        for metric in metrics().values():
            print(f"{metric.id:28}{metric.title}")
        return 0
    measures = [measure for measure in select(options.only) if not (options.quick and measure.full)]
    engines = [each for each in machine.engines() if not options.engine or each.name in options.engine]
    if not measures or not engines:
        print("nothing to measure: see --list, and build/engines.json for the engines", file=sys.stderr)
        return 2
    names = options.competitor or list(ENTRIES)
    scale = QUICK if options.quick else FULL
    kept = options.output / "results" / "unfinished.json"
    print(f"what is measured is in {kept} at once; it becomes latest.json at the end", flush=True)
    results = measure_all(
        measures, engines, names, scale, own=True, say=lambda line: print(line, flush=True), kept=kept
    )
    results.save(options.output / "results" / "latest.json")
    kept.unlink(missing_ok=True)
    write_report(results, options.output)
    print(f"wrote {options.output / 'RESULTS.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
