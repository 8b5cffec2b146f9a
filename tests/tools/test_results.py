"""Results are bounded, valid UTF-8, free of control characters, and true."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import Session
from sandboxkit.tools import Deny, ExecPolicy, ReadFilePolicy, ToolResult, WriteFilePolicy, create_sandbox_tools
from sandboxkit.tools._result import clean, line


@given(st.text(st.characters(), max_size=400), st.integers(16, 300))
def test_text_is_cleaned_and_bounded(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    data = cleaned.encode()  # no lone surrogate
    assert not any(ord(char) < 0x20 and char not in "\t\n\r" for char in cleaned)
    assert not any(0x7F <= ord(char) < 0xA0 for char in cleaned)
    assert len(data) <= limit + 60


def test_text_without_control_characters_stays() -> None:
    text = 'é日本🙂 \t"quoted"\r\n{"json": [1]}\n'
    assert clean(text) is text or clean(text) == text


def test_control_characters_become_pictures() -> None:
    assert clean("\x1b[31mred\x00\x07\x7f\x9b\ud800") == "␛[31mred␀␇␡\ufffd\ufffd"


@pytest.mark.parametrize("size", [50_000, 50_001])
def test_a_long_output_is_marked_once(session: Session, size: int) -> None:
    tools = create_sandbox_tools(session, exec=ExecPolicy(max_output_bytes=50_000))
    result = tools.call("exec_command", {"command": "sh", "args": ["-c", f"yes | head -c {size}"]})
    assert result.content.count("bytes left out") == (size > 50_000)


def test_an_exit_code_is_no_error(session: Session) -> None:
    tools = create_sandbox_tools(session)
    failed = tools.call("exec_command", {"command": "sh", "args": ["-c", "echo out; echo err >&2; exit 7"]})
    assert not failed.is_error
    assert failed.content.splitlines() == [failed.content.splitlines()[0], "stdout:", "out", "stderr:", "err"]
    assert failed.structured["exit_code"] == 7
    killed = tools.call("exec_command", {"command": "sh", "args": ["-c", "kill -9 $$"]})
    assert killed.content.startswith("The command was killed by SIGKILL after ")
    missing = tools.call("exec_command", {"command": "no-such-program"})
    assert (missing.structured["exit_code"], "not found" in missing.content) == (127, True)


def test_an_error_is_one_sentence(session: Session) -> None:
    tools = create_sandbox_tools(session, ["exec_command", "read_file", "write_file"])
    for name, arguments in (
        ("read_file", {"path": "missing"}),
        ("read_file", {"path": "."}),
        ("read_file", {"path": "a\nb\x1b[2J"}),
        ("write_file", {"path": "x/../..", "content": ""}),
        ("exec_command", {"command": ""}),
        ("exec_command", {"command": "a\0b"}),
        ("exec_command", {"command": "ls", "cwd": "missing"}),
        ("exec_command", {"command": "ls", "cwd": "/etc"}),
        ("exec_command", {"command": "ls", "env": [{"name": "A=B", "value": ""}]}),
        ("exec_command", {"command": "ls", "env": [{"name": "A", "value": ""}, {"name": "A", "value": "b"}]}),
        ("exec_command", {"command": "ls", "args": ["x" * 200_000]}),
        ("exec_command", {"command": "ls", "args": ["\ud800"]}),
    ):
        result = tools.call(name, arguments)
        assert result.is_error, (name, arguments)
        assert result.content.startswith("Error: ")
        assert "\n" not in result.content
        assert "\x1b" not in result.content
        assert result.structured["error"]["message"] in result.content
        json.dumps(result.structured, ensure_ascii=False).encode()


def test_a_large_file_comes_in_pages_of_bounded_size(session: Session) -> None:
    tools = create_sandbox_tools(
        session,
        ["read_file", "write_file"],
        read_file=ReadFilePolicy(max_bytes=1000),
        write_file=WriteFilePolicy(max_bytes=100_000),
    )
    text = "é" * 1300 + "\n" + "".join(f"{n}\n" for n in range(3000))
    tools.call("write_file", {"path": "large", "content": text})
    arguments: dict[str, Any] = {"path": "large"}
    read, pages = "", 0
    while True:
        result = tools.call("read_file", arguments)
        assert len(result.structured["text"].encode()) <= 1000
        read, pages = read + result.structured["text"], pages + 1
        if result.structured["next_line"] is None:
            break
        arguments = {
            "path": "large",
            "start_line": result.structured["next_line"],
            "offset": result.structured["next_offset"],
        }
    assert read == text
    assert pages > 10
    refused = tools.call("write_file", {"path": "large", "content": "x" * 100_001})
    assert "100001 bytes; at most 100000" in refused.content


def test_an_empty_file_and_one_that_ends_before_are_told_apart(session: Session) -> None:
    tools = create_sandbox_tools(session, ["read_file", "write_file"])
    tools.call("write_file", {"path": "empty", "content": ""})
    assert tools.call("read_file", {"path": "empty"}).content == "[The file is empty.]"
    tools.call("write_file", {"path": "short", "content": "x\n"})
    assert "ends before" in tools.call("read_file", {"path": "short", "start_line": 9}).content


def test_crlf_files_can_be_edited_as_they_are_shown(session: Session) -> None:
    tools = create_sandbox_tools(session, ["read_file", "write_file", "edit_file"])
    tools.call("write_file", {"path": "crlf", "content": "a\r\nb\r\n"})
    shown = tools.call("read_file", {"path": "crlf"}).structured["text"]
    assert not tools.call("edit_file", {"path": "crlf", "old": shown, "new": "c\r\n"}).is_error
    assert session.files.read("crlf") == b"c\r\n"


def test_binary_content_is_shown_harmlessly(session: Session) -> None:
    session.files.write("binary", bytes(range(256)))
    result = create_sandbox_tools(session).call("read_file", {"path": "binary"})
    json.dumps(result.content, ensure_ascii=False).encode()
    assert "\x1b" not in result.content


@given(st.text(st.characters(), max_size=400))
def test_what_is_shown_inside_a_line_ends_none(text: str) -> None:
    assert len(line(text).splitlines()) <= 1


def test_line_ends_become_pictures() -> None:
    assert line("a\r\nb\u2028c\u2029d\te") == "a␍␊b␤c␤d\te"


def test_names_of_files_can_not_pass_for_lines(session: Session) -> None:
    session.files.write_text("names/a\nb\x1b[2J", "x")
    session.files.write_text("names/bytes\udcff", "x")
    session.files.write_text("names/c\rd\u2028e", "x")
    tools = create_sandbox_tools(session, ["list_files", "search_files"])
    listed = tools.call("list_files", {"path": "names"})
    assert listed.content.splitlines() == ["a␊b␛[2J 1", "bytes\ufffd 1", "c␍d␤e 1"]
    found = tools.call("search_files", {"glob": "*", "path": "names"})
    assert found.content.splitlines() == ["a␊b␛[2J", "bytes\ufffd", "c␍d␤e"]


def test_targets_of_links_can_not_pass_for_lines(session: Session) -> None:
    session.files.mkdir("links")
    session.exec("ln", ["-s", "nowhere\nforged 1\rforged 2\u2028forged 3", "links/link"]).check()
    listed = create_sandbox_tools(session).call("list_files", {"path": "links"})
    assert listed.content.splitlines() == ["link -> nowhere␊forged 1␍forged 2␤forged 3"]


def test_what_is_found_in_a_file_can_not_pass_for_another_match(session: Session) -> None:
    session.files.write("found/f", b"x\rforged:1: x\nx, of CRLF\r\n")
    found = create_sandbox_tools(session, ["search_files"]).call("search_files", {"regex": "x", "path": "found"})
    assert found.content.splitlines() == ["f:1: x␍forged:1: x", "f:2: x, of CRLF"]
    assert [match["text"] for match in found.structured["matches"]] == ["x\rforged:1: x", "x, of CRLF\r"]


def test_a_long_listing_is_cut_and_says_so(session: Session) -> None:
    session.files.mkdir("many")
    session.exec("sh", ["-c", "cd many; for n in $(seq 300); do : >$n; done"]).check()
    tools = create_sandbox_tools(session, ["list_files", "search_files"], read_file=ReadFilePolicy(max_entries=100))
    listed = tools.call("list_files", {"path": "many"})
    assert (len(listed.structured["entries"]), listed.structured["truncated"]) == (100, True)
    assert listed.content.endswith("[There is more. List a folder of it, or search.]")
    found = tools.call("search_files", {"glob": "*", "path": "many"})
    assert (len(found.structured["matches"]), found.structured["truncated"]) == (200, True)
    narrow = create_sandbox_tools(session, ["list_files"], read_file=ReadFilePolicy(max_bytes=64))
    assert len(narrow.call("list_files", {"path": "many"}).content) < 150


def test_limits_of_the_session_hold_too(own_session: Session) -> None:
    """The tightest of session, policy and call."""
    tools = create_sandbox_tools(own_session, exec=ExecPolicy(default_timeout=0.1))
    assert "lowered from 60 to 5" in tools.call("exec_command", {"command": "true", "timeout_seconds": 60}).content
    assert tools.call("exec_command", {"command": "sleep", "args": ["9"]}).structured["timed_out"]


@pytest.mark.parametrize("answer", [None, "yes", 1, 0, [], Deny])
def test_a_forgotten_answer_is_no_yes(session: Session, answer: Any) -> None:
    tools = create_sandbox_tools(session, ["write_file"], approve=lambda name, arguments: answer)
    with pytest.raises(TypeError, match="approve returned"):
        tools.call("write_file", {"path": "never", "content": "x"})
    tools = create_sandbox_tools(session, exec=ExecPolicy(check=lambda request: answer))
    with pytest.raises(TypeError, match=r"exec\.check returned"):
        tools.call("exec_command", {"command": "touch", "args": ["never"]})
    assert not session.files.exists("never")


def test_what_a_hook_raises_comes_out(session: Session) -> None:
    def approve(name: str, arguments: dict[str, Any]) -> bool:
        raise KeyError(name)

    with pytest.raises(KeyError, match="read_file"):
        create_sandbox_tools(session, approve=approve).call("read_file", {"path": "x"})


def test_arguments_that_approve_changes_in_place_do_not_count(session: Session) -> None:
    def approve(name: str, arguments: dict[str, Any]) -> bool:
        arguments["command"] = "false"
        arguments["args"].clear()
        return True

    result = create_sandbox_tools(session, approve=approve).call("exec_command", {"command": "echo", "args": ["kept"]})
    assert result.structured["stdout"] == "kept\n"


def test_an_abort_that_is_set_already_runs_nothing(session: Session) -> None:
    stop = threading.Event()
    stop.set()
    tools = create_sandbox_tools(session, exec=ExecPolicy(blocked_commands=["x"]))
    for name, arguments in (
        ("exec_command", {"command": "touch", "args": ["aborted"]}),
        ("write_file", {"path": "aborted", "content": "x"}),
    ):
        result: ToolResult = tools.call(name, arguments, abort=stop)
        assert result.is_error
    assert not session.files.exists("aborted")
