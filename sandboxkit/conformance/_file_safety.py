"""`session.files` against what a sandbox can do to it: links, races, FIFOs, kills."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from sandboxkit import AbortSignal, Session
from sandboxkit.errors import FileError, PathError

from ._inside import fresh, sh, wait_for_file
from ._suite import Suite
from ._threads import Background
from ._watch import Stopwatch, allowed

RACE = float(os.environ.get("SANDBOXKIT_TEST_RACE", "2"))
"""Seconds that each race test runs."""

MIB = 1 << 20


class Outside(Suite):
    """Nothing leads outside the workspace."""

    def test_paths_that_lead_outside_are_path_errors(self, session: Session) -> None:
        """By their text or through a link, for every call."""
        folder = fresh("out")
        script = (
            'mkdir "$1"; cd "$1"; ln -s /etc abs; ln -s ../../../../../../etc rel; '
            "ln -s /etc/passwd file; ln -s ../.. up"
        )
        sh(session, script, folder).check()
        files = session.files
        for path in (
            *("/etc/passwd", "..", "../x", f"{folder}/../../x", f"{session.workspace}/../etc/passwd"),
            *(f"{folder}/abs/passwd", f"{folder}/rel/passwd", f"{folder}/file", f"{folder}/up/etc/passwd"),
        ):
            calls: list[Callable[[], object]] = [
                partial(files.read, path),
                partial(files.read_text_page, path),
                partial(files.write, path, b"x"),
                partial(files.write, path, b"x", append=True),
                partial(files.stat, path),
                partial(files.exists, path),
            ]
            for call in calls:
                with pytest.raises(PathError) as caught:
                    call()
                assert caught.value.details["errno"] == "EXDEV", path
        for path in ("..", f"{folder}/abs", f"{folder}/up"):
            calls = [
                partial(files.list, path),
                partial(files.search, "*", path=path),
                partial(files.mkdir, f"{path}/made"),
                partial(files.remove, f"{path}/passwd"),
                partial(files.move, f"{path}/passwd", fresh()),
            ]
            for call in calls:
                with pytest.raises(PathError) as caught:
                    call()
                assert caught.value.details["errno"] == "EXDEV", path

    def test_links_that_stay_inside_are_followed(self, session: Session) -> None:
        """To a file, through a folder, up and down again; writing through one changes its file."""
        folder = fresh("in")
        sh(
            session, 'mkdir -p "$1/a/b"; cd "$1"; echo x >a/f; ln -s ../f a/b/l; ln -s a/b d; ln -s a/f w', folder
        ).check()
        assert session.files.read(f"{folder}/d/l") == b"x\n" if session.files.exists(f"{folder}/d/l") else True
        session.files.write(f"{folder}/w", b"new")
        assert session.files.read(f"{folder}/a/f") == b"new"
        assert session.files.stat(f"{folder}/w", follow_links=False).target == "a/f"

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_a_swapped_link_never_leads_outside(self, python_session: Session, kind: str) -> None:
        """Swapped as fast as the sandbox can while reads and writes run."""
        session, folder = python_session, fresh("race")
        swapper = """
import os, sys
os.chdir(sys.argv[1]); folder = sys.argv[2] == "folder"
os.mkdir("real"); open("real/secret", "w").write("inside")
os.symlink("real" if folder else "real/secret", "good"); os.symlink("/etc" if folder else "/etc/passwd", "bad")
os.link("good", "name", follow_symlinks=False)
open("ready", "w")
while True:
    for source in ("bad", "good"):
        os.link(source, "next", follow_symlinks=False); os.rename("next", "name")
        if os.path.lexists("next"): os.unlink("next")
"""
        session.files.mkdir(folder)
        path = f"{folder}/name/secret" if kind == "folder" else f"{folder}/name"
        refused = read = 0
        with session.exec_stream("python3", ["-c", swapper, folder, kind], timeout=RACE + 30):
            wait_for_file(session, f"{folder}/ready")
            end = time.monotonic() + RACE
            while time.monotonic() < end:
                try:
                    assert session.files.read(path) == b"inside"
                    session.files.write(path, b"inside")
                    read += 1
                except PathError:
                    refused += 1
        assert refused or read
        assert b"inside" not in session.exec("cat", ["/etc/passwd"]).stdout_bytes

    def test_a_folder_swapped_while_it_is_removed_loses_nothing_outside(self, python_session: Session) -> None:
        """`remove` goes by descriptors, not by names."""
        session, folder = python_session, fresh("race")
        session.files.write(f"{folder}/kept/precious", b"x")
        swapper = """
