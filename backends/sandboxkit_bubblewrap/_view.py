"""What a sandbox sees: the mounts and files that bubblewrap makes it from, as its arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from sandboxkit.backend import AGENT_FOLDER, WORKSPACE_FOLDER

from ._paths import is_below, program_folders

__all__ = ["Sizes", "User", "View", "default_path", "host_path", "user_named"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Folders that a merged host has as links into /usr, and others as folders.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs need of /etc and what says nothing of this host's users. Files are copied, folders mounted.
_ETC_FILES = (
    *("ld.so.cache", "localtime", "timezone", "locale.alias", "os-release", "debian_version", "magic", "mime.types"),
    *("protocols", "services", "host.conf", "gai.conf", "ssl/openssl.cnf", "ssl/cert.pem", "inputrc"),
)
_ETC_FOLDERS = (
    *("alternatives", "ssl/certs", "pki/ca-trust", "pki/tls/certs", "crypto-policies", "fonts"),
    "java-*",
)
_ETC_MADE = {
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "hostname": "sandbox\n",
}
# Of a root filesystem: these are made anew.
_NOT_OF_ROOT = frozenset({"dev", "proc", "sys", "tmp", "run", WORKSPACE_FOLDER[1:], AGENT_FOLDER[1:]})
# Readable by everybody, and of the host: the keys that this process was started with.
_COVERED = ("/proc/keys",)


@attrs.frozen
class User:
    """Who commands run as, inside."""

    uid: int = 1000
    gid: int = 1000


@attrs.frozen(kw_only=True)
class Sizes:
    """Bytes, of what can be written: all of it is memory."""

    workspace: int
    tmp: int
    shared_memory: int


def default_path() -> str:
    """Of a root filesystem, as an engine has it for an image that says nothing."""
    return _PATH


def host_path(extra: Sequence[str]) -> str:
    """The host's PATH, as far as its folders are there inside, with the virtual environments' programs at the front."""
    there = ("/usr", *(f"/{name}" for name in _MERGED), *extra)
    own = [
        folder for folder in os.environ.get("PATH", "").split(":") if folder.startswith("/") and is_below(folder, there)
    ]
    return ":".join(dict.fromkeys([*program_folders(extra), *own, *_PATH.split(":")]))


def user_named(name: str, root: Path | None) -> User | None:
    """From the /etc/passwd that the sandbox sees: that of `root`, or the one made for the host's programs."""
    lines = _passwd(User())
    if root is not None:
        path = root / "etc/passwd"
        lines = path.read_text("utf-8", "replace") if path.is_file() and not path.is_symlink() else ""
    for line in lines.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == name and fields[2].isdigit() and fields[3].isdigit():
            return User(int(fields[2]), int(fields[3]))
    return None


def _passwd(user: User) -> str:
    lines = ["root:x:0:0:root:/:/bin/sh", "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"]
    if user.uid not in (0, 65534):
        lines.insert(1, f"sandbox:x:{user.uid}:{user.gid}:sandbox:{WORKSPACE_FOLDER}:/bin/sh")
    return "".join(f"{line}\n" for line in lines)


def _group(user: User) -> str:
    lines = ["root:x:0:", "nogroup:x:65534:"]
    if user.gid not in (0, 65534):
        lines.insert(1, f"sandbox:x:{user.gid}:")
    return "".join(f"{line}\n" for line in lines)


@functools.lru_cache(maxsize=1)
def _of_host() -> tuple[str, ...]:
    # Looked up once: a host's folders do not move while a process lives.
    found = ["--ro-bind", "/usr", "/usr"]
    for path in (f"/{name}" for name in _MERGED):
        if os.path.islink(path):
            found += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            found += ["--ro-bind", path, path]
    for pattern in _ETC_FOLDERS:
        for folder in sorted(Path("/etc").glob(pattern)):
            if folder.is_dir():
                found += _mount(folder.resolve(), str(folder))
    return tuple(found)


