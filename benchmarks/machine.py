"""What the figures were measured on: machine, engines, programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from sandboxkit import Limits, Sandbox, SandboxError

from .competitors import PYTHON_IMAGE
from .competitors.base import Engine
from .environments import ROOT
from .processes import PROC, field

ENGINES = ROOT / "build" / "engines.json"
HOST = Engine("host")


def engines() -> list[Engine]:
    """Those that `make engines` set up, and this host itself."""
    found = json.loads(ENGINES.read_text("utf-8")) if ENGINES.is_file() else []
    return [*(Engine(**line) for line in found), HOST]


def describe_engine(engine: Engine) -> str:
    """Name and version, or why there is none."""
    host = engine == HOST
    sandbox = Sandbox(
        "host" if host else PYTHON_IMAGE,
        "bubblewrap" if host else engine.backend,
        None if host else engine.url,
        limits=Limits(allow_unenforced=True),
    )
    try:
        info = sandbox.engine()
    except SandboxError as error:
        return f"does not answer: {error}"
    traits = ["rootless" if info.rootless else "root", f"cgroup v{info.cgroup_version}"]
    if info.storage_driver:
        traits.append(info.storage_driver)
    return f"{info.backend} {info.version} ({', '.join(traits)})"


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system; and how busy it was, which tells how much the figures are worth."""
    memory = int(field(PROC / "meminfo", "MemTotal").split()[0]) / (1 << 20)
    return {
        "processor": field(PROC / "cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"'),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def client_version(program: str) -> str:
    """What `docker --version` or `podman --version` says."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    return done.stdout.strip()
