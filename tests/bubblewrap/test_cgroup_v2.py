"""Limits by cgroups of version 2, on a real kernel that has no others, whatever this machine's kernel has.

The kernel is User-Mode Linux (Debian's user-mode-linux): an ordinary process, whose root filesystem is this machine's,
read-only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ordinary import ROOT

INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /run/tmp
mount -t tmpfs shm /dev/shm
chmod 1777 /run/tmp
echo +memory +pids +cpu >/sys/fs/cgroup/cgroup.subtree_control
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run/tmp TMPDIR=/run/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{path}'
'{python}' '{program}' 2>&1
echo o >/proc/sysrq-trigger
sleep 100
"""


@pytest.fixture
def init(tmp_path: Path) -> Path:
    """The first program of that kernel."""
    path = tmp_path / "init"
    program = Path(__file__).with_name("in_cgroup_v2.py")
    search = ":".join([str(ROOT), str(ROOT / "backends"), *filter(None, sys.path)])
    path.write_text(INIT.format(path=search, python=sys.executable, program=program))
    path.chmod(0o755)
    return path


@pytest.mark.timeout(300)
def test_limits_hold_for_root_and_in_a_users_subtree(init: Path) -> None:
    kernel = shutil.which("linux.uml")
    if kernel is None:
        pytest.skip("User-Mode Linux is not installed, and not every distribution has it: `make kernel`")
    root = ("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro")
    console = ("con=null", "con0=null,fd:1", "quiet", "mem=1024M")
    done = subprocess.run(
        [kernel, *root, *console, f"init={init}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=280,
        check=False,
    )
    assert "as root: all holds" in done.stdout, done.stdout[-8000:]
    assert "as a user: all holds" in done.stdout, done.stdout[-8000:]
