"""What sandboxkit holds itself to: ratios of figures of one run, and a few sizes. `make bench-check` enforces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .competitors import FLOOR, OURS
from .results import Results, Row

SDK = {"docker": "docker-py", "podman": "podman-py", "podman-rootless": "podman-py"}
CLI = {"docker": "docker CLI", "podman": "podman CLI", "podman-rootless": "podman CLI"}
ENGINES = tuple(SDK)
EVERYWHERE = (*ENGINES, "host")
Statistic = Callable[[Row], float | None]


COUNTED = ("abort-survivors", "timeout-survivors")


def best(row: Row) -> float | None:
    """The least; but the greatest where something is counted that must not be."""
    return row.worst if row.metric in COUNTED else row.best


def middle(row: Row) -> float | None:
    """The median; but the greatest where something is counted that must not be."""
    return row.worst if row.metric in COUNTED else row.median


class MissingError(Exception):
    """A figure that a bound needs is not there; the message says which and why."""


class Figures:
    """The figures of one engine, one statistic of each."""

    def __init__(self, results: Results, engine: str, statistic: Statistic) -> None:
        self._results = results
        self._statistic = statistic
        self.engine = engine

    def of(self, metric: str, competitor: str) -> float:
        """Seconds, MiB, ...; MissingError where there is none."""
        row = self._results.find(self.engine, metric, competitor)
        value = self._statistic(row) if row else None
        if value is None:
            reason = row.reason if row else "it was not measured"
            raise MissingError(f"no figure {metric} of {competitor} on {self.engine}: {reason}")
        return value

    def ours(self, metric: str) -> float:
        """sandboxkit's."""
        return self.of(metric, OURS)

    def sdk(self, metric: str) -> float:
        """Of the engine's SDK."""
        return self.of(metric, SDK[self.engine])

    def cli(self, metric: str) -> float:
        """Of the engine's command-line client."""
        return self.of(metric, CLI[self.engine])


class _Asked(Figures):
    """Has every figure, and keeps which were asked for."""

    def __init__(self, engine: str) -> None:
        super().__init__(Results(), engine, lambda _: 1.0)
        self.needs: set[tuple[str, str]] = set()

    def of(self, metric: str, competitor: str) -> float:
        self.needs.add((metric, competitor))
        return 1.0


@dataclass(frozen=True)
class Bound:
    """What must hold of a figure, and what is aimed at. `noisy`: a busy machine moves it, so that a margin is due."""

    id: str
    title: str
    value: Callable[[Figures], float]
    must: float
    aim: float
    at_most: bool = True
    engines: tuple[str, ...] = EVERYWHERE
    noisy: bool = True
    unit: str = "x"

    def needs(self, engine: str) -> set[tuple[str, str]]:
        """Which figures of whom it is made of: names of metrics and competitors."""
        asked = _Asked(engine)
        self.value(asked)
        return asked.needs

    def limit(self, margin: float) -> float:
        """The bound, wider by the margin (1.0 is none) where noise moves the figure."""
        if not self.noisy:
            return self.must
        return self.must * margin if self.at_most else self.must / margin

    def holds(self, value: float, margin: float = 1.0) -> bool:
        """Whether a value keeps it."""
        limit = self.limit(margin)
        return value <= limit if self.at_most else value >= limit


