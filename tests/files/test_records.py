"""What comes from a sandbox is parsed as what it is: bytes of an adversary."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit._records import (
    DONE,
    MAX_BLOCK,
    BrokenRecordError,
    Identity,
    IncompleteError,
    Reader,
    encode_entry,
    is_plain,
)

NAME = st.binary(min_size=1, max_size=60).filter(is_plain)


def split(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The bytes in chunks."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return (data[a:b] for a, b in itertools.pairwise(places) if a != b)


@given(
    st.binary(max_size=300),
    st.lists(st.integers(0, 300), max_size=5),
    st.sampled_from(["entry", "match", "listener", "end", "page", "totals"]),
)
def test_any_bytes_are_a_record_or_an_error(data: bytes, cuts: list[int], kind: str) -> None:
    reader = Reader(split(data, cuts))
    try:
        if kind in ("match", "page"):
            getattr(reader, kind)(1000)
        else:
            getattr(reader, kind)()
    except (BrokenRecordError, IncompleteError):
        pass


@given(NAME, st.integers(0, 0o777), st.integers(0, 2**40), st.lists(st.integers(0, 200), max_size=5))
def test_entries_come_back_as_they_were(name: bytes, mode: int, size: int, cuts: list[int]) -> None:
    encoded = encode_entry("file", os.fsdecode(name), mode=mode, size=size)
    reader = Reader(split(encoded + DONE, cuts))
    assert reader.kind() == ord("E")
    entry = reader.entry()
    assert (os.fsencode(entry.path), entry.type, entry.mode, entry.size) == (name, "file", mode, size)
    assert reader.end() == (0, 0)


@pytest.mark.parametrize(
    ("family", "address", "text"),
    [
        (4, bytes([127, 0, 0, 1]) + bytes(12), "127.0.0.1"),
        (6, bytes(15) + b"\1", "::1"),
        (6, bytes(10) + b"\xff\xff\x7f\0\0\1", "::ffff:127.0.0.1"),
    ],
)
def test_a_listener(family: int, address: bytes, text: str) -> None:
    record = struct.pack("<BBHII16s", ord("L"), family, 8000, 7, 0, address)
    found = Reader(iter([record])).listener()
    assert (found.port, found.address, found.uid, found.pid, found.is_loopback) == (8000, text, 7, None, True)


@pytest.mark.parametrize("record", [(77, 4, 1, 1), (76, 5, 1, 1), (76, 4, 0, 1), (76, 4, 1, 1 << 31)])
def test_a_listener_that_is_none(record: tuple[int, int, int, int]) -> None:
    kind, family, port, pid = record
    with pytest.raises(BrokenRecordError):
        Reader(iter([struct.pack("<BBHII16s", kind, family, port, 0, pid, bytes(16))])).listener()


@pytest.mark.parametrize("path", [b"/etc", b"..", b"a/../b", b"a//b", b"./a", b"a/", b"", b"a\0b", b"n" * 256])
def test_paths_that_are_no_plain_ones_are_refused(path: bytes) -> None:
    entry = bytearray(encode_entry("file", "x" * max(len(path), 1)))
    entry[40:42] = struct.pack("<H", len(path))
    with pytest.raises(BrokenRecordError):
        Reader(iter([bytes(entry[:44]) + path])).entry()


def test_a_block_has_a_bound() -> None:
    with pytest.raises(BrokenRecordError):
        list(Reader(iter([struct.pack("<I", MAX_BLOCK + 1)])).blocks())


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(BrokenRecordError):
        Reader(iter([DONE, b"x"])).end()


@given(st.binary(min_size=Identity.SIZE, max_size=Identity.SIZE))
def test_any_identity_is_in_range_or_an_error(data: bytes) -> None:
    try:
        found = Identity.parse(data)
    except BrokenRecordError:
        return
    assert found.mode <= 0o7777
    assert found.size < 2**63
