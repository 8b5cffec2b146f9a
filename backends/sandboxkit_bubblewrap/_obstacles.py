"""Why a kernel refuses namespaces to this process: the settings known to forbid them, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ._privilege import is_privileged

__all__ = ["obstacle"]


def obstacle(proc: Path = Path("/proc"), *, privileged: bool | None = None) -> str | None:
    """The first setting that forbids what bubblewrap needs, with advice; None when none of them does.

    `proc` and `privileged` stand for this host and this process unless a test says otherwise.
    """
    return next(_obstacles(proc, is_privileged() if privileged is None else privileged), None)


def _obstacles(proc: Path, privileged: bool) -> Iterator[str]:
    if not privileged and _read(proc / "sys/kernel/unprivileged_userns_clone") == "0":
        yield (
            "The setting kernel.unprivileged_userns_clone is 0, which forbids user namespaces to ordinary users: as "
            "root, `sysctl kernel.unprivileged_userns_clone=1` (in /etc/sysctl.d to keep it), or run as root."
        )
    for kind in ("user", "pid", "net", "mnt", "ipc", "uts", "cgroup"):
        if _read(proc / f"sys/user/max_{kind}_namespaces") == "0":
            yield (
                f"The setting user.max_{kind}_namespaces is 0, which forbids {kind} namespaces to everybody: as root, "
                f"`sysctl user.max_{kind}_namespaces=10000` (in /etc/sysctl.d to keep it)."
            )
    if not privileged and _read(proc / "sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        yield (
            "The setting kernel.apparmor_restrict_unprivileged_userns is 1, so AppArmor allows user namespaces to "
            "programs with a profile alone: install the profile for bwrap (the package apparmor-profiles has "
            "bwrap-userns-restrict), or as root `sysctl kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    if _status(proc, "Seccomp") == "2":
        yield (
            "This process runs under a seccomp filter, as in a container, which may forbid namespaces: start that "
            "container with `--security-opt seccomp=unconfined`, or one that allows clone, unshare, mount, pivot_root."
        )
    if any(point.startswith("/proc/") for point in _mount_points(proc)):
        yield (
            "Parts of /proc are covered, as in a container, so the kernel allows no new /proc: start that container "
            "with `--security-opt systempaths=unconfined` (Docker) or `--security-opt unmask=ALL` (Podman)."
        )


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def _status(proc: Path, field: str) -> str | None:
    for line in (_read(proc / "self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return None


def _mount_points(proc: Path) -> list[str]:
    return [line.split(" ")[4] for line in (_read(proc / "self/mountinfo") or "").splitlines() if line.count(" ") > 4]
