"""Globs on the host and in the agent mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxkit import Limits, Sandbox
from sandboxkit._glob import matches
from tests.support.local import LocalBackend

PATHS = ["a", "a.py", "b/a.py", "b/c/a.py", "b/c/d/e.txt", "[x]", "é", "b/é.py", ".hidden", "b/.git/x", "a-b", "b]"]
PATTERNS = [
    *(
        "*",
        "**",
        "*.py",
        "a*",
        "b/*",
        "b/**",
        "**/a.py",
        "b/**/a.py",
        "**/c/**",
        "?",
        "?.py",
        "b/?.py",
        "[ab]",
        "[!a]*",
    ),
    *(
        "[a-c].py",
        "[",
        "[]]",
        "[[]x]",
        "b/*/a.py",
        "/a.py",
        "**/*.txt",
        "b/**/d/*",
        "*/*",
        "a[-]b",
        "[]-a]*",
        ".*",
        "x**y",
        "**/**",
    ),
]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "deep/down/x.py", True),
        ("*.py", "x.pyc", False),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/b.py", True),
        ("src/**/*.py", "src/a/c/b.py", True),
        ("**/test", "test", True),
        ("a/**", "a", False),
        ("?", "é", True),
        ("[!a]", "a", False),
    ],
)
def test_globs(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_a_hard_glob_takes_bounded_time() -> None:
    assert not matches("*a" * 30 + "b", "a" * 200)
    assert not matches("**/" * 30 + "b", "/".join("a" * 100))


def test_the_agent_matches_as_the_host_does(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    with Sandbox("any", backend, limits=Limits(allow_unenforced=True)).create_session() as session:
        for path in PATHS:
            session.files.write(f"tree/{path}", b"")
        everything = session.files.list("tree", recursive=True).paths
        for pattern in PATTERNS:
            agents = [match.path for match in session.files.search(pattern, path="tree")]
            assert agents == [path for path in everything if matches(pattern, path)], pattern
    backend.close()
