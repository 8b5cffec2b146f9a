"""`session.files`: content, names, folders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sandboxkit import Security, Session
from sandboxkit.backend import Feature
from sandboxkit.errors import ConfigError, FileError, FileTooLargeError, PathError

from ._inside import fresh, sh
from ._suite import Suite, needs
from ._threads import together

NAMES = {
    "newline": "a\nb",
    "quotes": 'it\'s "quoted" `x` $(y)',
    "invalid UTF-8": b"caf\xe9\xff".decode("utf-8", "surrogateescape"),
    "255 bytes": "n" * 255,
    "leading dash": "-rf",
    "emoji": "🦀 émoji",
    "space": " ",
    "backslash": "a\\n",
    "three dots": "...",
    "glob": "*[a]?",
}

MIB = 1 << 20


class FileContents(Suite):
    """What is written is what is read."""

    @pytest.mark.parametrize("size", [0, 1, 4095, 65_535, 65_536, 65_537, 1_048_577, 5_000_000])
    def test_bytes_come_back_as_they_were(self, session: Session, size: int) -> None:
        """At every edge of frames, windows and pipes."""
        path, data = fresh(), bytes(index * 7 % 251 for index in range(1000)) * (size // 1000 + 1)
        session.files.write(path, data[:size])
        assert session.files.read(path) == data[:size]
        assert session.files.stat(path).size == size

    def test_64_mib_go_in_and_out(self) -> None:
        """A 64 MiB file, one byte more is refused."""
        with self.create(limits=self.limits(max_file_bytes=64 * MIB, timeout=120)) as session:
            data = bytes(range(256)) * (MIB // 4)
            session.files.write("big", data)
            assert session.files.read("big") == data
            session.files.write("big", b"+", append=False)
            with pytest.raises(FileTooLargeError):
                session.files.write("big", data + b"+")
            assert session.files.read("big") == b"+"

    def test_a_part_is_read_by_offset_and_length(self, session: Session) -> None:
        """Fewer bytes at the end, none behind it."""
        path = fresh()
        session.files.write(path, b"0123456789")
        assert session.files.read(path, offset=3, length=4) == b"3456"
        assert session.files.read(path, offset=8, length=100) == b"89"
        assert session.files.read(path, offset=100, length=1) == b""
        assert session.files.read(path, offset=4) == b"456789"
        assert session.files.read(path, length=0) == b""

    def test_a_command_sees_what_was_written_and_the_other_way_round(self, session: Session) -> None:
        """One workspace."""
        path = fresh()
        session.files.write_text(path, "hello ✓\n")
        assert session.exec("cat", [path]).stdout == "hello ✓\n"
        sh(session, 'echo more >>"$1"', path).check()
        assert session.files.read_text(path) == "hello ✓\nmore\n"

    def test_files_belong_to_the_sessions_user(self, session: Session) -> None:
        """The command that writes and the call that writes are the same user."""
        ours, theirs = fresh(), fresh()
        session.files.write(ours, b"x")
        sh(session, 'echo >"$1"', theirs).check()
        assert session.files.stat(ours).uid == session.files.stat(theirs).uid

    @needs(Feature.IMAGES)
    @pytest.mark.parametrize("image", ["empty", "static", "nonroot"])
    def test_files_need_nothing_in_the_image(self, image: str) -> None:
        """Not `sh`, not libc, not root."""
        with self.create(image) as session:
            session.files.write("a/b/file", b"content", mode=0o600)
            assert session.files.read("a/b/file") == b"content"
            assert session.files.list(recursive=True).paths == ["a", "a/b", "a/b/file"]
            assert session.files.search(regex="cont", glob="**/file")[0].path == "a/b/file"
            session.files.remove("a", recursive=True)
            assert len(session.files.list()) == 0

    @needs(Feature.READONLY_ROOTFS)
    def test_files_work_with_a_readonly_root(self) -> None:
        """The engines' own archive calls refuse that."""
        with self.create(security=Security(readonly_rootfs=True)) as session:
            session.files.write("file", b"content")
            assert session.files.read("file") == b"content"

    def test_modes_are_as_given_or_kept(self, session: Session) -> None:
        """`write`: None keeps what the file had."""
        path = fresh()
        session.files.write(path, b"1")
        assert session.files.stat(path).mode == 0o644
        session.files.write(path, b"2", mode=0o751)
        assert session.files.stat(path).mode == 0o751
        session.files.write(path, b"3")
        assert session.files.stat(path).mode == 0o751

    def test_append_adds_to_the_same_file(self, session: Session) -> None:
        """Whoever has it open sees it grow."""
        path = fresh()
        session.files.write(path, b"1")
        inode = session.files.stat(path).inode
        session.files.write(path, b"2" * 200_000, append=True)
        session.files.write(fresh(), b"new", append=True)
        assert session.files.read(path) == b"1" + b"2" * 200_000
        assert session.files.stat(path).inode == inode

    def test_exclusive_refuses_what_is_there(self, session: Session) -> None:
        """And leaves it."""
        path = fresh()
        session.files.write(path, b"1", exclusive=True)
        with pytest.raises(PathError) as caught:
            session.files.write(path, b"2", exclusive=True)
        assert caught.value.details["errno"] == "EEXIST"
        assert session.files.read(path) == b"1"

    def test_a_file_over_the_bound_is_refused_both_ways(self) -> None:
        """`max_file_bytes`; a sparse file counts in full, and appending counts what is there."""
        with self.create(limits=self.limits(max_file_bytes=1000)) as session:
            session.files.write("ok", bytes(1000))
            sh(session, "truncate -s 1G sparse").check()
            refused: list[Callable[[], object]] = [
                lambda: session.files.write("no", bytes(1001)),
                lambda: session.files.write("ok", b"x", append=True),
                lambda: session.files.read("sparse"),
            ]
            for call in refused:
                with pytest.raises(FileTooLargeError):
                    call()
            assert not session.files.exists("no")
            assert session.files.read("sparse", offset=5_000_000, length=10) == bytes(10)

    def test_a_file_that_grows_while_it_is_read_is_refused(self) -> None:
        """Sizes are looked at again while bytes move."""
        with self.create(limits=self.limits(max_file_bytes=MIB)) as session:
            script = "printf x >grows; i=0; while :; do head -c 100000 /dev/zero >>grows; done"
            with session.exec_stream("sh", ["-c", script]):
                for _ in range(2000):
                    try:
                        assert len(session.files.read("grows")) <= MIB
                    except FileTooLargeError:
                        break
                    except PathError:
                        continue
                else:
                    pytest.fail("never refused")

    def test_edit_replaces_exact_text_and_refuses_another_count(self, session: Session) -> None:
        """Atomically; else the file is as it was."""
        path = fresh()
        session.files.write_text(path, "one two two\n")
        session.files.edit(path, "one", "1")
        session.files.edit(path, "two", "2", count=2)
        assert session.files.read_text(path) == "1 2 2\n"
        for old, found in (("2", 2), ("three", 0)):
            with pytest.raises(FileError) as caught:
                session.files.edit(path, old, "x")
            assert (caught.value.details["reason"], caught.value.details["found"]) == ("count", found)
        assert session.files.read_text(path) == "1 2 2\n"

    def test_concurrent_edits_lose_nothing(self, session: Session) -> None:
        """Each sees what the others did, or begins anew."""
        path, number = fresh(), 6
        session.files.write_text(path, "".join(f"<{index}>\n" for index in range(number)))
        together([partial(session.files.edit, path, f"<{index}>", f"[{index}]") for index in range(number)])
        assert session.files.read_text(path) == "".join(f"[{index}]\n" for index in range(number))

    def test_bad_arguments_name_the_field(self, session: Session) -> None:
        """ConfigError, and nothing was done."""
        files, path = session.files, fresh()
        wrong: dict[str, Callable[[], object]] = {
            "path": lambda: files.read(""),
            "data": lambda: files.write(path, "text"),  # type: ignore[arg-type]
            "mode": lambda: files.write(path, b"", mode=0o4755),
            "offset": lambda: files.read(path, offset=-1),
            "limit": lambda: files.list(limit=0),
            "timeout": lambda: files.read(path, timeout=-1),
            "abort": lambda: files.read(path, abort=1),  # type: ignore[arg-type]
            "glob": lambda: files.search(None),
            "exclude": lambda: files.search("*", exclude="*.py"),
            "old": lambda: files.edit(path, "", "x"),
            "regex": lambda: files.search(regex="(unclosed"),
            "encoding": lambda: files.read_text(path, encoding="no-such"),
            "max_bytes": lambda: files.read_text_page(path, max_bytes=1),
        }
        for field, call in wrong.items():
            with pytest.raises(ConfigError) as caught:
                call()
            assert caught.value.details["field"] == field
        assert not files.exists(path)


