"""`session.files`: pages, search, upload, download, seeding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import FileProgress, Session
from sandboxkit.errors import ConfigError, FileError, FileTooLargeError, PathError

from ._inside import fresh, sh
from ._suite import RUN, RUN_LABEL, Suite

MIB = 1 << 20


class Pages(Suite):
    """`read_text_page`."""

    def test_lines_are_paged(self, session: Session) -> None:
        """By line, with where to go on."""
        path = fresh()
        session.files.write_text(path, "".join(f"line {n}\n" for n in range(1, 101)))
        page = session.files.read_text_page(path, start_line=11, line_count=3)
        assert page.text == "line 11\nline 12\nline 13\n"
        assert (page.start_line, page.next_line, page.eof) == (11, 14, False)
        again = session.files.read_text_page(path, start_line=page.next_line, offset=page.next_offset, line_count=2)
        assert (again.text, again.start_line, again.next_line) == ("line 14\nline 15\n", 14, 16)
        last = session.files.read_text_page(path, start_line=100)
        assert (last.text, last.eof, last.next_offset) == ("line 100\n", True, last.total_size)
        behind = session.files.read_text_page(path, start_line=500)
        assert (behind.text, behind.eof, behind.start_line) == ("", True, 101)

    @pytest.mark.parametrize("content", ["", "\n", "no end", "a\n\nb", "é" * 50 + "\n" + "€" * 50])
    def test_pages_put_together_are_the_file(self, session: Session, content: str) -> None:
        """Whatever the bound, without splitting a character."""
        path = fresh()
        session.files.write_text(path, content)
        for bound in (4, 5, 7, 64):
            text, line, offset = "", 1, 0
            while True:
                page = session.files.read_text_page(path, start_line=line, offset=offset, max_bytes=bound)
                text, line, offset = text + page.text, page.next_line, page.next_offset
                if page.eof:
                    break
            assert text == content
            assert (line, offset) == (content.count("\n") + 1, len(content.encode()))

    def test_a_single_line_of_50_mb_is_read_to_its_end(self, session: Session) -> None:
        """It is larger than `max_file_bytes`, but only pages move."""
        path = fresh()
        sh(session, 'head -c 50000000 /dev/zero | tr "\\0" x >"$1"; printf "\\nend\\n" >>"$1"', path).check()
        total, line, offset, pages = 0, 1, 0, 0
        while True:
            pages += 1
            page = session.files.read_text_page(path, start_line=line, offset=offset, max_bytes=8 * MIB)
            total, line, offset = total + len(page.text), page.next_line, page.next_offset
            if page.eof:
                break
            assert pages < 100
        assert (total, line, page.total_size) == (50_000_005, 3, 50_000_005)


class Search(Suite):
    """`search`."""

    def test_globs_and_regular_expressions(self, session: Session) -> None:
        """Names, paths, lines with their numbers, excludes."""
        folder = fresh("search")
        for name, text in {
            "a.py": "x = 1\ny = 22\n",
            "src/b.py": "y = 3\n",
            "src/c.txt": "y = 4\n",
            "src/deep/d.py": "",
        }.items():
            session.files.write_text(f"{folder}/{name}", text)

        def paths(*args: str, **options: object) -> list[str]:
            found = session.files.search(*args, path=folder, **options)  # type: ignore[arg-type]
            return [match.path for match in found]

        assert paths("*.py") == ["a.py", "src/b.py", "src/deep/d.py"]
        assert paths("src/*.py") == ["src/b.py"]
        assert paths("src/**/*.py") == ["src/b.py", "src/deep/d.py"]
        assert paths("**/d.*") == ["src/deep/d.py"]
        assert paths("*.py", exclude=["src"]) == ["a.py"]
        found = session.files.search("*.py", regex="^y = [0-9]+$", path=folder)
        assert [(m.path, m.line, m.offset, m.text) for m in found] == [
            ("a.py", 2, 6, "y = 22"),
            ("src/b.py", 1, 0, "y = 3"),
        ]
        assert paths(regex="Y", ignore_case=True) == ["a.py", "src/b.py", "src/c.txt"]

    def test_a_search_is_bounded_and_says_so(self, session: Session) -> None:
        """In matches and bytes; long lines and binary files do it no harm."""
        folder = fresh("search")
        sh(
            session,
            'mkdir "$1"; cd "$1"; seq 100000 >n; head -c 5000000 /dev/zero | tr "\\0" z >z; head -c 9 /dev/zero >b',
            folder,
        ).check()
        cut = session.files.search(regex="1", path=folder, max_matches=7)
        assert (len(cut), cut.truncated, cut[6].text) == (7, "matches", "15")
        assert session.files.search(regex="99999", path=folder, max_bytes=1000).truncated == "bytes"
        assert session.files.search(regex="^100000$", path=folder)[0].line == 100_000
        (line,) = session.files.search(regex="zzz", path=folder)
        assert (line.path, line.text_truncated, len(line.text)) == ("z", True, 4096)


class Transfers(Suite):
    """`upload`, `download`."""

    def test_a_file_goes_up_and_down(self, session: Session, tmp_path: Path) -> None:
        """With its mode, and progress told."""
        (tmp_path / "in").write_bytes(os.urandom(3 * MIB))
        (tmp_path / "in").chmod(0o750)
        told: list[FileProgress] = []
        path = fresh()
        assert session.files.upload(tmp_path / "in", path, progress=told.append).bytes == 3 * MIB
        assert told[-1].bytes_done == told[-1].bytes_total == 3 * MIB
        assert session.files.stat(path).mode == 0o750
        session.files.download(path, tmp_path / "out", progress=told.append)
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
        assert sorted(os.listdir(tmp_path)) == ["in", "out"]

    def test_a_folder_goes_up_and_down(self, session: Session, tmp_path: Path) -> None:
        """Names of any kind, links as links, excludes, empty folders."""
        source = tmp_path / "in"
        for name in ("a", "d/b", "d/caf\udce9\n", "d/e/-f", "x.pyc", "node_modules/big"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(os.urandom(1000))
        (source / "empty").mkdir()
        (source / "link").symlink_to("d/b")
        (source / "outside").symlink_to("/etc/passwd")
        os.mkfifo(source / "fifo")
        folder = fresh("up")
        up = session.files.upload(source, folder, exclude=["*.pyc", "node_modules"])
        assert (up.files, up.links, up.skipped) == (4, 2, (("fifo", "no file, folder or link"),))
        down = session.files.download(folder, tmp_path / "out")
        assert (down.files, down.links) == (4, 1)
        assert down.skipped == (("outside", "a link that leads outside"),)
        for name in ("a", "d/b", "d/caf\udce9\n", "d/e/-f"):
            assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
        assert (tmp_path / "out/empty").is_dir()
        assert os.readlink(tmp_path / "out/link") == "d/b"
        assert not (tmp_path / "out/x.pyc").exists()
        partly = session.files.download(folder, tmp_path / "part", exclude=["d/**", "link"])
        assert (partly.files, partly.directories) == (1, 2)

    def test_a_hostile_tree_writes_nothing_outside_the_target(self, session: Session, tmp_path: Path) -> None:
        """Absolute links, links up, links through links, FIFOs, setuid bits."""
        folder = fresh("evil")
        script = (
            'mkdir -p "$1/p/q/r" "$1/e"; cd "$1"; ln -s /tmp abs; ln -s ../.. up; ln -s ../../../e p/q/r/d; '
            "ln -s p/q/r/d/../../x chain; ln -s e/../e loop; mkfifo fifo; echo x >suid; chmod 6755 suid; "
            'chmod 1777 e; ln -s "" empty 2>/dev/null; :'
        )
        sh(session, script, folder).check()
        done = session.files.download(folder, tmp_path / "out")
        left_out = {path for path, _ in done.skipped}
        assert left_out == {"abs", "up", "chain", "loop", "fifo"}
        assert (tmp_path / "out/suid").stat().st_mode & 0o7777 == 0o755
        assert (tmp_path / "out/e").stat().st_mode & 0o7777 == 0o777
        assert os.listdir(tmp_path) == ["out"]

    def test_a_link_on_the_host_is_never_written_through(self, session: Session, tmp_path: Path) -> None:
        """A file replaces it; a folder is refused."""
        (tmp_path / "precious").write_bytes(b"precious")
        (tmp_path / "folder").mkdir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out/file").symlink_to(tmp_path / "precious")
        folder = fresh("links")
        session.files.write(f"{folder}/file", b"new")
        session.files.download(folder, tmp_path / "out")
        assert (tmp_path / "precious").read_bytes() == b"precious"
        assert (tmp_path / "out/file").read_bytes() == b"new"
        (tmp_path / "out/sub").symlink_to(tmp_path / "folder")
        session.files.write(f"{folder}/sub/file", b"new")
        with pytest.raises(FileError):
            session.files.download(folder, tmp_path / "out")
        assert os.listdir(tmp_path / "folder") == []

    def test_a_bomb_is_refused_before_it_moves(self, session: Session, tmp_path: Path) -> None:
        """Sparse files count in full; so do many, and many entries."""
        folder = fresh("bomb")
        sh(session, 'mkdir "$1"; cd "$1"; for n in 1 2 3 4; do truncate -s 9M $n; done', folder).check()
        bounds: list[dict[str, Any]] = [{"max_bytes": 30 * MIB}, {"max_entries": 3}]
        for options in bounds:
            with pytest.raises(FileTooLargeError):
                session.files.download(folder, tmp_path / "out", **options)
            assert list((tmp_path / "out").iterdir()) == []
        sh(session, 'truncate -s 1000G "$1/huge"', folder).check()
        with pytest.raises(FileTooLargeError):
            session.files.download(folder, tmp_path / "out")
        (tmp_path / "big").write_bytes(bytes(11 * MIB))
        with pytest.raises(FileTooLargeError):
            session.files.upload(tmp_path / "big", fresh())

    def test_a_callback_that_raises_ends_the_transfer(self, session: Session, tmp_path: Path) -> None:
        """It propagates; nothing half done is seen."""
        (tmp_path / "in").write_bytes(bytes(4 * MIB))
        folder = fresh("raises")

        def fail(_: FileProgress) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            session.files.upload(tmp_path / "in", f"{folder}/file", progress=fail)
        session.files.mkdir(folder)
        assert session.files.list(folder).paths == []


class Seeding(Suite):
    """`create_session(files=, directories=)`."""

    def test_a_session_begins_with_its_files(self, tmp_path: Path) -> None:
        """Bytes, text, files and folders of the host, empty folders; before the first command."""
        (tmp_path / "tree/sub").mkdir(parents=True)
        (tmp_path / "tree/sub/f").write_bytes(b"f")
        (tmp_path / "one").write_bytes(b"1")
        files: dict[str, bytes | str | Path] = {
            "a/b": b"bytes",
            "text": "é",
            "tree": tmp_path / "tree",
            "copy": tmp_path / "one",
        }
        session = self.sandbox().create_session(files=files, directories=["empty/folder"])
        with session:
            assert session.exec("cat", ["a/b", "text", "tree/sub/f", "copy"]).stdout == "bytesé" + "f1"
            assert session.files.stat("empty/folder").is_directory

    def test_bad_seeds_are_refused_and_nothing_is_left(self, tmp_path: Path) -> None:
        """Checked before anything is made, or rolled back."""
        sandbox = self.sandbox(labels={"seed": "bad"})
        refused: list[tuple[type[Exception], dict[str, Any]]] = [
            (ConfigError, {"files": {"a": 1}}),
            (ConfigError, {"files": ["a"]}),
            (ConfigError, {"directories": "a"}),
            (PathError, {"files": {"/etc/x": b""}}),
            (PathError, {"files": {"../x": b""}}),
            (FileError, {"files": {"a": tmp_path / "missing"}}),
            (FileTooLargeError, {"files": {"a": bytes(11 * MIB)}}),
            (PathError, {"files": {"a": b"", "a/b": b""}}),
        ]
        for error, options in refused:
            with pytest.raises(error):
                sandbox.create_session(**options)
        assert not list(self.backend.list({RUN_LABEL: RUN, "seed": "bad"}))
