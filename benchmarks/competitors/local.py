"""What this host does without any sandbox, and bubblewrap by hand."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from .base import Competitor, UnsupportedError


def run_timeout(argv: Sequence[str], seconds: float) -> None:
    """`subprocess.run(timeout=)` of something that does not end by itself."""
    try:
        subprocess.run(argv, capture_output=True, check=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError("the command ended before its timeout")


def run_abort(argv: Sequence[str], abort: threading.Event) -> None:
    """A child that is killed when the event is set."""
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        abort.wait()
        process.kill()


class LocalSubprocess(Competitor[Path]):
    """`subprocess.run`: the floor. Its session is a temporary folder."""

    modules = ("subprocess",)

    def open(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="bench-"))

    def close(self, session: Path) -> None:
        shutil.rmtree(session)

    def exec(self, session: Path, argv: Sequence[str]) -> bytes:
        return subprocess.run(argv, cwd=session, capture_output=True, check=True).stdout

    def exec_timeout(self, session: Path, argv: Sequence[str], seconds: float) -> None:
        run_timeout(argv, seconds)

    def exec_abort(self, session: Path, argv: Sequence[str], abort: threading.Event) -> None:
        run_abort(argv, abort)

    def write(self, session: Path, path: str, data: bytes) -> None:
        (session / path).write_bytes(data)

    def read(self, session: Path, path: str) -> bytes:
        return (session / path).read_bytes()


class BubblewrapByHand(Competitor[list[str]]):
    """A sandbox for each command: every namespace, /usr, /proc, /dev, /tmp."""

    def open(self) -> list[str]:
        path = shutil.which("bwrap")
        if path is None:
            raise UnsupportedError("no bwrap program on the PATH")
        namespaces = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
        links = ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"]
        files = ["--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        return [path, *namespaces, *files, "/usr/bin/env"]

    def close(self, session: list[str]) -> None:
        pass  # each command's sandbox has gone with it

    def exec(self, session: list[str], argv: Sequence[str]) -> bytes:
        return subprocess.run([*session, *argv], capture_output=True, check=True).stdout

    def exec_timeout(self, session: list[str], argv: Sequence[str], seconds: float) -> None:
        run_timeout([*session, *argv], seconds)

    def exec_abort(self, session: list[str], argv: Sequence[str], abort: threading.Event) -> None:
        run_abort([*session, *argv], abort)
