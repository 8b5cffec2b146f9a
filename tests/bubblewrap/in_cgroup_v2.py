"""Runs on a kernel of its own whose cgroups are version 2 alone: see test_cgroup_v2.py. As root, then as a user."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path

from sandboxkit import Limits, Sandbox

CGROUPS = Path("/sys/fs/cgroup")
UID = 59321


def check(parent: Path) -> None:
    """Memory, pids and cpus are in force in a group below `parent`, and the group goes with its session."""
    limits = Limits(memory_mb=96, pids=48, cpus=0.5, timeout=100)
    with Sandbox.host(limits=limits).create_session() as session:
        assert session.engine.cgroup_version == 2
        assert {"memory", "pids", "cpus"} <= session.engine.enforceable, session.engine
        (group,) = parent.glob("sandboxkit.*")
        found = {name: (group / name).read_text().strip() for name in ("memory.max", "pids.max", "cpu.max")}
        assert found == {"memory.max": str(96 << 20), "pids.max": "48", "cpu.max": "50000 100000"}
        eater = session.exec("python3", ["-c", "block = bytearray(200 << 20)"])
        assert (eater.signal, eater.oom_killed) == ("SIGKILL", True), eater
        forks = session.exec("sh", ["-c", "for i in $(seq 100); do sleep 100 & done"])
        assert "fork" in forks.stderr, forks
        session.exec("kill", ["-9", *map(str, forks.background_pids)])  # one command: there is room for hardly more
        assert session.exec("echo", ["alive"]).stdout == "alive\n"
    assert list(parent.glob("sandboxkit.*")) == []


def sweep(parent: Path) -> None:
    """A group whose process was killed is removed by the next one that makes a sandbox."""
    child = os.fork()
    if child == 0:
        session = Sandbox.host(limits=Limits(memory_mb=96)).create_session()
        assert session.exec("true").ok
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with Sandbox.host(limits=Limits(memory_mb=96)).create_session() as session:
        own = str(os.getpid())
        assert [group.name.split(".")[2] for group in parent.glob("sandboxkit.*")] == [own]
        assert session.exec("true").ok


def as_a_user() -> None:
    """In a subtree that was delegated to an ordinary user, as a service manager does it."""
    subtree = CGROUPS / "delegated"
    (subtree / "leaf").mkdir(parents=True)
    for path in (subtree, subtree / "cgroup.procs", subtree / "cgroup.subtree_control", subtree / "leaf/cgroup.procs"):
        os.chown(path, UID, UID)
    (subtree / "leaf/cgroup.procs").write_text(str(os.getpid()))
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    check(subtree)


def main() -> None:
    check(CGROUPS)  # also loads what the user below may not read
    sweep(CGROUPS)
    print("as root: all holds", flush=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            as_a_user()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    print("as a user: all holds", flush=True)


main()
