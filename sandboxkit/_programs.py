"""Where the sandbox's PATH leads: the agent looks, by the rules it starts commands by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from . import _validate as check
from ._applets import AppletHost, Applets, Call, checked_cwd
from ._records import BrokenRecordError, Reader
from .abort import Abort, checked_abort
from .results import Program

__all__ = ["find_programs"]

MOST: Final = 10_000


def find_programs(
    host: AppletHost,
    commands: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout: float | None,
    abort: Abort | None,
) -> dict[str, tuple[Program, ...]]:
    """See `Session.which`. `env` is the whole environment, checked."""
    if isinstance(commands, (str, bytes)) or not isinstance(commands, Sequence):
        check.fail("commands", commands, "a list of commands, such as ['python', 'node']")
    checked_abort("abort", abort)
    where = checked_cwd(cwd, host.workspace)
    names = tuple(dict.fromkeys(check.command(command) for command in commands))
    check.request_size(sum(len(name.encode("utf-8", "surrogateescape")) + 1 for name in names))
    if not names:
        return {}

    def parse(reader: Reader) -> dict[str, tuple[Program, ...]]:
        found: list[list[Program]] = [[] for _ in names]
        for _ in range(MOST + 1):
            if reader.kind() != ord("P"):
                reader.end()
                return {name: tuple(programs) for name, programs in zip(names, found, strict=True)}
            index, program = reader.program()
            if index >= len(names):
                raise BrokenRecordError("a program that was not asked for")
            found[index].append(program)
        raise BrokenRecordError("more programs than were asked for")

    call = Call(
        "which", MOST, *names, what="looked for", path=names[0], timeout=timeout, abort=abort, cwd=where, env=env
    )
    return Applets(host).records(call, parse)
