"""Further host folders in a sandbox: what may be mounted, and what a virtual environment needs besides itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from sandboxkit.backend import AGENT_FOLDER, WORKSPACE_FOLDER
from sandboxkit.errors import ConfigError

__all__ = ["extra_folders", "is_below", "program_folders"]

# Made anew in every sandbox, or dangerous: a socket can be connected to through a read-only mount, and /run is full of
# them.
_OURS = ("/dev", "/proc", "/sys", "/run", "/var/run", AGENT_FOLDER, WORKSPACE_FOLDER)
_WHOLE = (*_OURS, "/tmp", "/usr", "/etc")  # noqa: S108 - the sandbox's


def extra_folders(paths: Sequence[str]) -> list[str]:
    """Those to mount for these, checked: ConfigError naming the first that can't be mounted."""
    found: list[str] = []
    for index, path in enumerate(paths):
        _check(f"extra_paths[{index}]", path)
        found.append(path)
        found += _interpreter_folders(Path(path))
    return list(dict.fromkeys(found))


def program_folders(paths: Sequence[str]) -> list[str]:
    """The `bin` of each virtual environment among these."""
    return [f"{path}/bin" for path in paths if Path(path, "pyvenv.cfg").is_file()]


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether it is one of these or in one, by the text alone."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _check(field: str, path: str) -> None:
    def refuse(accepted: str) -> NoReturn:
        raise ConfigError(f"{field} is {path!r}; accepted: {accepted}", details={"field": field})

    if not os.path.isdir(path):
        refuse("the absolute path of a folder that is there")
    if not os.access(path, os.R_OK | os.X_OK):
        refuse("a folder that this process may read")
    for each in (path, os.path.realpath(path)):
        if is_below(each, _OURS) or any(is_below(ours, [each]) for ours in _WHOLE):
            refuse(f"a folder that neither is nor holds {', '.join(_WHOLE)}, and is in none of {', '.join(_OURS)}")


def _interpreter_folders(folder: Path) -> list[str]:
    # A virtual environment holds links to the Python it was made from, which then has to be there; pyvenv.cfg names its
    # `bin`.
    homes: list[Path] = []
    try:
        lines = folder.joinpath("pyvenv.cfg").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip():
            homes.append(Path(value.strip()))
    python = folder / "bin" / "python"
    if python.exists():
        homes.append(python.resolve().parent)
    return [str(part) for home in homes for part in _installation(home)]


def _installation(home: Path) -> list[Path]:
    # Its programs and libraries alone, and only if it is a Python's: `home` is a line in a file.
    prefix = home.parent
    if home.name != "bin" or is_below(str(home), ("/usr", "/bin")):
        return []
    if not any(library.is_file() for library in prefix.glob("lib/python3*/os.py")):
        return []
    return [home, prefix / "lib"]