def _mount(source: str | Path, place: str) -> Iterator[str]:
    # Read-only, in folders that everybody may pass: those that bubblewrap makes on its own are root's alone.
    for parent in list(Path(place).parents)[-2::-1]:
        yield from ("--perms", "0755", "--dir", str(parent))
    yield from ("--ro-bind", str(source), place)


class View:
    """Arguments for bwrap, and the descriptors they name, which are closed with it."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.descriptors: list[int] = []

    def add(self, *arguments: str | Path) -> None:
        """As they are."""
        self.arguments += map(str, arguments)

    def close(self) -> None:
        """Idempotent."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def of_host(self, user: User) -> None:
        """The host's own programs, and the few files of /etc that they need."""
        self.add(*_of_host())
        for file in _ETC_FILES:
            self._copy(f"/etc/{file}")
        for name, text in {**_ETC_MADE, "passwd": _passwd(user), "group": _group(user)}.items():
            self.make_file(f"/etc/{name}", text.encode())

    def of_root(self, root: Path) -> None:
        """A root filesystem, entry by entry: so that nothing has to be made in it, not even a folder to mount on."""
        for entry in sorted(root.iterdir()):
            if entry.name in _NOT_OF_ROOT:
                continue
            if entry.is_symlink():
                self.add("--symlink", os.readlink(entry), f"/{entry.name}")
            elif entry.is_dir() or entry.is_file():
                self.add("--ro-bind", entry, f"/{entry.name}")

    def of_kernel(self, sizes: Sizes) -> None:
        """/proc, /dev, and what can be written."""
        self.add("--proc", "/proc")
        for path in _COVERED:
            if os.path.exists(path):
                self.add("--ro-bind", "/dev/null", path)
        self.add("--dev", "/dev", "--perms", "1777", "--size", str(sizes.shared_memory), "--tmpfs", "/dev/shm")  # noqa: S108
        self.add("--remount-ro", "/dev")
        self.add("--perms", "1777", "--size", str(sizes.tmp), "--tmpfs", "/tmp")  # noqa: S108
        self.add("--perms", "0755", "--size", str(sizes.workspace), "--tmpfs", WORKSPACE_FOLDER)

    def of_agent(self, binary: Path) -> None:
        """The agent where every backend has it."""
        self.add("--perms", "0755", "--tmpfs", AGENT_FOLDER)
        self.add("--ro-bind", binary, f"{AGENT_FOLDER}/agent")
        self.add("--remount-ro", AGENT_FOLDER)

    def mount(self, source: str | Path, place: str) -> None:
        """A file or folder of the host, read-only."""
        self.add(*_mount(source, place))

    def make_file(self, path: str, content: bytes) -> None:
        """A file of the sandbox's own, read-only as everything around it."""
        self._file(path, self._memory_file(content))

    def _copy(self, path: str) -> None:
        try:
            # `map` calls and `extend` keeps with no bytecode between, where Ctrl-C could lose the descriptor.
            self.descriptors.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC,)))
        except OSError:  # not there, or not for this user to read
            return
        self._file(path, self.descriptors[-1])

    def _memory_file(self, content: bytes) -> int:
        # A descriptor to read `content` from.
        self.descriptors.extend(map(os.memfd_create, ("sandboxkit",), (os.MFD_CLOEXEC,)))
        view, descriptor = memoryview(content), self.descriptors[-1]
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _file(self, path: str, descriptor: int) -> None:
        self.add("--perms", "0644", "--file", str(descriptor), path)

    def sealed(self) -> Iterator[str]:
        """The arguments for bwrap's command line: all the others in a file, so that no list of processes shows them."""
        self.add("--remount-ro", "/")
        descriptor = self._memory_file(b"".join(os.fsencode(argument) + b"\0" for argument in self.arguments))
        yield from ("--args", str(descriptor))
