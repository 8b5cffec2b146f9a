"""The host's commands and packages: every call has a deadline, every failure says what to do next."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"

#: Debian keeps daemons off a user's PATH, and Podman's helpers off everyone's.
SEARCH_PATH = os.pathsep.join(
    [
        os.environ.get("PATH", ""),
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/usr/lib/podman:/usr/libexec/podman",
    ]
)


class ToolError(Exception):
    """Something the tool needs failed; the message is all that the user is shown."""


def is_root() -> bool:
    return os.geteuid() == 0


def as_root(command: Sequence[str]) -> list[str]:
    """The command with sudo before it where this process is not root."""
    if is_root():
        return list(command)
    if shutil.which("sudo") is None:
        raise ToolError(f"root is needed for `{' '.join(command)}`, and there is no sudo: run it as root first")
    return ["sudo", *command]


def run(
    command: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command to its end and return its output; ToolError with the end of it on any failure."""
    line = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            env={**os.environ, "PATH": SEARCH_PATH, **(environment or {})},
            cwd=cwd,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise ToolError(f"`{line}`: {command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"`{line}` did not end within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise ToolError(f"`{line}` failed with {done.returncode}:\n{last_lines(done.stdout)}")
    return done.stdout


def last_lines(text: str, count: int = 20) -> str:
    return "\n".join("    " + line for line in text.splitlines()[-count:]) or "    (no output)"


def find(program: str) -> str | None:
    """Where a program is, daemons and Podman's helpers included."""
    return shutil.which(program, path=SEARCH_PATH)


def install(programs: Mapping[str, str]) -> None:
    """Install the Debian packages of those programs that are missing; nothing is asked of apt when none is.

    `programs` maps a program, or an absolute path, to the package that brings it.
    """
    missing = sorted({package for program, package in programs.items() if not _is_there(program)})
    if not missing:
        return
    if find("apt-get") is None:
        raise ToolError(f"there is no apt-get here: install these by hand, then try again: {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", flush=True)
    # `env` after sudo, which drops the caller's environment. The lock may be held by the host's own updater.
    apt = as_root(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120", "-y"])
    try:
        run([*apt, "update"], timeout=300)
    except ToolError as error:
        # One unreachable source of several is no reason to stop: the install below is what decides.
        print(f"warning: {error}", flush=True)
    run([*apt, "install", "--no-install-recommends", *missing], timeout=900)
    still_missing = sorted(program for program in programs if not _is_there(program))
    if still_missing:
        raise ToolError(f"the packages are installed, yet these are still missing: {' '.join(still_missing)}")


def _is_there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else find(program) is not None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a second writer, sees the old one or the new one and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
