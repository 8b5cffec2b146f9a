"""The frames' bytes: what is encoded parses, and what does not parse is a ProtocolError, whatever it is."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit._frames import (
    HEADER,
    MAX_HELLO,
    ExecFlag,
    Exit,
    FrameType,
    Hello,
    ProtocolError,
    Refusal,
    RefusalCode,
    encode,
    encode_exec,
    encode_resize,
    encode_u32,
    exec_payload,
    milliseconds,
    parse_u32,
)

from .fake_agent import FakeAgent, Job, hello

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
# Whatever os.fsdecode can make of a name's bytes, but NUL.
TEXTS = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
NAMES = TEXTS.filter(lambda name: name != "" and "=" not in name)
EXIT = struct.Struct("<BBBBIQQQH")


@given(st.sampled_from(FrameType), U32, st.binary(max_size=100), st.integers(0, 255))
def test_a_frame_is_a_header_and_its_payload(kind: FrameType, channel: int, payload: bytes, flags: int) -> None:
    frame = encode(kind, channel, payload, flags)
    assert HEADER.unpack(frame[:12]) == (len(payload), channel, kind, flags, 0)
    assert frame[12:] == payload
    assert encode(kind, channel, memoryview(payload), flags) == frame


@given(U32, U32)
def test_a_number_comes_back(channel: int, value: int) -> None:
    frame = encode_u32(FrameType.WINDOW, channel, value)
    assert parse_u32(frame[HEADER.size :]) == value
    assert encode(FrameType.WINDOW, channel, frame[12:]) == frame


def test_a_size_is_rows_then_columns() -> None:
    assert encode_resize(7, 24, 80) == bytes.fromhex("04000000 07000000 18 00 0000 1800 5000")


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS, st.dictionaries(NAMES, TEXTS, max_size=5), U32, U32, U32)
def test_an_exec_comes_back(
    argv: list[str], cwd: str, env: dict[str, str], window: int, timeout: int, grace: int
) -> None:
    payload = exec_payload(
        argv,
        cwd=cwd,
        env=env,
        flags=ExecFlag.STDIN | ExecFlag.TTY,
        window=window,
        timeout_ms=timeout,
        grace_ms=grace,
        rows=30,
        columns=90,
    )
    job = Job(FakeAgent.__new__(FakeAgent), 1, payload)
    assert (job.argv, job.cwd, job.env) == (argv, cwd, env)
    assert (job.flags, job.credit, job.timeout, job.grace, job.rows, job.columns) == (3, window, timeout, grace, 30, 90)
    assert encode_exec(9, payload) == encode(FrameType.EXEC, 9, payload)


def test_text_is_utf_8_whatever_the_host_s_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("latin-1"))
    payload = exec_payload(["ü"], cwd=".", env={}, flags=ExecFlag.NONE, window=1, timeout_ms=0, grace_ms=0)
    assert payload.endswith(b".\0\xc3\xbc\0")


@given(
    how=st.integers(0, 1),
    reason=st.integers(0, 2),
    flags=st.integers(0, 7),
    code=st.integers(1, 64),
    cpu=U64,
    rss=U64,
    pids=st.lists(U32, max_size=64),
)
def test_an_exit_comes_back(how: int, reason: int, flags: int, code: int, cpu: int, rss: int, pids: list[int]) -> None:
    head = EXIT.pack(how, reason, flags, 0, code, 1, cpu, rss, len(pids))
    assert Exit.parse(head + struct.pack(f"<{len(pids)}I", *pids)) == Exit(
        signal=code if how else None,
        exit_code=None if how else code,
        reason=reason,
        oom_killed=bool(flags & 1),
        not_executed=bool(flags & 2),
        cpu_seconds=cpu / 1e6,
        max_rss_bytes=rss,
        background_pids=tuple(pids),
    )


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)[:-1], id="cut"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 0, 0, 0, 0, 0) + b"\0", id="too long"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 0, 0, 0, 0, 1), id="fewer pids than it says"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 0, 0, 0, 0, 65) + bytes(260), id="too many pids"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 0, 0, 0, 0, 65535), id="a count that is no count"),
        pytest.param(EXIT.pack(2, 0, 0, 0, 0, 0, 0, 0, 0), id="how"),
        pytest.param(EXIT.pack(0, 3, 0, 0, 0, 0, 0, 0, 0), id="reason"),
        pytest.param(EXIT.pack(0, 0, 0, 0, 256, 0, 0, 0, 0), id="code"),
        pytest.param(EXIT.pack(1, 0, 0, 0, 0, 0, 0, 0, 0), id="signal 0"),
        pytest.param(EXIT.pack(1, 0, 0, 0, 65, 0, 0, 0, 0), id="signal 65"),
    ],
)
def test_an_exit_out_of_range_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="an EXIT"):
        Exit.parse(payload)


@given(st.one_of(st.binary(max_size=400), st.binary(min_size=34, max_size=34)))
def test_no_bytes_upset_the_parsers(payload: bytes) -> None:
    for parse in (Exit.parse, Refusal.parse, Hello.parse, parse_u32):
        with contextlib.suppress(ProtocolError):
            parse(payload)


@given(st.sampled_from(RefusalCode), st.integers(0, 65535), st.text(max_size=100))
def test_a_refusal_comes_back(code: RefusalCode, errno: int, text: str) -> None:
    payload = struct.pack("<HH", code, errno) + text.encode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "?" for c in text)
    assert Refusal.parse(payload) == Refusal(code, errno, shown)


def test_a_refusal_s_text_is_cut_and_never_fails() -> None:
    assert len(Refusal.parse(struct.pack("<HH", 5, 0) + b"x" * 60_000).message) == 1024
    assert Refusal.parse(struct.pack("<HH", 5, 0) + b"\xff").message == "\N{REPLACEMENT CHARACTER}"
    with pytest.raises(ProtocolError, match="code 99"):
        Refusal.parse(struct.pack("<HH", 99, 0))


def test_hello_gives_facts_and_numbers() -> None:
    parsed = Hello.parse(hello(memory_max="max", pids_max="", cap_eff="00000000a80425fb", more="new")[12:])
    assert parsed.facts["arch"] == "x86_64"
    assert parsed.facts["more"] == "new"
    assert parsed.number("pid") == 1
    assert parsed.number("cap_eff", 16) == 0xA80425FB
    assert parsed.number("memory_max") is None
    assert parsed.number("pids_max") is None
    assert parsed.number("missing") is None


def test_a_number_of_thousands_of_digits_is_none() -> None:
    assert Hello.parse(hello(memory_max="9" * 5000)[12:]).number("memory_max") is None


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param(b"", "0 bytes", id="empty"),
        pytest.param(hello(x="y" * MAX_HELLO)[12:], "a HELLO of", id="too long"),
        pytest.param(hello(magic=1)[12:], "are not the agent's", id="magic"),
        pytest.param(hello(version=2)[12:], "speaks protocol version 2, this library 1", id="version"),
        pytest.param(hello()[12:] + b"\xff", "not ASCII", id="not ASCII"),
    ],
)
def test_a_hello_that_is_none_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Hello.parse(payload)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0), (1e-9, 1), (0.001, 1), (0.0011, 2), (1, 1000), (2.5, 2500), (1e12, 4_294_967_000), (1e308, 4_294_967_000)],
)
def test_milliseconds_are_rounded_up_and_fit(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected
    assert milliseconds(10**400) == 4_294_967_000
