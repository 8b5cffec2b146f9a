"""`Sandbox("rootfs:PATH")`: folders and tars of root filesystems, good ones and bad ones."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxkit_bubblewrap._elf import missing_loader, resolve_inside
from sandboxkit_bubblewrap._rootfs import cache_folder, open_root
from sandboxkit_bubblewrap._unpack import unpack

from sandboxkit import ConfigError, EngineError, Limits, Sandbox, Security, UnsupportedError
from tests.support.local import LocalBackend

PROGRAMS = ("sh", "cat", "ls", "id")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """Four programs of this host, with their libraries and loader."""
    root = tmp_path / "rootfs"
    for folder in ("bin", "etc", "root", "tmp", "var/cache"):
        (root / folder).mkdir(parents=True)
    root.joinpath("etc/passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:1234:1234::/:/bin/sh\n")
    root.joinpath("etc/marker").write_text("of the root filesystem\n")
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        shutil.copy(program, root / "bin" / name)
        for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split():
            if word.startswith("/") and not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    root.joinpath("link").symlink_to("/etc/marker")
    return root


@pytest.fixture
def archive(rootfs: Path, tmp_path: Path) -> Path:
    path = tmp_path / "rootfs.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(rootfs, ".")
    return path


def pack(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info, b"content" if kind == tarfile.REGTYPE else b""


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "tar"])
def test_its_programs_run_on_its_files(rootfs: Path, archive: Path, limits: Limits, packed: bool) -> None:
    with Sandbox(f"rootfs:{archive if packed else rootfs}", limits=limits).create_session() as session:
        assert session.engine.backend == "bubblewrap"
        assert session.exec("cat", ["/etc/marker"]).stdout == "of the root filesystem\n"
        assert session.exec("cat", ["/link"]).stdout == "of the root filesystem\n"
        assert session.exec("id", ["-u"]).stdout == "1000\n"
        assert session.shell("echo x >new; cat new; echo $PATH $HOME").stdout.splitlines()[0] == "x"
        assert set(session.exec("ls", ["/"]).stdout.split()) >= {"bin", "etc", "proc", "dev", "tmp", "workspace", "var"}
        for folder in ("/", "/etc", "/var/cache", "/bin"):
            assert not session.shell(f"echo x >{folder}/new").ok, folder
        assert session.exec("python3").exit_code == 127
    assert not (rootfs / "workspace").exists()


def test_a_user_is_looked_up_in_it(rootfs: Path, limits: Limits) -> None:
    with Sandbox(f"rootfs:{rootfs}", limits=limits, security=Security(user="app")).create_session() as session:
        assert session.exec("id", ["-u"]).stdout == "1234\n"
        assert session.shell("echo x >new").ok
    with pytest.raises(ConfigError, match=r"security\.user is 'nobody-here'"):
        Sandbox(f"rootfs:{rootfs}", limits=limits, security=Security(user="nobody-here")).create_session()


def test_an_empty_one_answers_127(tmp_path: Path, limits: Limits) -> None:
    tmp_path.joinpath("empty").mkdir()
    with Sandbox(f"rootfs:{tmp_path / 'empty'}", limits=limits).create_session() as session:
        assert session.exec("sh").exit_code == 127


def test_one_without_a_loader_is_refused(rootfs: Path, limits: Limits) -> None:
    (loader,) = (path for path in rootfs.rglob("ld-*") if path.is_file())
    loader.unlink()
    with pytest.raises(ConfigError, match=r"needs the loader /lib.*, which it lacks") as caught:
        Sandbox(f"rootfs:{rootfs}", limits=limits).create_session()
    assert caught.value.details["field"] == "image"
    assert missing_loader(rootfs) == ("/bin/sh", f"/{loader.relative_to(rootfs)}")


def test_a_loader_behind_links_is_found_without_leaving(rootfs: Path, tmp_path: Path) -> None:
    (loader,) = (path for path in rootfs.rglob("ld-*") if path.is_file())
    loader.rename(rootfs / "etc/loader")
    loader.symlink_to("/etc/../../../etc/loader")
    assert missing_loader(rootfs) is None
    assert resolve_inside(rootfs, "/link") == rootfs / "etc/marker"
    rootfs.joinpath("loop").symlink_to("loop")
    rootfs.joinpath("out").symlink_to("../../../../../../etc/hostname")
    assert resolve_inside(rootfs, "/loop") is None
    assert resolve_inside(rootfs, "/out") is None


@pytest.mark.parametrize("image", ["rootfs:", "rootfs:relative/path", "rootfs:./x", "rootfs:~/x"])
def test_a_relative_path_is_refused_at_once(image: str) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        Sandbox(image)


@pytest.mark.parametrize("what", ["missing", "device", "/", "no tar", "image archive"])
def test_what_is_no_root_filesystem_is_refused(tmp_path: Path, limits: Limits, what: str) -> None:
    path = tmp_path / "file"
    if what == "no tar":
        path.write_bytes(b"x" * 2000)
    elif what == "image archive":
        with tarfile.open(path, "w") as tar:
            for name in ("manifest.json", "repositories"):
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    named = {"missing": "/no/such/path", "device": "/dev/null", "/": "/"}.get(what, str(path))
    with pytest.raises(ConfigError, match="image is") as caught:
        Sandbox(f"rootfs:{named}", limits=limits).create_session()
    assert caught.value.details["field"] == "image"


def test_other_backends_refuse_it_and_extra_paths(tmp_path: Path) -> None:
    other = LocalBackend(tmp_path)
    with pytest.raises(ConfigError, match="accepted by the backend local: the name of an image"):
        Sandbox(f"rootfs:{tmp_path}", other, limits=Limits(allow_unenforced=True)).create_session()
    with pytest.raises(UnsupportedError, match="The backend local has no extra_paths"):
        Sandbox("image", other, limits=Limits(allow_unenforced=True), extra_paths=["/usr"]).create_session()


class TestUnpacking:
    """Whatever a tar says, nothing outside of the folder is touched."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        target = tmp_path / "inside" / "target"
        target.mkdir(parents=True)
        return target

    @pytest.mark.parametrize(
        ("members", "why"),
        [
            ([member("../escaped")], r"has the name '\.\./escaped'"),
            ([member("a/../../escaped")], "has the name"),
            ([member("up", tarfile.SYMTYPE, ".."), member("up/escaped")], "is a folder in it and something else too"),
            ([member("out", tarfile.SYMTYPE, "/"), member("out/escaped")], "is a folder in it and something else too"),
            (
                [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
                "is a hard link to '/etc/passwd', which is no file before it",
            ),
            ([member("hard", tarfile.LNKTYPE, "../escaped")], "has the name"),
            (
                [member("s", tarfile.SYMTYPE, "/etc/passwd"), member("h", tarfile.LNKTYPE, "s")],
                "which is no file before it",
            ),
        ],
        ids=[
            "parent",
            "hidden parent",
            "through a link",
            "through an absolute link",
            "hard",
            "hard parent",
            "hard to link",
        ],
    )
    def test_what_leads_outside_is_refused(
        self, tmp_path: Path, target: Path, members: list[tuple[tarfile.TarInfo, bytes]], why: str
    ) -> None:
        with pytest.raises(ConfigError, match=why):
            unpack(pack(tmp_path / "a.tar", *members), target)
        assert list(target.parent.iterdir()) == [target]
        assert not list(tmp_path.rglob("escaped"))

    def test_absolute_names_are_taken_as_relative(self, tmp_path: Path, target: Path) -> None:
        unpack(pack(tmp_path / "a.tar", member("/etc/x"), member("./usr//y"), member("z/./w")), target)
        assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} == {"etc/x", "usr/y", "z/w"}

    def test_devices_set_user_id_and_owners_are_not_taken_over(self, tmp_path: Path, target: Path) -> None:
        kinds = {"null": tarfile.CHRTYPE, "disk": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE}
        owned = member("owned", mode=0o6755)
        owned[0].uid = owned[0].gid = 12345
        unpack(pack(tmp_path / "a.tar", owned, *(member(f"dev/{name}", kind) for name, kind in kinds.items())), target)
        found = os.lstat(target / "owned")
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o755, os.geteuid())
        assert list(target.joinpath("dev").iterdir()) == []

    def test_folders_without_write_permission_and_hard_links_come_out(self, tmp_path: Path, target: Path) -> None:
        folder = member("locked", tarfile.DIRTYPE, mode=0o555)
        unpack(
            pack(tmp_path / "a.tar", folder, member("locked/a"), member("locked/b", tarfile.LNKTYPE, "locked/a")),
            target,
        )
        assert target.joinpath("locked/b").read_text() == "content"
        assert os.stat(target / "locked/a").st_ino == os.stat(target / "locked/b").st_ino
        assert stat.S_IMODE(os.stat(target / "locked").st_mode) == 0o555

    def test_the_later_entry_of_a_name_wins(self, tmp_path: Path, target: Path) -> None:
        unpack(pack(tmp_path / "a.tar", member("a", tarfile.SYMTYPE, "/etc/passwd"), member("a")), target)
        assert target.joinpath("a").read_text() == "content"
        assert not target.joinpath("a").is_symlink()