BOUNDS: tuple[Bound, ...] = (
    Bound(
        "exec",
        "warm `true`, against `subprocess.run`",
        lambda f: f.ours("exec-true") / f.of("exec-true", FLOOR),
        must=1.5,
        aim=1.0,
    ),
    Bound(
        "exec-sdk",
        "warm `true`: docker-py's `exec_run` against it",
        lambda f: f.sdk("exec-true") / f.ours("exec-true"),
        must=50,
        aim=80,
        at_most=False,
        engines=("docker",),
    ),
    Bound(
        "cold",
        "first result, against the SDK's create, start and exec",
        lambda f: f.ours("cold") / f.sdk("cold"),
        must=1.1,
        aim=1.0,
        engines=ENGINES,
    ),
    Bound(
        "pool",
        "first result, against taking a session from a pool",
        lambda f: f.ours("cold") / f.ours("acquire"),
        must=50,
        aim=300,
        at_most=False,
        engines=ENGINES,
    ),
    Bound(
        "stdout",
        "256 MiB of output: the engine's client into a pipe, against it",
        lambda f: f.cli("stdout-256MiB") / f.ours("stdout-256MiB"),
        must=1.3,
        aim=4,
        at_most=False,
        engines=ENGINES,
    ),
    Bound(
        "write",
        "writing 64 MiB: put_archive against it",
        lambda f: f.sdk("write-64MiB") / f.ours("write-64MiB"),
        must=2,
        aim=4,
        at_most=False,
        engines=ENGINES,
    ),
    Bound(
        "read",
        "reading 64 MiB: get_archive against it",
        lambda f: f.sdk("read-64MiB") / f.ours("read-64MiB"),
        must=2,
        aim=4,
        at_most=False,
        engines=ENGINES,
    ),
    Bound(
        "flood",
        "growth of the host process during 1 GiB of output",
        lambda f: f.ours("flood"),
        must=16,
        aim=4,
        noisy=False,
        unit=" MiB",
    ),
    Bound(
        "abort",
        "abort until the tree is dead, in warm `true`s",
        lambda f: f.ours("abort") / f.ours("exec-true"),
        must=20,
        aim=5,
    ),
    Bound(
        "survivors",
        "processes that outlive an abort or a timeout",
        lambda f: f.ours("abort-survivors") + f.ours("timeout-survivors"),
        must=0,
        aim=0,
        noisy=False,
        unit="",
    ),
    Bound(
        "destroy",
        "destroy, against the engine's own forced removal",
        lambda f: f.ours("destroy") / f.sdk("destroy"),
        must=1.2,
        aim=1.0,
        engines=ENGINES,
    ),
    Bound(
        "threads",
        "6,400 commands from 64 threads: rate, against `subprocess.run`",
        lambda f: f.of("rate-64", FLOOR) / f.ours("rate-64"),
        must=0.8,
        aim=1.2,
        at_most=False,
    ),
    Bound(
        "tunnel",
        "256 MiB through a tunnel, either way: a published port against it",
        lambda f: min(f.cli(f"port-{way}") / f.ours(f"port-{way}") for way in ("download", "upload")),
        must=0.4,
        aim=0.8,
        at_most=False,
        engines=ENGINES,
    ),
    Bound(
        "tunnel-request",
        "what a tunnel adds to a small request, in warm `true`s",
        lambda f: (f.ours("port-request") - f.cli("port-request")) / f.ours("exec-true"),
        must=2,
        aim=1,
        engines=ENGINES,
    ),
    Bound(
        "import",
        "`import docker` against `import sandboxkit`",
        lambda f: f.sdk("import") / f.ours("import"),
        must=3,
        aim=6,
        at_most=False,
        engines=("docker",),
    ),
    Bound(
        "agent-memory",
        "the agent's memory at rest",
        lambda f: f.ours("init-memory"),
        must=2,
        aim=0.5,
        noisy=False,
        unit=" MiB",
        engines=ENGINES,
    ),
    Bound(
        "agent-size",
        "the agent's program",
        lambda f: f.ours("agent-size"),
        must=150_000,
        aim=150_000,
        noisy=False,
        unit=" bytes",
        engines=ENGINES,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """One bound on one engine: what was found, or what was missing, which breaks it too."""

    engine: str
    bound: Bound
    value: float | None
    margin: float
    missing: str = ""

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.value is not None and self.bound.holds(self.value, self.margin)

    def __str__(self) -> str:
        sign = "<=" if self.bound.at_most else ">="
        limit = f"{sign} {self.bound.limit(self.margin):.4g}{self.bound.unit}"
        found = self.missing if self.value is None else f"{self.value:.3g}{self.bound.unit}"
        mark = "ok    " if self.ok else "BROKEN"
        return f"{mark} {self.engine:16} {self.bound.title:66} {limit:>16}  {found}"


def judge(results: Results, engine: str, statistic: Statistic, margin: float) -> list[Verdict]:
    """Every bound that applies to the engine."""
    figures = Figures(results, engine, statistic)
    verdicts = []
    for bound in BOUNDS:
        if engine in bound.engines:
            try:
                verdicts.append(Verdict(engine, bound, bound.value(figures), margin))
            except MissingError as error:
                verdicts.append(Verdict(engine, bound, None, margin, str(error)))
    return verdicts
