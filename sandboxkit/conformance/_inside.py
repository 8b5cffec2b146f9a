"""Looking into a sandbox from outside, with programs that every image for the suite has: `sh`, `cat`, `kill`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from sandboxkit import ExecResult, Session

from ._watch import wait_until

_numbers = count(1)


def fresh(prefix: str = "file") -> str:
    """A name in the workspace that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


def sh(session: Session, script: str, *args: str, **options: Any) -> ExecResult:
    """A script with arguments `$1`, `$2`, ..."""
    return session.exec("sh", shell_args(script, *args), **options)


def shell_args(script: str, *args: str) -> list[str]:
    """The same as arguments for `sh`."""
    return ["-c", script, "sh", *args]


def read(session: Session, path: str) -> str:
    """A file's text; empty when there is none."""
    return session.exec("cat", [path]).stdout


def living(session: Session, pids: Iterable[int]) -> list[int]:
    """Those of the sandbox's processes that exist. A zombie does."""
    result = sh(session, 'for pid; do kill -0 "$pid" 2>/dev/null && echo "$pid"; done; true', *map(str, pids)).check()
    return [int(line) for line in result.stdout.split()]


def wait_for_pids(session: Session, path: str, number: int) -> list[int]:
    """The process numbers that a script writes into a file, one a line: all of them, and all are alive."""

    def lines() -> list[str] | None:
        found = read(session, path)
        complete = found.splitlines() if found.endswith("\n") else []
        return complete if len(complete) >= number else None

    pids = [int(line) for line in wait_until(lines, f"{number} processes are written to {path}") or ()]
    assert len(pids) == number
    assert living(session, pids) == pids, "the processes must be seen alive before they are killed"
    return pids


def wait_for_file(session: Session, path: str) -> None:
    """It exists."""
    wait_until(lambda: session.exec("test", ["-e", path]).ok, f"{path} exists")


def command_count(session: Session) -> int:
    """How many processes of commands a sandbox has, zombies too: all but the agent's own, and not this look's."""
    script = """
    read agent </proc/1/comm
    n=0
    for p in /proc/[0-9]*; do read c <"$p/comm" && [ "$c" != "$agent" ] && n=$((n+1)); done
    echo "$n"
    """
    return int(sh(session, script).check().stdout) - 1


def process_count(session: Session) -> int:
    """How many processes a sandbox has, the agent's and this look's own among them."""
    return int(sh(session, 'set -- /proc/[0-9]*; echo "$#"').check().stdout)


# Ways to get away from a kill. Each writes the numbers of its processes into the file "$1": how many, and the script.
_LATER = """sh -c 'echo $$ >>"$1"; exec sleep 1000' sh "$1\""""
ESCAPES: dict[str, tuple[int, str]] = {
    "a child": (2, f'{_LATER} & echo $$ >>"$1"; wait'),
    "a child that ignores SIGTERM": (2, f'trap "" TERM; {_LATER} & echo $$ >>"$1"; wait'),
    "a child in a session of its own": (2, f'setsid {_LATER} & echo $$ >>"$1"; wait'),
    "a daemon, forked twice": (2, f'(setsid {_LATER} &); echo $$ >>"$1"; exec sleep 1000'),
    "an orphan": (2, f'(({_LATER} &) &); echo $$ >>"$1"; exec sleep 1000'),
    "a stopped child": (2, """sh -c 'echo $$ >>"$1"; kill -STOP $$; sleep 1000' sh "$1" & echo $$ >>"$1"; wait"""),
    "a command that stops itself": (1, 'echo $$ >>"$1"; kill -STOP $$; sleep 1000'),
    "a child without descriptors": (2, f'{_LATER} <&- >&- 2>&- & echo $$ >>"$1"; wait'),
}

ALL_ESCAPES = (
    1 + sum(number for number, _ in ESCAPES.values()),
    'file=$1; shift; echo $$ >>"$file"; for script; do sh -c "$script" sh "$file" & done; wait',
)
"""All of them in one tree; to be followed by `ESCAPE_SCRIPTS` as further arguments."""

ESCAPE_SCRIPTS = [script for _, script in ESCAPES.values()]