class FileNames(Suite):
    """Any name a Linux file system allows."""

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_any_name_works_everywhere(self, session: Session, name: str) -> None:
        """Written, listed, described, found, moved, removed."""
        folder = fresh("names")
        path = f"{folder}/{name}"
        session.files.write(path, b"x")
        assert session.files.read(path) == b"x"
        assert [entry.name for entry in session.files.list(folder)] == [name]
        assert session.files.stat(path).size == 1
        assert session.files.search("*", path=folder)[0].path == name
        session.files.move(path, f"{folder}/moved")
        session.files.move(f"{folder}/moved", path)
        session.files.remove(path)
        session.files.mkdir(path)
        session.files.write(f"{path}/{name}", b"y")
        assert session.files.list(folder, recursive=True).paths == [name, f"{name}/{name}"]
        session.files.remove(folder, recursive=True)
        assert not session.files.exists(folder)

    def test_too_long_names_are_path_errors(self, session: Session) -> None:
        """256 bytes are no name; 4,096 no path."""
        with pytest.raises(PathError):
            session.files.write("n" * 256, b"")
        with pytest.raises(ConfigError):
            session.files.write("n/" * 2048, b"")

    def test_absolute_paths_inside_are_the_same_as_relative_ones(self, session: Session) -> None:
        """And `..` that stays inside is fine."""
        path = fresh()
        session.files.write(f"{session.workspace}/{path}", b"x")
        session.files.mkdir("dotdot")
        for same in (path, f"./{path}", f"dotdot/../{path}", f"{session.workspace}//./{path}"):
            assert session.files.read(same) == b"x"


