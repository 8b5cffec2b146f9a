"""The tools' schemas: JSON Schema in the subset that OpenAI's strict mode takes.

There every property is required, no other is accepted, and what may be left out is nullable. Bounds of numbers and
lengths are no part of that subset: the tools check them.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["Schema", "boolean", "integer", "number", "optional", "record", "records", "relaxed", "string", "strings"]

Schema = dict[str, Any]


def string(description: str) -> Schema:
    return {"type": "string", "description": description}


def integer(description: str) -> Schema:
    return {"type": "integer", "description": description}


def number(description: str) -> Schema:
    return {"type": "number", "description": description}


def boolean(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def strings(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def records(description: str, **fields: Schema) -> Schema:
    """An array of objects."""
    return {"type": "array", "items": record(**fields), "description": description}


def record(**fields: Schema) -> Schema:
    """An object with exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def optional(schema: Schema) -> Schema:
    """The same, or null; a caller that is not bound to strict mode may leave it out."""
    return {**schema, "type": [schema["type"], "null"]}


def relaxed(schema: Schema) -> Schema:
    """For callers without strict mode: what may be null need not be there."""
    fields = schema["properties"]
    required = [name for name in schema["required"] if "null" not in fields[name]["type"]]
    return copy.deepcopy({**schema, "required": required})
