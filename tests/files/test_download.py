"""A tree is written below its target and nowhere else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit._download import HostTree, stays_inside

PART = st.sampled_from(["..", ".", "a", "b", "c", ""])
LINKS = st.lists(
    st.tuples(st.sampled_from(["l", "d/l", "d/m", "d/e/l", "d/e/m", "m"]), st.lists(PART, min_size=1, max_size=5)),
    max_size=8,
)


@given(LINKS)
def test_links_that_stay_inside_never_lead_outside_together(links: list[tuple[str, list[str]]]) -> None:
    """By what the kernel makes of them: every link made is followed, with every other one there."""
    with tempfile.TemporaryDirectory() as top:
        root = os.path.realpath(top) + "/x/y/z"
        os.makedirs(root + "/d/e/a")
        made = []
        names = {"a": "d", "b": "l", "c": "m"}
        for path, parts in links:
            target = "/".join(names.get(part, part) for part in parts)
            if stays_inside(path, target) and not os.path.lexists(f"{root}/{path}"):
                os.symlink(target, f"{root}/{path}")
                made.append(path)
        for path in made:
            try:
                found = os.path.realpath(f"{root}/{path}", strict=True)
            except OSError:  # to nothing, or round and round
                continue
            assert found == root or found.startswith(root + "/")


@pytest.mark.parametrize("target", ["", "/", "/etc", "..", "../x", "a/..", "a/../b", "./../.."])
def test_links_at_the_top_that_go_up_do_not_stay(target: str) -> None:
    assert not stays_inside("link", target)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    tree = HostTree(str(tmp_path))
    file = tree.file("f", 0o644)
    with pytest.raises(ZeroDivisionError), file:
        file.write(b"half" * (1 // len(b"")))
    assert os.listdir(tmp_path) == []
    with tree.file("f", 0o6777) as file:
        file.write(b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o777
    tree.close()


def test_a_folder_that_is_a_link_on_the_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/d").symlink_to(tmp_path / "outside")
    tree = HostTree(str(tmp_path / "root"))
    with pytest.raises(OSError, match="d"):
        tree.directory("d", 0o755)
    with pytest.raises(OSError, match="d"):
        tree.file("d/f", 0o644)
    tree.close()
    assert os.listdir(tmp_path / "outside") == []
