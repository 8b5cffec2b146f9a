"""What a tool gives back to a model: bounded, and valid UTF-8 without control characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from sandboxkit._output import HeadTail

__all__ = ["ToolResult", "clean", "failure", "line", "success"]

MAX_CONTENT: Final = 4 * 1024 * 1024

# As their pictures (U+2400): what a terminal would obey is seen instead, each a character as before. Tabs and line ends
# stay, and so does a carriage return: an edit of a file with CRLF must be able to name its text.
_HARMLESS: Final = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
# What else ends a line, to a terminal or to `str.splitlines`.
_LINE_ENDS: Final = {0x0A: 0x240A, 0x0D: 0x240D, 0x2028: 0x2424, 0x2029: 0x2424}


@attrs.frozen(kw_only=True)
class ToolResult:
    """`content` is for the model; `structured` holds the same as values of JSON, for programs and MCP clients.

    `is_error`: nothing was done, or not all that was asked for; the content then begins with `Error: ` and one sentence
    that says what to do. A command that ran and failed is no error: its exit code is in the content's first line, which
    no output can come before. Control characters are shown as pictures (`␛`), undecodable bytes as U+FFFD.
    """

    content: str
    structured: dict[str, Any]
    is_error: bool = False


def clean(text: str, limit: int = MAX_CONTENT) -> str:
    """Without control characters and lone surrogates, at most about `limit` bytes: head, a marker line, and tail."""
    harmless = text.translate(_HARMLESS)
    if len(harmless) <= limit // 4:
        return harmless
    kept = HeadTail(limit)
    kept.feed(memoryview(harmless.encode()))
    return kept.render().decode() if kept.truncated else harmless


def line(text: str) -> str:
    """The same on one line, for what is shown inside of one: a file's name can't pass for another line of a result."""
    return clean(text).translate(_LINE_ENDS)


def success(content: str, structured: Mapping[str, Any]) -> ToolResult:
    """All strings must have been cleaned."""
    return ToolResult(content=content, structured=dict(structured))


def failure(code: str, message: str, content: str = "", structured: Mapping[str, Any] | None = None) -> ToolResult:
    """`message` is the sentence; `content` follows it, such as the output so far."""
    sentence = clean(" ".join(message.split()), 4096)
    text = f"Error: {sentence}" + (f"\n{content}" if content else "")
    return ToolResult(
        content=text, structured={**(structured or {}), "error": {"code": code, "message": sentence}}, is_error=True
    )