class Folders(Suite):
    """Listing, making, moving, removing."""

    def test_a_listing_is_sorted_and_says_what_is_there(self, session: Session) -> None:
        """Type, size, mode, time and a link's target."""
        folder = fresh("list")
        sh(session, 'mkdir -p "$1/d"; cd "$1"; echo hi >b; ln -s nowhere a; mkfifo p; chmod 640 b', folder).check()
        found = session.files.list(folder)
        assert [(entry.path, entry.type, entry.target) for entry in found] == [
            ("a", "link", "nowhere"),
            ("b", "file", None),
            ("d", "directory", None),
            ("p", "fifo", None),
        ]
        assert (found[1].size, found[1].mode, found.truncated) == (3, 0o640, False)
        assert found[1].mtime > 1_500_000_000

    def test_a_recursive_listing_follows_no_link(self, session: Session) -> None:
        """A loop of links ends."""
        folder = fresh("list")
        sh(session, 'mkdir -p "$1/d/e"; ln -s .. "$1/d/up"; echo >"$1/d/e/f"', folder).check()
        assert session.files.list(folder, recursive=True).paths == ["d", "d/e", "d/e/f", "d/up"]

    def test_10_000_files_in_one_folder(self, session: Session) -> None:
        """Listed whole; with a limit cut, and said so; removed."""
        folder = fresh("many")
        sh(session, 'mkdir "$1"; cd "$1"; seq -w 0 9999 | while read n; do : >"$n"; done', folder).check()
        found = session.files.list(folder)
        assert (len(found), found.truncated) == (10_000, False)
        assert found.paths == sorted(found.paths)
        cut = session.files.list(folder, limit=9_999)
        assert (len(cut), cut.truncated, cut.paths) == (9_999, True, found.paths[:9_999])
        session.files.remove(folder, recursive=True)
        assert not session.files.exists(folder)

    def test_a_tree_deeper_than_any_path_can_be_removed(self, session: Session) -> None:
        """Neither descriptors nor path lengths bound it."""
        folder = fresh("deep")
        script = """mkdir "$1"; cd "$1"; path=.; i=0
        while [ $i -lt 400 ]; do path=$path/abcdefgh; i=$((i+1)); done
        for turn in 1 2 3 4; do mkdir -p next/$path; [ $turn = 1 ] || mv deep next/$path/; mv next deep; done"""
        sh(session, script, folder).check()
        listing = session.files.list(folder, recursive=True)
        assert listing.skipped > 0
        session.files.remove(folder, recursive=True)
        assert not session.files.exists(folder)

    def test_remove_takes_the_link_and_leaves_its_target(self, session: Session) -> None:
        """Also within a tree."""
        folder = fresh("links")
        sh(session, 'mkdir -p "$1/kept" "$1/gone"; echo x >"$1/kept/f"; ln -s ../kept "$1/gone/l"', folder).check()
        session.files.remove(f"{folder}/gone", recursive=True)
        assert session.files.read(f"{folder}/kept/f") == b"x\n"

    def test_remove_says_what_is_wrong(self, session: Session) -> None:
        """A full folder, a missing file, the workspace itself."""
        folder = fresh("full")
        session.files.write(f"{folder}/f", b"")
        for path, code in ((folder, "ENOTEMPTY"), (f"{folder}/missing", "ENOENT"), (".", "EBUSY")):
            with pytest.raises(PathError) as caught:
                session.files.remove(path, recursive=path == ".")
            assert caught.value.details["errno"] == code
        session.files.remove(f"{folder}/missing", missing_ok=True)

    def test_move_overwrites_only_when_asked(self, session: Session) -> None:
        """And makes parents."""
        one, two = fresh(), fresh()
        session.files.write(one, b"1")
        session.files.write(two, b"2")
        with pytest.raises(PathError) as caught:
            session.files.move(one, two)
        assert caught.value.details["errno"] == "EEXIST"
        session.files.move(one, two, overwrite=True)
        session.files.move(two, f"{one}-new/folder/file")
        assert session.files.read(f"{one}-new/folder/file") == b"1"
        assert not session.files.exists(one)

    def test_mkdir_is_told_about_what_is_there(self, session: Session) -> None:
        """A folder is fine unless `exist_ok=False`; a file never is."""
        folder, file = fresh("made"), fresh()
        session.files.mkdir(f"{folder}/a/b", mode=0o700)
        session.files.mkdir(f"{folder}/a/b")
        assert session.files.stat(f"{folder}/a/b").mode == 0o700
        session.files.write(file, b"")
        refused: list[Callable[[], object]] = [
            lambda: session.files.mkdir(folder, exist_ok=False),
            lambda: session.files.mkdir(file),
            lambda: session.files.mkdir(f"{folder}/x/y", parents=False),
        ]
        for call in refused:
            with pytest.raises(PathError):
                call()
