"""Habits of the C sources that a compiler does not check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.agent.build import SOURCES

LONGEST_FUNCTION = 60
LONGEST_FILE = 500
FILES = sorted(SOURCES.glob("*.c"))
DEFINITION = re.compile(r"^[A-Za-z_].*\b[a-z_0-9]+\(")


def functions(path: Path) -> list[tuple[str, str, int]]:
    """First line, name and number of lines of every function."""
    lines = path.read_text().splitlines()
    found = []
    start = 0
    for number, line in enumerate(lines):
        if DEFINITION.match(line) and not line.endswith(";"):
            start = number
        if line == "}" and (name := re.search(r"\b([a-z_0-9]+)\(", lines[start])):
            found.append((lines[start], name[1], number - start + 1))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_functions_are_short(path: Path) -> None:
    assert [name for _, name, length in functions(path) if length >= LONGEST_FUNCTION] == []
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_functions_are_static_or_in_a_header(path: Path) -> None:
    headers = "".join(header.read_text() for header in SOURCES.glob("*.h"))
    for line, name, _ in functions(path):
        assert "static " in line or name == "main" or re.search(rf"\b{name}\(", headers), line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_descriptor_is_close_on_exec(path: Path) -> None:
    text = re.sub(r"\n\s+", " ", path.read_text())
    for call in re.findall(
        r"\b(?:open|openat|pipe2|socketpair|socket|accept4|signalfd|dup3|memfd_create)\([^;{]*", text
    ):
        assert "CLOEXEC" in call or "FLAGS" in call, call
    assert not re.search(r"\b(?:fopen|pipe|accept|creat|popen|system)\(", text)


def test_the_tests_find_functions() -> None:
    """This file's own parser sees the agent's functions."""
    names = {name for path in FILES for _, name, _ in functions(path)}
    assert {"main", "loop_run", "supervisor_run", "frame_read", "launch"} <= names
    assert len(names) > 100


def test_the_place_after_which_pid_1_may_not_exit_is_marked() -> None:
    main = (SOURCES / "main.c").read_text()
    assert "From here on PID 1 may not exit" in main
