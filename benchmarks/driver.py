"""Takes the competitors' turns: one process each, asked one after the other, so that a busy machine slows all alike."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .competitors import Entry
from .competitors.base import Engine
from .environments import BUILD, ROOT
from .measures import Measure
from .operations import Samples

START = 60.0  # seconds that a competitor may take to be imported
TURN = 0.02  # seconds that the turn of a quick operation should take


class FailedError(Exception):
    """There is no figure; the message is the reason. `slow`: it was not there in time."""

    def __init__(self, reason: str, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.slow = slow


@dataclass(frozen=True)
class Scale:
    """How much of a measure's rounds and budget are used, and how long one answer may take."""

    name: str
    rounds: float = 1.0
    budget: float = 1.0
    deadline: float = 40.0

    def rounds_of(self, measure: Measure) -> int:
        """At least one."""
        return max(round(measure.rounds * self.rounds), 1)


FULL = Scale("full", budget=0.4, deadline=20.0)
QUICK = Scale("quick", rounds=0.2, budget=0.3, deadline=20.0)


class Worker:
    """The process of one competitor on one engine. It is started when first asked, and anew after it was killed."""

    def __init__(self, entry: Entry, engine: Engine, python: str) -> None:
        self.entry = entry
        self.engine = engine
        self.versions: dict[str, str] = {}
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._containers: set[str] = set()
        self._log = BUILD / f"{entry.name.replace(' ', '-')}.{engine.name}.log"

    def ask(self, operation: str, arguments: dict[str, Any], repeat: int, deadline: float) -> Samples:
        """Samples by name. FailedError with the reason if there are none; a worker that is too slow is killed."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        request = {"operation": operation, "arguments": arguments, "repeat": repeat}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.kill()
            raise FailedError("its process died") from None
        answer = self._answer(deadline)
        if "samples" not in answer:
            raise FailedError(answer.get("unsupported") or answer["error"])
        samples: Samples = answer["samples"]
        return samples

    def close(self) -> None:
        """Let it end what it has; within a minute, or it is killed."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(FailedError):  # its answers now are notices, and then the end
            self._answer(60.0)
        self.kill()

    def kill(self) -> None:
        """End its process at once, and remove the containers that it has not."""
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        for container in self._containers:
            subprocess.run(self.engine.cli("rm", "--force", "--volumes", container), capture_output=True, check=False)
        self._containers.clear()

    def start(self) -> None:
        """See that the process is there and has imported what it needs; FailedError when it can't."""
        if self._process is not None:
            return
        engine = {"backend": self.engine.backend, "url": self.engine.url, "rootless": self.engine.rootless}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self.engine.backend == "docker":  # for those who ask the environment alone
            environment["DOCKER_HOST"] = self.engine.url
        BUILD.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "benchmarks.worker", self.entry.name, json.dumps(engine)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        answer = self._answer(START)
        if "ready" not in answer:
            self.kill()
            raise FailedError(answer["error"])
        self.versions = answer["ready"]

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            message: dict[str, Any] = json.loads(self._line(deadline, seconds))
            if "opened" in message:
                self._containers.add(message["opened"])
            elif "closed" in message:
                self._containers.discard(message["closed"])
            else:
                return message

    def _line(self, deadline: float, seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.kill()
                    raise FailedError(f"not done within {seconds:g} s", slow=True)
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    self.kill()
                    raise FailedError("its process died")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@dataclass
class _Turn:
    """One competitor's part in a measure."""

    worker: Worker
    measure: Measure
    scale: Scale
    samples: Samples = field(default_factory=dict)
    spent: float = 0.0
    block: int = 1
    failed: FailedError | None = None

    @property
    def budget(self) -> float:
        return self.measure.budget * self.scale.budget

    @property
    def goes_on(self) -> bool:
        return self.failed is None and self.spent < self.budget

    def take(self, *, count: bool = True) -> None:
        """Ask once. What is not to be counted is counted all the same if it took a third of the budget."""
        self.worker.start()  # in nobody's budget
        start = time.perf_counter()
        deadline = self.scale.deadline * self.measure.patience
        found = self.worker.ask(self.measure.operation, self.measure.arguments, self.block, deadline)
        seconds = time.perf_counter() - start
        if count or seconds > self.budget / 3:
            self.spent += seconds
            for name, values in found.items():
                self.samples.setdefault(name, []).extend(values)
        # So that what is timed is not the waking of a process, quick ones are repeated.
        self.block = min(max(int(TURN * self.block / max(seconds, 1e-6)), 1), 20)


Finished = Callable[[Worker, Samples, FailedError | None], object]


def interleave(workers: Iterable[Worker], measure: Measure, scale: Scale, finished: Finished) -> None:
    """Ask the competitors in turn. The first call of each is not counted, unless it was too long a one.

    `finished` hears of each as soon as it is not asked any more, with its samples by name, and why it failed if it
    did: after its last round, or earlier, when its budget is used up.
    """
    waiting = [_Turn(worker, measure, scale) for worker in workers]
    rounds = scale.rounds_of(measure)
    for number in range(rounds + 1):
        for turn in tuple(waiting):
            # Nobody goes without a sample, however slow.
            if turn.goes_on or not (turn.samples or turn.failed):
                try:
                    turn.take(count=number > 0)
                except FailedError as error:
                    turn.failed = error
            if number == rounds or not turn.goes_on:
                waiting.remove(turn)
                finished(turn.worker, turn.samples, turn.failed)
