"""The command line, as a process: what it prints, where, and its exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typing_extensions import Self

from sandboxkit import Limits, Sandbox, __version__
from tests.support.local import LocalBackend

ROOT = Path(__file__).parents[2]
UNENFORCED = "--allow-unenforced"


def command(folder: Path | None, *args: str) -> list[str]:
    where = "" if folder is None else folder.as_uri()
    return [sys.executable, "-m", "tests.tools.local_cli", where, *args]


def cli(folder: Path | None, *args: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(folder, *args), cwd=ROOT, capture_output=True, timeout=60, input=input)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The engine; what is in it is a session."""
    made = tmp_path / "engine"
    made.mkdir()
    return made


def test_run_is_the_command(folder: Path) -> None:
    """Its streams, byte for byte, and its exit code."""
    script = r"printf 'out\377'; echo err >&2; exit 3"
    done = cli(folder, "run", UNENFORCED, "image", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\xff", b"err\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "code", "stdout"),
    [
        (["image", "echo", "--help", "-i"], 0, b"--help -i\n"),
        (["image", "no-such-program"], 127, b""),
        (["--timeout", "0.1", "image", "sleep", "9"], 124, b""),
        (["image", "sh", "-c", "kill -9 $$"], 137, b""),
        (["--env", "A=b", "image", "sh", "-c", "echo $A"], 0, b"b\n"),
        (["image", "cat"], 0, b""),
        (["--allow-host", "a.example", "image", "sh", "-c", "echo ${https_proxy:+proxied}"], 0, b"proxied\n"),
        (["-i", "image", "cat"], 0, b"given"),
    ],
    ids=["options behind", "missing", "timeout", "signal", "environment", "no input", "a way out", "input"],
)
def test_run_with(folder: Path, args: list[str], code: int, stdout: bytes) -> None:
    done = cli(folder, "run", UNENFORCED, *args, input=b"given")
    assert (done.returncode, done.stdout) == (code, stdout), done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["run", "image", "true"],  # its limits can't be enforced
        ["run", UNENFORCED, "--env", "A", "image", "true"],
        ["run", UNENFORCED, "--read-only", "image", "true"],
        ["run", UNENFORCED, "UPPER CASE", "true"],
        ["run", UNENFORCED, "--allow-host", "a.example", "--network", "bridge", "image", "true"],
        ["run", UNENFORCED, "--allow-host", "no host", "image", "true"],
        ["mcp", UNENFORCED, "--image", "image", "--include", "read_files"],
        ["mcp", UNENFORCED, "--image", "image", "--max-timeout", "0"],
        ["rm", "missing"],
    ],
    ids=" ".join,
)
def test_an_error_is_a_line_on_standard_error(folder: Path, args: list[str]) -> None:
    done = cli(folder, *args)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"sandboxkit: ")
    assert b"Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


class Running:
    """One that goes on until it is told."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            command(folder, *args),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()


def test_ctrl_c_ends_a_run_and_leaves_nothing(folder: Path) -> None:
    with Running(folder, "run", UNENFORCED, "image", "sh", "-c", "echo ready; sleep 1000") as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == b"ready\n"
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 130
        assert running.process.communicate()[1] == b""
    assert list(folder.iterdir()) == []


def test_ls_and_rm(folder: Path) -> None:
    backend = LocalBackend(folder)
    with Sandbox("image", backend, limits=Limits(allow_unenforced=True)).create_session(id="mine") as session:
        line = cli(folder, "ls").stdout.decode().split("\t")
        assert line[:3] == ["mine", "local", "running"]
        assert cli(folder, "prune").stdout == b""
        done = cli(folder, "rm", "mine")
        assert (done.returncode, done.stderr) == (0, b"")
        assert cli(folder, "ls").stdout == b""
        session.destroy()
    backend.close()


def test_engines_tells_what_answers() -> None:
    done = cli(None, "engines")
    assert done.returncode == 0
    assert done.stdout.startswith(b"local\t1\t")


def test_help_and_version() -> None:
    assert __version__ in cli(None, "--version").stdout.decode()
    for name in ("run", "mcp", "ls", "prune", "rm", "engines"):
        done = cli(None, name, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(b"Usage: sandboxkit " + name.encode())


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_packages_one_line_names_the_extra(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['engines']\n"
    program += "from sandboxkit.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"sandboxkit: the package {package} is missing: pip install 'sandboxkit[cli]'\n"


@pytest.mark.parametrize("package", ["mcp", "jsonschema"])
def test_without_mcp_nothing_is_made(folder: Path, package: str) -> None:
    program = (
        f"import sys, importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else real(name, *rest)\n"
        "from sandboxkit.cli import main\nsys.argv[1:] = ['mcp', '--image', 'image']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"sandboxkit: this command needs the package {package}: pip install 'sandboxkit[mcp]'\n"
