"""From what a model sent to arguments that a tool can rely on. Its size and shape are judged before it is looked at."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

from ._extras import need
from ._schema import Schema, relaxed

__all__ = ["ArgumentsError", "Checker"]

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 8
MAX_BITS: Final = 1024
MAX_COMPLAINTS: Final = 3
_SHOWN: Final = 80


class ArgumentsError(Exception):
    """The arguments are wrong; the message is for the model."""


class _Problem(Protocol):
    """What is used of a jsonschema.ValidationError."""

    validator: Any
    validator_value: Any
    instance: Any
    schema: Any
    absolute_path: Iterable[str | int]


class Checker:
    """One tool's arguments."""

    def __init__(self, tool: str, schema: Schema) -> None:
        need("create_sandbox_tools", "sandboxkit[tools]", "jsonschema")
        from jsonschema import Draft202012Validator

        self._tool = tool
        self._fields: Mapping[str, Schema] = schema["properties"]
        self._validator = Draft202012Validator(relaxed(schema))

    def check(self, arguments: object) -> dict[str, Any]:
        """Every field of the schema, None for what was left out. ArgumentsError names what is wrong."""
        given = self._parsed(arguments) if isinstance(arguments, (str, bytes, bytearray)) else arguments
        if not isinstance(given, Mapping):
            raise ArgumentsError(f"the arguments of {self._tool} are {_show(given)}, not a JSON object")
        _measure(given)
        found: dict[str, Any] = dict(given)
        problems = list(itertools.islice(self._validator.iter_errors(found), MAX_COMPLAINTS))
        if problems:
            raise ArgumentsError("; ".join(map(self._complaint, problems)))
        # JSON knows one kind of number: 3.0 is an integer to the schema.
        for name, field in self._fields.items():
            value = found.setdefault(name, None)
            if "integer" in field["type"] and isinstance(value, float):
                found[name] = int(value)
        return {name: found[name] for name in self._fields}

    def _parsed(self, text: str | bytes | bytearray) -> object:
        if len(text) > MAX_BYTES:
            _too_large()
        if not text.strip():
            return {}  # some models send nothing for a tool without required arguments
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(f"the arguments of {self._tool} are not JSON: {_brief(str(error))}") from None

    def _complaint(self, problem: _Problem) -> str:
        where = _name(problem.absolute_path)
        if problem.validator == "required":
            missing = [name for name in problem.validator_value if name not in problem.instance]
            return f"{_join(where, missing[0])} is missing"
        if problem.validator == "additionalProperties":
            known = problem.schema["properties"]
            extra = next(name for name in problem.instance if name not in known)
            return f"{_join(where, _brief(extra))} is not known; accepted: {', '.join(known) or 'no argument at all'}"
        if problem.validator == "type":
            kinds = problem.validator_value
            kind = next(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null")
            article = "an" if kind[0] in "aeiou" else "a"
            return f"{where}: {_show(problem.instance)} is not {article} {kind}"
        return f"{where}: {_show(problem.instance)} is not accepted"


def _name(path: Iterable[str | int]) -> str:
    name = ""
    for part in path:
        name = f"{name}[{part}]" if isinstance(part, int) else _join(name, part)
    return name


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _show(value: object) -> str:
    # Never the repr of something large.
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "...")
    if isinstance(value, (bool, float, int)):
        return repr(value)
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    return "an array" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def _brief(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _too_large() -> None:
    raise ArgumentsError(
        f"the arguments are larger than {MAX_BYTES} bytes; nothing was done: write a large file in parts, with append"
    )


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _measure(arguments: Mapping[str, Any]) -> None:
    # Values are counted as they are come upon, so that neither a large nor a deep one costs more than the bound.
    waiting: list[tuple[object, int]] = [(arguments, 1)]
    size = count = 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        inner = _inside(value)
        if inner is None:
            size += len(value) if isinstance(value, (str, bytes)) else 0
            continue
        if depth > MAX_DEPTH:
            raise ArgumentsError(f"the arguments are nested more than {MAX_DEPTH} deep")
        if len(inner) + count + len(waiting) > MAX_VALUES:
            _too_large()
        if isinstance(value, Mapping):
            size += sum(map(len, value))
        if size > MAX_BYTES:
            _too_large()
        waiting.extend((item, depth + 1) for item in inner)
    if size > MAX_BYTES:
        _too_large()


def _inside(value: object) -> Collection[object] | None:
    # What a container holds; None for what is none.
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ArgumentsError("the name of an argument is not a string")
        return value.values()
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentsError(f"{value} is no JSON number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ArgumentsError("a number has more digits than any argument takes")
    return value if isinstance(value, (list, tuple)) else None