class TestCache:
    """Unpacked once, dropped when it is of no use."""

    def test_a_tar_is_unpacked_once(self, archive: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[Path] = []

        def count(source: Path, target: Path) -> None:
            calls.append(source)
            unpack(source, target)

        monkeypatch.setattr("sandboxkit_bubblewrap._rootfs.unpack", count)
        for _ in range(3):
            open_root(f"rootfs:{archive}").close()
        assert calls == [archive]
        assert stat.S_IMODE(os.stat(cache).st_mode) == 0o700

    def test_compressed_ones_too(self, archive: Path) -> None:
        for kind in ("gz", "xz", "bz2"):
            packed = archive.with_suffix(f".tar.{kind}")
            with tarfile.open(packed, f"w:{kind}") as tar, tarfile.open(archive) as plain:  # type: ignore[call-overload]
                for found in plain:
                    tar.addfile(found, plain.extractfile(found) if found.isreg() else None)
            root = open_root(f"rootfs:{packed}")
            assert root.folder.joinpath("etc/marker").is_file()
            root.close()

    def test_a_changed_tar_is_unpacked_anew_and_the_old_one_goes(self, archive: Path, cache: Path) -> None:
        open_root(f"rootfs:{archive}").close()
        (old,) = (path for path in cache.iterdir() if path.is_dir())
        os.utime(archive, ns=(0, 12345))
        open_root(f"rootfs:{archive}").close()
        (new,) = (path for path in cache.iterdir() if path.is_dir())
        assert new != old

    def test_one_in_use_stays(self, archive: Path, cache: Path) -> None:
        root = open_root(f"rootfs:{archive}")
        os.utime(archive, ns=(0, 12345))
        open_root(f"rootfs:{archive}").close()
        assert root.folder.joinpath("etc/marker").is_file()
        root.close()

    def test_what_was_left_half_done_goes(self, archive: Path, cache: Path) -> None:
        locked = cache / "unfinished-x" / "root" / "locked"
        locked.mkdir(parents=True)
        locked.chmod(0o500)
        open_root(f"rootfs:{archive}").close()
        assert not cache.joinpath("unfinished-x").exists()

    def test_a_refused_one_leaves_nothing(self, tmp_path: Path, cache: Path) -> None:
        with pytest.raises(ConfigError):
            open_root(f"rootfs:{pack(tmp_path / 'bad.tar', member('x'), member('../y'))}")
        assert [path.name for path in cache.iterdir()] == ["lock"]

    def test_a_cache_that_cannot_be_made_is_told(
        self, archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        tmp_path.joinpath("file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(EngineError, match="XDG_CACHE_HOME"):
            open_root(f"rootfs:{archive}")


def test_many_at_once_unpack_it_once(
    archive: Path, limits: Limits, in_threads: Callable[[Callable[[], str], int], list[str]]
) -> None:
    def run() -> str:
        with Sandbox(f"rootfs:{archive}", limits=limits).create_session() as session:
            return session.exec("cat", ["/etc/marker"]).stdout

    assert set(in_threads(run, 4)) == {"of the root filesystem\n"}
