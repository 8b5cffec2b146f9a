"""One competitor's process: JSON requests come in on standard input, a line each, answers go out on standard output.

    python -m benchmarks.worker NAME '{"backend": "docker", "url": "unix://...", "rootless": false}'

A request is `{"operation": NAME, "arguments": {...}, "repeat": N}`. Its answer is one of

    {"samples": {NAME: [NUMBER, ...]}}
    {"unsupported": REASON}
    {"error": TEXT}

Before it may come notices, `{"opened": CONTAINER}` and `{"closed": CONTAINER}`, so that the driver can remove the
containers of a worker that it had to kill. The first line of all is `{"ready": {PACKAGE: VERSION, ...}}`, or an error.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import traceback
from typing import IO, Any

from . import processes
from .competitors import ENTRIES
from .competitors.base import Engine, UnsupportedError
from .operations import Operations


class Answers:
    """The one that was standard output: what libraries print goes to standard error from here on."""

    def __init__(self) -> None:
        self._file: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        """One line."""
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


def versions() -> dict[str, str]:
    """Every package of this environment."""
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(found, key=str.lower)}


def answer(operations: Operations, request: dict[str, Any]) -> dict[str, Any]:
    """Carry one request out; whatever a competitor throws is an answer."""
    try:
        operation = getattr(operations, request["operation"])
        return {"samples": operation(request["repeat"], **request["arguments"])}
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except Exception as error:  # noqa: BLE001 - competitors raise what they like
        traceback.print_exc()
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def main() -> int:
    """Until standard input ends."""
    name, engine = sys.argv[1], Engine(**json.loads(sys.argv[2]))
    answers = Answers()
    bare = processes.memory("VmRSS")
    try:
        competitor = ENTRIES[name].load(engine)
    except Exception as error:  # noqa: BLE001 - importing it runs its code
        traceback.print_exc()
        answers.send({"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]})
        return 1
    operations = Operations(competitor, lambda what, container: answers.send({what: container}), bare)
    answers.send({"ready": versions()})
    for line in sys.stdin:
        answers.send(answer(operations, json.loads(line)))
    with contextlib.suppress(Exception):
        operations.end()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # a competitor's threads may hold the interpreter back
