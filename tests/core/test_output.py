"""What is kept of an output: exact at the cap, bounded beyond it, the same for any chunks, and whole characters."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit._output import HeadTail, incomplete_tail

CHUNKS = st.lists(st.binary(max_size=12), max_size=30)


def kept(cap: int, chunks: list[bytes]) -> HeadTail:
    output = HeadTail(cap)
    for chunk in chunks:
        view = bytearray(chunk)
        output.feed(memoryview(view))
        view[:] = bytes(len(view))  # it has been copied
    return output


@given(st.integers(0, 40), CHUNKS)
def test_any_chunks_give_what_one_gives(cap: int, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    one, many = kept(cap, [whole]), kept(cap, chunks)
    single = kept(cap, [bytes([byte]) for byte in whole])
    assert one.render() == many.render() == single.render()
    assert one.total == many.total == single.total == len(whole)
    assert one.truncated == many.truncated == single.truncated == (len(whole) > cap)


@given(st.integers(0, 40), CHUNKS)
def test_up_to_the_cap_all_of_it_beyond_head_marker_and_tail(cap: int, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    rendered = kept(cap, chunks).render()
    if len(whole) <= cap:
        assert rendered == whole
        return
    head, marker, tail = split(rendered, whole)
    assert marker == b"\n[... %d bytes left out ...]\n" % (len(whole) - len(head) - len(tail))
    assert whole.startswith(head)
    assert whole.endswith(tail)
    # A character at either edge may go; nothing else.
    assert cap - cap // 2 - 3 <= len(head) <= cap - cap // 2
    assert cap // 2 - 3 <= len(tail) <= cap // 2


def split(rendered: bytes, whole: bytes) -> tuple[bytes, bytes, bytes]:
    start = rendered.index(b"\n[... ")
    end = rendered.index(b" bytes left out ...]\n", start) + len(b" bytes left out ...]\n")
    return rendered[:start], rendered[start:end], rendered[end:]


@given(st.integers(0, 60), st.text(alphabet="aé€😀\u0800\U0010ffff", max_size=60))
def test_no_character_is_cut(cap: int, text: str) -> None:
    whole = text.encode()
    output = kept(cap, [whole])
    if output.truncated:
        head, _, tail = split(output.render(), whole)
        assert text.startswith(head.decode())
        assert text.endswith(tail.decode())


@given(CHUNKS)
def test_text_by_events_is_the_text(chunks: list[bytes]) -> None:
    # As Run.events cuts: what is incomplete waits for the next chunk.
    held, text = b"", ""
    for chunk in chunks:
        data = held + chunk
        edge = len(data) - incomplete_tail(data)
        held = data[edge:]
        assert len(held) <= 3
        text += data[:edge].decode("utf-8", "replace")
    assert text + held.decode("utf-8", "replace") == b"".join(chunks).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0),
        (b"\xc3", 1),
        (b"\xc3\xa9", 0),
        (b"\xe2\x82", 2),
        (b"\xe2\x82\xac", 0),
        (b"\xf0\x9f\x98", 3),
        (b"\xf0\x9f\x98\x80", 0),
        (b"\x80\x80\x80\x80", 0),
        (b"\xff", 0),
        (b"\xf8", 0),
        (b"\xc3a", 0),
    ],
)
def test_incomplete_tail(data: bytes, expected: int) -> None:
    assert incomplete_tail(data) == expected
    assert incomplete_tail(bytearray(data)) == expected


@pytest.mark.parametrize("size", [1, 7, 4096, 65536])
def test_memory_is_bounded_by_the_cap(size: int) -> None:
    cap, chunk = 1 << 20, memoryview(bytes(size))
    output = HeadTail(cap)
    tracemalloc.start()
    try:
        for _ in range(min(8 * cap // size, 200_000)):
            output.feed(chunk)
        # 1.5 times the cap, and what a growing buffer keeps in reserve.
        assert tracemalloc.get_traced_memory()[0] < 1.75 * cap
        assert tracemalloc.get_traced_memory()[1] < 2.8 * cap
    finally:
        tracemalloc.stop()


def test_a_cap_of_nothing_counts_and_keeps_nothing() -> None:
    output = kept(0, [b"abc"])
    assert output.render() == b"\n[... 3 bytes left out ...]\n"
    assert (output.truncated, output.total) == (True, 3)
    assert kept(0, []).render() == b""
