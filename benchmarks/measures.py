"""What is measured: a table. README.md says how each is meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .competitors import FLOOR, OURS

MIB = 1 << 20
Unit = Literal["s", "MiB", "processes", "modules", "bytes"]
# Those whose cost with many sessions and commands is followed: the engine's own SDK, and nobody who'd take an hour.
GROWING = (OURS, FLOOR, "docker-py", "podman-py")
PORTS = (OURS, "docker CLI", "podman CLI")  # a tunnel, and the engines' published ports
ENGINES_OWN = (OURS, "docker-py", "docker CLI", "podman-py", "podman CLI")  # who can ask for a volume


SECTIONS = ("Life", "Commands", "Ending commands", "Output", "Files", "Ports", "Memory and import", "Growth")


@dataclass(frozen=True)
class Metric:
    """One figure. `mib` is how much is moved in the time, where a rate says more than the time itself."""

    id: str
    title: str
    unit: Unit = "s"
    mib: float | None = None


@dataclass(frozen=True)
class Measure:
    """One operation with its arguments, and the figures it gives by the operation's own names.

    - `rounds`: how often the competitors take turns in a full run. `budget`: seconds that one of them may take of it.
    - `family`: who fails to finish in time is not asked for the later ones of the same family.
    - `only`: the competitors that take part, if not all. `engines`: likewise. `full`: left out of a quick run.
    - `patience`: how many times as long as others an answer may take.
    """

    section: str
    operation: str
    metrics: dict[str, Metric]
    arguments: dict[str, Any] = field(default_factory=dict)
    rounds: int = 20
    budget: float = 8.0
    family: str = ""
    only: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    full: bool = False
    patience: float = 1.0

    @property
    def name(self) -> str:
        """The id of its first figure."""
        return next(iter(self.metrics.values())).id


def _seconds(section: str, operation: str, id: str, title: str, **more: Any) -> Measure:
    mib = more.pop("mib", None)
    return Measure(section, operation, {"seconds": Metric(id, title, mib=mib)}, **more)


def _size(size: int) -> str:
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1024)):
        if size >= bytes_:
            return f"{size // bytes_} {unit}"
    return f"{size} B"


def _stdout(size: int, rounds: int, *, section: str = "Output", full: bool = False) -> Measure:
    return _seconds(
        section,
        "stdout",
        f"stdout-{_size(size).replace(' ', '')}",
        f"stdout of {_size(size)}, captured",
        arguments={"size": size},
        rounds=rounds,
        family="stdout",
        mib=size / MIB if size >= MIB else None,
        full=full,
        budget=12.0,
    )


def _file(operation: str, size: int, rounds: int) -> Measure:
    label = _size(size)
    return _seconds(
        "Files",
        operation,
        f"{operation}-{label.replace(' ', '')}",
        f"{operation} a file of {label}",
        arguments={"size": size},
        rounds=rounds,
        family=operation,
        mib=size / MIB if size >= MIB else None,
    )


def _threads(threads: int, each: int, **more: Any) -> Measure:
    title = f"a command, {threads} in flight" if threads > 1 else "a command, one at a time"
    arguments = {"threads": threads, "each": each}
    return _seconds(more.pop("section"), "threads", f"threads-{threads}", title, arguments=arguments, **more)


def _sessions(count: int) -> Measure:
    many = f"{count} sessions" if count > 1 else "one session"
    return Measure(
        "Growth",
        "sessions",
        {
            "seconds": Metric(f"sessions-{count}-exec", f"`true`, {many} open"),
            "host": Metric(f"sessions-{count}-host", f"host memory a session, {many} open", "MiB"),
            "container": Metric(f"sessions-{count}-container", f"container memory a session, {many} open", "MiB"),
        },
        {"count": count},
        rounds=1,
        family="sessions",
        only=GROWING,
        engines=("docker", "podman"),
        full=count > 10,
        patience=8.0 if count > 10 else 1.0,
    )


MEASURES: tuple[Measure, ...] = (
    # First, since what follows leaves processes large.
    Measure(
        "Memory and import",
        "memory",
        {
            "host": Metric("host-memory", "host process, one session at rest", "MiB"),
            "container": Metric("container-memory", "container, at rest", "MiB"),
            "init": Metric("init-memory", "the container's first process, at rest", "MiB"),
        },
        rounds=2,
    ),
    Measure(
        "Memory and import",
        "program",
        {"bytes": Metric("agent-size", "the program that is put into the container", "bytes")},
        rounds=1,
        only=(OURS,),
        engines=("docker", "podman", "podman-rootless"),
    ),
    Measure(
        "Life",
        "life",
        {"cold": Metric("cold", "from nothing to the first result"), "close": Metric("close", "close a session")},
        rounds=10,
        budget=30.0,
    ),
    _seconds("Life", "destroy", "destroy", "end a running container that has a volume", rounds=10, only=ENGINES_OWN),
    Measure(
        "Life",
        "pool",
        {
            "acquire": Metric("acquire", "take a session from a warm pool"),
            "first": Metric("acquire-first", "the same, with a first command"),
        },
        rounds=10,
    ),
    _seconds("Commands", "exec", "exec-true", "`true` in a warm session", arguments={"argv": ["true"]}, rounds=30),
    _seconds(
        "Commands",
        "exec",
        "exec-python",
        "`python3 -c 'print(1)'`",
        arguments={"argv": ["python3", "-c", "print(1)"]},
        rounds=20,
    ),
    _threads(8, 5, section="Commands", rounds=5, family="threads"),
    _threads(64, 1, section="Commands", rounds=3, budget=6.0, family="threads", full=True),
    _seconds(
        "Commands",
        "threads",
        "rate-64",
        "a command, 6,400 of them from 64 threads",
        arguments={"threads": 64, "each": 100},
        rounds=3,
        only=(OURS, FLOOR),
    ),
    Measure(
        "Ending commands",
        "abort",
        {
            "seconds": Metric("abort", "from an abort until a tree of four is dead"),
            "survivors": Metric("abort-survivors", "of the four, alive three seconds later", "processes"),
        },
        rounds=10,
        budget=10.0,
    ),
    Measure(
        "Ending commands",
        "timeout",
        {
            "seconds": Metric("timeout", "from a timeout until a tree of four is dead"),
            "survivors": Metric("timeout-survivors", "of the four, alive three seconds later", "processes"),
        },
        rounds=5,
        budget=8.0,
    ),
    # The greater after the lesser: see `family`.
    _stdout(1024, 5, section="Growth"),
    _stdout(32 * 1024, 5, section="Growth", full=True),
    _stdout(MIB, 10),
    _stdout(16 * MIB, 3, section="Growth", full=True),
    _stdout(64 * MIB, 5),
    _stdout(256 * MIB, 3),
    _stdout(1 << 30, 1, section="Growth", full=True),
    Measure(
        "Output",
        "flood",
        {"mib": Metric("flood", "growth of the host process while 1 GiB is printed", "MiB")},
        {"size": 1 << 30},
        rounds=2,
        family="stdout",
    ),
    *(_file(op, size, n) for size, n in ((1024, 20), (MIB, 10), (64 * MIB, 5)) for op in ("write", "read")),
    _seconds("Files", "list", "list-1000", "list a folder of 1,000 files", arguments={"count": 1000}, rounds=10),
    _seconds(
        "Ports",
        "request",
        "port-request",
        "a connection with a few bytes",
        rounds=20,
        only=PORTS,
    ),
    *(
        _seconds(
            "Ports",
            operation,
            f"port-{operation}",
            f"{operation} 256 MiB",
            arguments={"size": 256 * MIB},
            rounds=5,
            only=PORTS,
            mib=256,
        )
        for operation in ("download", "upload")
    ),
    Measure(
        "Memory and import",
        "imports",
        {
            "seconds": Metric("import", "the import statement"),
            "modules": Metric("import-modules", "modules that it loads", "modules"),
        },
        rounds=10,
        budget=6.0,
    ),
    *(_sessions(count) for count in (1, 10, 100)),
    *(
        _threads(count, max(1, 64 // count), section="Growth", rounds=2, family="inflight", only=GROWING, full=full)
        for count, full in ((1, False), (16, False), (256, True))
    ),
)


def metrics() -> dict[str, Metric]:
    """Every figure by its id."""
    return {metric.id: metric for measure in MEASURES for metric in measure.metrics.values()}
