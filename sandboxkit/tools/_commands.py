"""Which program a command is, and whether a policy's lists let it pass."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from sandboxkit.abort import Abort
from sandboxkit.errors import PolicyError
from sandboxkit.results import Program
from sandboxkit.session import Session

from ._environment import as_mapping, check_environment
from ._policies import ExecPolicy
from ._wrappers import MULTI_CALL, NAMES, Inner, UnknownOptionError, inner_commands, is_multi_call

__all__ = ["judged"]

# A file that is two of these is many commands: then its identity says nothing, and the name of the call everything.
_PROBES: Final = ("ls", "cat", "true", "mkdir", "cp")
_DEEPEST: Final = 8  # `env env env ...`

_Identity = tuple[int, int]


@attrs.frozen
class _Place:
    """Where and with what a command is going to run."""

    cwd: str
    env: Mapping[str, str]
    abort: Abort | None


def judged(
    session: Session,
    policy: ExecPolicy,
    command: str,
    args: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    abort: Abort | None,
) -> tuple[str, tuple[str, ...]]:
    """The command and arguments to execute: by the paths that were judged, where a list lets pass by name.

    PolicyError when a list says no.
    """
    if policy.allowed_commands is None and not policy.blocked_commands:
        return command, tuple(args)
    lists = _Lists(session, policy, _Place(cwd, env, abort))
    return lists.passed(command, tuple(args), _DEEPEST)


class _Lists:
    """A policy's lists as the session's PATH has them at this moment; the model's own PATH has no say."""

    def __init__(self, session: Session, policy: ExecPolicy, place: _Place) -> None:
        self._session, self._policy, self._place = session, policy, place
        names = (*(policy.allowed_commands or ()), *policy.blocked_commands, *_PROBES, *MULTI_CALL, *NAMES)
        self._found = session.which(names, abort=place.abort)
        self._many = _many(self._found)
        self._blocked = {posixpath.basename(entry) for entry in policy.blocked_commands}
        self._blocked_files: dict[_Identity, str] = {
            _identity(program): entry
            for entry in policy.blocked_commands
            for program in self._found[entry]
            if _identity(program) not in self._many
        }
        self._wrappers = {_identity(program): name for name in NAMES for program in self._found[name]}

    def passed(
        self, command: str, args: tuple[str, ...], depth: int, *, applet: bool = False
    ) -> tuple[str, tuple[str, ...]]:
        """`applet`: of a file that is many commands, so that its name alone says which it is."""
        if depth == 0:
            raise PolicyError(f"{command!r} starts too many programs in a row. Call the last one directly.")
        program = None if applet else self._program(command)
        self._check_blocked(command, program)
        passed = self._check_allowed(command, program, applet=applet)
        wrapper = self._acts_as(command, program)
        for inner in _inner(command, wrapper, args):
            check_environment(as_mapping(inner.settings), self._policy.allowed_env)
            if inner.command:
                args = self._passed_inner(wrapper, args, inner, depth)
        return passed, args

    def _passed_inner(self, wrapper: str, args: tuple[str, ...], inner: Inner, depth: int) -> tuple[str, ...]:
        applet = is_multi_call(wrapper)
        name, rest = self.passed(inner.command, inner.args, depth - 1, applet=applet)
        if applet or inner.at is None or wrapper == "find":
            return args  # find's arguments go on behind the program's
        return (*args[: inner.at], name, *rest)

    def _acts_as(self, command: str, program: Program | None) -> str:
        # The name of what it is, whatever it is called: a link to env is env.
        name = posixpath.basename(command)
        if program is None or is_multi_call(name):
            return name
        if _identity(program) not in self._many:
            return self._wrappers.get(_identity(program), name)
        # A name that is none of its commands may make such a file take the first argument for one.
        own = self._session.which([name], abort=self._place.abort)[name]
        return name if any(_identity(one) in self._many for one in own) else MULTI_CALL[0]

    def _program(self, command: str) -> Program | None:
        place = self._place
        found = self._session.which([command], cwd=place.cwd, env=place.env, abort=place.abort)[command]
        return found[0] if found else None

    def _check_blocked(self, command: str, program: Program | None) -> None:
        called, blocked = posixpath.basename(command), None
        if called in self._blocked:
            blocked = called
        elif program is not None and _identity(program) not in self._many:
            real = posixpath.basename(program.real_path)
            blocked = real if real in self._blocked else self._blocked_files.get(_identity(program))
        if blocked is not None:
            same = "" if blocked == command else f" is {blocked!r} and"
            raise PolicyError(f"{command!r}{same} is blocked here. Do it another way, or say that you can't.")

    def _check_allowed(self, command: str, program: Program | None, *, applet: bool) -> str:
        allowed = self._policy.allowed_commands
        if allowed is None:
            return command if program is None else program.path
        if applet:
            if posixpath.basename(command) in {posixpath.basename(entry) for entry in allowed}:
                return command
        elif program is not None:
            for entry in allowed:
                path = self._matched(entry, command, program)
                if path is not None:
                    return path
        raise PolicyError(self._refusal(command, program))

    def _matched(self, entry: str, command: str, program: Program) -> str | None:
        # The path to execute when the entry stands for this program.
        if posixpath.basename(command) != posixpath.basename(entry):
            return None
        found = self._found[entry]
        if "/" in entry:
            if not found or not _same(found[0], program):
                return None
            return entry if entry.startswith("/") else program.path
        own = next((one for one in found if one.path.startswith("/") and not one.in_workspace), None)
        if own is None or not _same(own, program) or not self._outside(program):
            return None
        return own.path

    def _outside(self, program: Program) -> bool:
        # By its path, not its target: a link in the workspace is the model's, and may mean more than the file it names.
        workspace = self._session.workspace.rstrip("/") + "/"
        return program.path.startswith("/") and not posixpath.normpath(program.path).startswith(workspace)

    def _refusal(self, command: str, program: Program | None) -> str:
        allowed = ", ".join(self._policy.allowed_commands or ()) or "none"
        name = posixpath.basename(command)
        if "/" in command and name in (self._policy.allowed_commands or ()):
            return f"{command!r} is not the allowed {name!r}. Call {name!r} by its name alone."
        if program is None and command in (self._policy.allowed_commands or ()):
            return f"{command!r} is allowed, but there is no such program here. Allowed: {allowed}."
        return f"{command!r} is not allowed here. Allowed: {allowed}."


def _inner(command: str, wrapper: str, args: tuple[str, ...]) -> list[Inner]:
    try:
        return inner_commands(wrapper, args)
    except UnknownOptionError as error:
        raise PolicyError(
            f"{command!r} with the option {str(error)!r} may hide what it starts. Call the program directly."
        ) from None


def _identity(program: Program) -> _Identity:
    return program.device, program.inode


def _same(one: Program, other: Program) -> bool:
    return _identity(one) == _identity(other) and one.real_path == other.real_path


def _many(found: Mapping[str, Iterable[Program]]) -> frozenset[_Identity]:
    names: dict[_Identity, set[str]] = {}
    for name in _PROBES:
        for program in found[name]:
            names.setdefault(_identity(program), set()).add(name)
    many = {identity for identity, called in names.items() if len(called) > 1}
    return frozenset(many | {_identity(program) for name in MULTI_CALL for program in found[name]})
