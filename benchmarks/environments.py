"""Each competitor's own environment under build/bench, and the images that hold a competitor's server."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import docker

from .competitors import PYTHON_IMAGE, Entry

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "bench"
REQUIREMENTS = Path(__file__).parent / "requirements"
LABEL = "sandboxkit-bench.digest"
IN_IMAGE = "/opt/bench"
# What is started in the image, by name: `pip --target` makes launchers for this host's interpreter.
LAUNCHERS = {
    "swe-rex": ("swerex-remote", "from swerex.server import main; main()", '["sh"]'),
    "smolagents": ("unused", "", '["python3", "-m", "kernel_gateway", "--KernelGatewayApp.ip=0.0.0.0"]'),
}


class PreparationError(Exception):
    """An environment or image could not be made; the message is the reason that the results give."""


def python_of(entry: Entry, *, own: bool) -> str:
    """The interpreter that a competitor's worker runs in, made ready; with `own=False` this one."""
    if not own or not entry.requirements:
        return sys.executable
    requirements = REQUIREMENTS / f"{entry.name}.txt"
    folder = BUILD / entry.name
    stamp = folder / "installed.txt"
    python = folder / "bin" / "python"
    if not stamp.is_file() or stamp.read_bytes() != requirements.read_bytes():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), *_PIP, "--requirement", str(requirements))
        stamp.write_bytes(requirements.read_bytes())
    return str(python)


def provide_image(entry: Entry, url: str) -> None:
    """See that Docker has the image of a competitor whose server runs inside: packages on top of the common image."""
    if entry.image == PYTHON_IMAGE:
        return
    requirements = REQUIREMENTS / f"{entry.name}.image.txt"
    name, code, command = LAUNCHERS[entry.name]
    client = docker.DockerClient(base_url=url, timeout=300)
    try:
        base = client.images.get(PYTHON_IMAGE)
        wanted = hashlib.sha256(f"{base.id}{requirements.read_text()}{code}{command}".encode()).hexdigest()
        for image in client.images.list(entry.image):
            if image.labels.get(LABEL) == wanted:
                return
        packages = BUILD / "images" / entry.name
        in_image = client.containers.run(
            PYTHON_IMAGE,
            ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            remove=True,
            network_mode="none",
        )
        # For the image's Python, whichever this host has.
        target = ["--target", str(packages), "--upgrade", "--only-binary", ":all:", "--python-version"]
        _run(sys.executable, *_PIP, *target, in_image.decode().strip(), "--requirement", str(requirements))
        container = client.containers.create(PYTHON_IMAGE, ["true"], network_mode="none")
        try:
            container.put_archive("/", _layer(packages, name, code))
            changes = [f"ENV PYTHONPATH={IN_IMAGE}", "ENTRYPOINT []", f"CMD {command}", f"LABEL {LABEL}={wanted}"]
            container.commit(entry.image, "latest", changes=changes)
        finally:
            container.remove(force=True)
    except docker.errors.DockerException as error:
        raise PreparationError(f"its image could not be made: {error}") from error
    finally:
        client.close()


_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def _layer(packages: Path, name: str, code: str) -> bytes:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(packages, IN_IMAGE.lstrip("/"))
        launcher = f"#!/usr/bin/python3\n{code}\n".encode()
        info = tarfile.TarInfo(f"usr/local/bin/{name}")
        info.mode, info.size = 0o755, len(launcher)
        archive.addfile(info, io.BytesIO(launcher))
    return tar.getvalue()


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise PreparationError(f"its packages could not be installed: {' '.join(last)}")
