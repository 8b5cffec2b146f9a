"""The file trees that the images are made of, each as a tar whose bytes depend on its content alone."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

from _system import BUILD, ROOT, ToolError, find, install, replace_file, run

FOLDER = BUILD / "images"

#: The Debian release of the Python image: a fixed one, so that each host tests the same Python.
SUITE = "bookworm"

#: Written into every file time, so that the same recipe gives the same bytes.
EPOCH = 1_700_000_000

USER_ID = 1000

#: The type of the program header that names the dynamic loader.
PT_INTERP = 3


class Tree:
    """A tar in the making."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        self._add(path, tarfile.DIRTYPE, mode, owner)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add(path, tarfile.REGTYPE, mode, content=content)

    def link(self, path: str, target: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, target=target)

    def _add(
        self, path: str, kind: bytes, mode: int, owner: int = 0, *, content: bytes = b"", target: str = ""
    ) -> None:
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.mtime = kind, mode, EPOCH
        entry.uid = entry.gid = owner
        entry.size, entry.linkname = len(content), target
        self._tar.addfile(entry, io.BytesIO(content))

    def save(self, name: str) -> Path:
        self._tar.close()
        path = FOLDER / name
        replace_file(path, self._bytes.getvalue())
        return path


def busybox() -> Path:
    """A shell and its tools in 2 MiB: one static program under 270 names, and a user `app` beside root."""
    program = _static_busybox()
    applets = run([str(program), "--list"], timeout=30).split()
    tree = Tree()
    for path in ("bin", "etc", "home", "usr"):
        tree.folder(path)
    tree.folder("root", 0o700)
    tree.folder("home/app", owner=USER_ID)
    tree.folder("tmp", 0o1777)
    tree.file("etc/passwd", f"root:x:0:0::/root:/bin/sh\napp:x:{USER_ID}:{USER_ID}::/home/app:/bin/sh\n".encode())
    tree.file("etc/group", f"root:x:0:\napp:x:{USER_ID}:\n".encode())
    tree.file("bin/busybox", program.read_bytes(), 0o755)
    for applet in sorted({Path(applet).name for applet in applets} - {"busybox"}):
        tree.link(f"bin/{applet}", "busybox")
    # For scripts that begin with `#!/usr/bin/env`.
    tree.link("usr/bin", "../bin")
    return tree.save("busybox.tar")


def empty() -> Path:
    """Nothing: an import needs one entry, so there is one empty folder."""
    tree = Tree()
    tree.folder("empty")
    return tree.save("empty.tar")


def static() -> Path:
    """One static program, and not even a folder beside it."""
    install({"cc": "gcc", "/usr/include/stdio.h": "libc6-dev"})
    source, program, stamp = ROOT / "tools/hello.c", FOLDER / "hello", FOLDER / "hello.recipe"
    command = ["cc", "-static", "-Os", "-s", "-o", str(program), str(source)]
    recipe = hashlib.sha256(repr(command).encode() + source.read_bytes()).hexdigest()
    if not (program.exists() and stamp.exists() and stamp.read_text() == recipe):
        FOLDER.mkdir(parents=True, exist_ok=True)
        run(command, timeout=120)
        replace_file(stamp, recipe.encode())
    tree = Tree()
    tree.file("hello", program.read_bytes(), 0o755)
    return tree.save("static.tar")


def python() -> Path:
    """A minimal Debian with Python. Made once and kept: a tar that is there is used, wherever it came from.

    One that this function made says by which recipe, and is made again when the recipe is another by now.
    """
    path, stamp = FOLDER / "python.tar", FOLDER / "python.tar.recipe"
    options = [
        "--variant=minbase",
        # Debian merges /usr by a package written in Perl, 50 MB of it; merged from the start it needs neither.
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        "--include=usr-is-merged,python3,python-is-python3",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
        f'--customize-hook=chroot "$1" useradd --create-home --uid {USER_ID} app',
        '--customize-hook=rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt/lists/* "$1"/etc/machine-id',
        # No engine needs the device nodes, and a rootless one can't make them.
        "--skip=output/dev",
        SUITE,
    ]
    recipe = hashlib.sha256(repr(options).encode()).hexdigest()
    if path.exists() and (not stamp.exists() or stamp.read_text() == recipe):
        return path
    install({"mmdebstrap": "mmdebstrap", "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring"})
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / f"python.{os.getpid()}.tar"
    print(f"making {path} with mmdebstrap, once: this takes a minute", flush=True)
    environment = {"SOURCE_DATE_EPOCH": str(EPOCH)}
    try:
        run(["mmdebstrap", "--mode=auto", *options, str(part)], timeout=1200, environment=environment)
        # The tar last: one without its stamp counts as somebody's own and would never be made again.
        replace_file(stamp, recipe.encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _static_busybox() -> Path:
    """The host's busybox, if it needs no other file; else the one from Debian's package."""
    if (found := _find_static_busybox()) is None:
        # A dynamic busybox has the same name, so it is dpkg's note of the package that is looked for.
        install({"/var/lib/dpkg/info/busybox-static.list": "busybox-static"})
        found = _find_static_busybox()
    if found is None:
        raise ToolError(f"{find('busybox')} is not a static program: install busybox-static, then try again")
    return found


def _find_static_busybox() -> Path | None:
    found = find("busybox")
    return Path(found) if found and _is_static(Path(found)) else None


def _is_static(program: Path) -> bool:
    """Whether an ELF file asks for no dynamic loader: it has no program header of that type."""
    data = program.read_bytes()
    is_64_bit, order = data[4] == 2, "<" if data[5] == 1 else ">"
    (offset,) = struct.unpack_from(order + ("Q" if is_64_bit else "I"), data, 32 if is_64_bit else 28)
    size, count = struct.unpack_from(order + "HH", data, 54 if is_64_bit else 42)
    kinds = {struct.unpack_from(order + "I", data, offset + index * size)[0] for index in range(count)}
    return PT_INTERP not in kinds
