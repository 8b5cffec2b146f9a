"""Figures: how they are made from samples, kept, and asked for."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .competitors import OURS

FORMAT = 1


def percentile(samples: list[float], share: float) -> float:
    """The smallest sample that at least so great a share of all is not above."""
    return sorted(samples)[max(math.ceil(len(samples) * share), 1) - 1]


@dataclass(frozen=True)
class Row:
    """One figure of one competitor on one engine: statistics of `count` runs, or the `reason` why there is none."""

    engine: str
    metric: str
    competitor: str
    count: int = 0
    best: float | None = None
    median: float | None = None
    p95: float | None = None
    worst: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, engine: str, metric: str, competitor: str, samples: list[float]) -> Row:
        """From at least one sample."""
        p95 = percentile(samples, 0.95)
        return cls(engine, metric, competitor, len(samples), min(samples), median(samples), p95, max(samples))


def _ratio(row: Row, ours: float | None) -> float | None:
    return row.median / ours if ours and row.median is not None else None


@dataclass
class Results:
    """One run: who, where, with what, and the figures."""

    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def find(self, engine: str, metric: str, competitor: str) -> Row | None:
        """The latest figure of that name, or None."""
        wanted = (engine, metric, competitor)
        return next((r for r in reversed(self.rows) if (r.engine, r.metric, r.competitor) == wanted), None)

    def median(self, engine: str, metric: str, competitor: str) -> float | None:
        """The middle one of its runs, or None where there is no figure."""
        row = self.find(engine, metric, competitor)
        return row.median if row else None

    def ratio(self, row: Row) -> float | None:
        """How many times sandboxkit's figure of the same run this one is; None without either."""
        return _ratio(row, self.median(row.engine, row.metric, OURS))

    def save(self, path: Path) -> None:
        """As JSON; whole or not at all."""
        ours = {(row.engine, row.metric): row.median for row in self.rows if row.competitor == OURS}
        rows = [{**vars(row), "ratio": _ratio(row, ours.get((row.engine, row.metric)))} for row in self.rows]
        for row in rows:
            for name, value in row.items():
                row[name] = float(f"{value:.5g}") if isinstance(value, float) else value
        text = json.dumps({"format": FORMAT, **self.about, "rows": rows}, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(text + "\n", "utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Results:
        """What `save` wrote."""
        about = json.loads(path.read_text("utf-8"))
        if about.pop("format") != FORMAT:
            raise ValueError(f"{path} is of another format: run the benchmarks again")
        rows = [{name: value for name, value in row.items() if name != "ratio"} for row in about.pop("rows")]
        return cls(about, [Row(**row) for row in rows])