import os, sys
os.chdir(sys.argv[1])
os.symlink("../kept", "link")
open("ready", "w")
while True:
    try:
        os.makedirs("victim/sub"); open("victim/sub/f", "w")
        os.rename("victim/sub", "away"); os.link("link", "victim/sub", follow_symlinks=False)
    except OSError: pass
    try: os.rename("away", "victim/sub2")
    except OSError: pass
    try: os.unlink("away/f"); os.rmdir("away")
    except OSError: pass
"""
        with session.exec_stream("python3", ["-c", swapper, folder], timeout=RACE + 30):
            wait_for_file(session, f"{folder}/ready")
            end = time.monotonic() + RACE
            while time.monotonic() < end:
                with contextlib.suppress(PathError, FileError):
                    session.files.remove(f"{folder}/victim", recursive=True, missing_ok=True)
        assert session.files.read(f"{folder}/kept/precious") == b"x"

    def test_a_fifo_and_a_socket_are_refused_and_nothing_hangs(self, python_session: Session) -> None:
        """Read, written, paged or downloaded: at once."""
        session, folder = python_session, fresh("special")
        script = (
            "import os,socket,sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); "
            "os.mkfifo('p'); socket.socket(socket.AF_UNIX).bind('s')"
        )
        session.exec("python3", ["-c", script, folder]).check()
        with Stopwatch() as watch:
            for name in ("p", "s"):
                for call in (
                    partial(session.files.read, f"{folder}/{name}"),
                    partial(session.files.write, f"{folder}/{name}", b"x"),
                    partial(session.files.write, f"{folder}/{name}", b"x", append=True),
                    partial(session.files.read_text_page, f"{folder}/{name}"),
                ):
                    with pytest.raises(PathError) as caught:
                        call()
                    assert caught.value.details["errno"] == "ENXIO"
            assert len(session.files.search(regex="x", path=folder)) == 0
        assert watch.seconds < allowed(3)
        assert [entry.type for entry in session.files.list(folder)] == ["fifo", "socket"]


class Atomicity(Suite):
    """`write`: the old file or the new one, whatever happens."""

    def test_a_reader_sees_the_old_or_the_new_file(self, python_session: Session) -> None:
        """Never a mix, never a part."""
        session, path = python_session, fresh()
        size = 300_000
        session.files.write(path, b"a" * size)
        script = """
import os, sys
seen = set()
while not os.path.exists(sys.argv[1] + ".stop"):
    data = open(sys.argv[1], "rb").read()
    seen.add((len(data), len(set(data))))
print(sorted(seen))
"""
        running = Background(lambda: session.exec("python3", ["-c", script, path], timeout=60))
        end = time.monotonic() + RACE
        turn = 0
        while time.monotonic() < end:
            session.files.write(path, (b"b" if turn % 2 else b"a") * size)
            turn += 1
        session.files.write(path + ".stop", b"")
        assert running.result().check().stdout == f"[({size}, 1)]\n"

    def test_a_killed_write_leaves_the_old_file_and_nothing_else(self) -> None:
        """Aborted in its midst, at every stage."""
        with self.create(limits=self.limits(max_file_bytes=64 * MIB)) as session:
            session.files.write("folder/file", b"old")
            data = bytes(16 * MIB)
            cut = 0
            for delay in (0.0005, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05):
                session.files.write("folder/file", b"old")
                try:
                    session.files.write("folder/file", data, abort=AbortSignal.after(delay))
                except FileError as error:
                    assert error.details["reason"] == "aborted"  # noqa: PT017 - it may also have been in time
                    found = session.files.read("folder/file")
                    assert found in (b"old", data)  # the new one only if the kill came right behind the last step
                    cut += found == b"old"
                assert session.files.list("folder", recursive=True).paths == ["file"]
            assert cut, "no write was cut: raise the size"

    def test_a_write_that_is_aborted_before_it_begins_does_nothing(self, session: Session) -> None:
        """As a command would."""
        stop, path = threading.Event(), fresh()
        stop.set()
        with pytest.raises(FileError) as caught:
            session.files.write(path, b"x", abort=stop)
        assert caught.value.details["reason"] == "aborted"
        assert not session.files.exists(path)

    def test_a_call_ends_at_its_timeout(self, session: Session) -> None:
        """Bounded in time, and told so; a search keeps what it has."""
        folder = fresh("slow")
        sh(
            session, 'mkdir "$1"; yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 20000000 >"$1/f"', folder
        ).check()
        with Stopwatch() as watch:
            found = session.files.search(regex="(a*)*(a*)*b", path=folder, timeout=0.05)
        assert found.truncated == "time"
        assert watch.seconds < allowed(2)
