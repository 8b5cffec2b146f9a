"""Programs whose arguments name another program, and how to find it there.

Only what is known is looked through; an option that is not known is refused, since it may be what hides the program.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

import attrs

__all__ = ["MULTI_CALL", "NAMES", "Inner", "UnknownOptionError", "inner_commands", "is_multi_call"]

MULTI_CALL: Final = ("busybox", "toybox", "coreutils")
"""Names of files that are many commands; called by it, the first argument is the command."""

_COREUTILS_PROGRAM: Final = ("--coreutils-prog=", "--coreutils-prog-shebang=")
_FIND_ACTIONS: Final = ("-exec", "-execdir", "-ok", "-okdir")


class UnknownOptionError(Exception):
    """The option's name is the message."""


@attrs.frozen
class Inner:
    """A program that a command starts: `args[at]` names it, if `at` is not None. `settings` are set for it."""

    command: str
    args: tuple[str, ...]
    at: int | None = None
    settings: tuple[tuple[str, str], ...] = ()


def _words(words: str | frozenset[str]) -> frozenset[str]:
    return frozenset(words.split()) if isinstance(words, str) else words


@attrs.frozen
class _Wrapper:
    """Its options, without and with a value; `skip`: arguments before the program; `sets`: NAME=value before it."""

    flags: frozenset[str] = attrs.field(default=frozenset(), converter=_words)
    valued: frozenset[str] = attrs.field(default=frozenset(), converter=_words)
    skip: int = 0
    sets: bool = False
    numbers: bool = False  # `nice -5`


_WRAPPERS: Final = {
    "env": _Wrapper("- -i -0 -v --ignore-environment --null --debug", "-u --unset", sets=True),
    "nice": _Wrapper("", "-n --adjustment", numbers=True),
    "nohup": _Wrapper(),
    "timeout": _Wrapper("-f -p -v --foreground --preserve-status --verbose", "-s -k --signal --kill-after", skip=1),
    "setsid": _Wrapper("-c -f -w --ctty --fork --wait"),
    "stdbuf": _Wrapper("", "-i -o -e --input --output --error"),
    "time": _Wrapper("-p -v -a -q --portability --verbose --append --quiet", "-f -o --format --output"),
    "ionice": _Wrapper("-t --ignore", "-c -n --class --classdata"),
    "xargs": _Wrapper(
        "-0 -r -t -p -x -o --null --no-run-if-empty --verbose --interactive --exit --open-tty",
        "-a -d -E -I -L -n -P -s --arg-file --delimiter --eof --replace --max-lines --max-args --max-procs --max-chars",
    ),
    "sudo": _Wrapper("-n -E -H -S -k -b --non-interactive --preserve-env", "-u -g --user --group", sets=True),
    "doas": _Wrapper("-n", "-u"),
}


NAMES: Final = (*_WRAPPERS, "find")
"""What is looked through besides MULTI_CALL."""


def is_multi_call(command: str) -> bool:
    """Whether a file that is many commands takes the first argument for the command, when it is called so."""
    name = posixpath.basename(command)
    return name.startswith(MULTI_CALL[:2]) or name == MULTI_CALL[2]


def inner_commands(command: str, args: Sequence[str]) -> list[Inner]:
    """The programs that this command is to start, as far as its name says that it does; mostly none."""
    name = posixpath.basename(command)
    if is_multi_call(command):
        return _applet(args)
    if name == "find":
        return [
            Inner(args[at + 1], tuple(args[at + 2 :]), at + 1)
            for at, word in enumerate(args[:-1])
            if word in _FIND_ACTIONS
        ]
    wrapper = _WRAPPERS.get(name)
    return [] if wrapper is None else _wrapped(wrapper, args)


def _applet(args: Sequence[str]) -> list[Inner]:
    if not args:
        return []
    for prefix in _COREUTILS_PROGRAM:
        if args[0].startswith(prefix):
            return [Inner(args[0].removeprefix(prefix), tuple(args[1:]))]
    return [] if args[0].startswith("-") else [Inner(args[0], tuple(args[1:]))]


def _wrapped(wrapper: _Wrapper, args: Sequence[str]) -> list[Inner]:
    at = 0
    while at < len(args) and args[at].startswith("-"):
        word = args[at]
        at += 1
        if word == "--":
            break
        at += _values_after(wrapper, word)
    at += wrapper.skip
    settings: list[tuple[str, str]] = []
    while wrapper.sets and at < len(args) and "=" in args[at]:
        name, _, value = args[at].partition("=")
        settings.append((name, value))
        at += 1
    if at >= len(args):
        return [Inner("", (), None, tuple(settings))] if settings else []
    return [Inner(args[at], tuple(args[at + 1 :]), at, tuple(settings))]


def _values_after(wrapper: _Wrapper, word: str) -> int:
    # How many arguments behind this option belong to it.
    if word in wrapper.flags:
        return 0
    if word in wrapper.valued:
        return 1
    if word.startswith("--"):
        if word.partition("=")[0] in wrapper.valued | wrapper.flags:
            return 0
        raise UnknownOptionError(word)
    if wrapper.numbers and word[1:].lstrip("-+").isdecimal():
        return 0
    for index, letter in enumerate(word[1:], start=2):
        if f"-{letter}" in wrapper.valued:
            return int(index == len(word))
        if f"-{letter}" not in wrapper.flags:
            raise UnknownOptionError(word)
    return 0
