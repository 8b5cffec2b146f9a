"""Run examples/quickstart.py on the engine that answers, else on this host's programs, else on an engine set up for it.

    .venv/bin/python tools/quickstart.py

Any Docker or Podman that answers is used. Where none does, bubblewrap runs the example on the host's programs, which
takes neither root nor an installation outside `.venv`. Where the kernel does not let it, Podman is installed from the
distribution and its service started for this run alone. The image is made here: no registry is asked for anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import _services
import images
from _http import Engine, identify, is_listening
from _services import Service
from _system import BUILD, ROOT, ToolError, install, is_root

from sandboxkit import Sandbox, SandboxError

EXAMPLE = ROOT / "examples/quickstart.py"
FOLDER = BUILD / "quickstart"
TIMEOUT = 600.0

PROGRAMS = {"podman": "podman", "crun": "crun", "catatonit": "catatonit", "netavark": "netavark"}
ROOTLESS_PROGRAMS = {"newuidmap": "uidmap", "slirp4netns": "slirp4netns"}


def usual_urls() -> Iterator[str]:
    """Where an engine is looked for: what the user's environment names comes before what is usual."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    candidates = [
        os.environ.get("DOCKER_HOST"),
        f"unix://{_services.DOCKER_SOCKET}",
        os.environ.get("CONTAINER_HOST"),
        f"unix://{runtime}/podman/podman.sock",
        f"unix://{_services.PODMAN_SOCKET}",
    ]
    yield from dict.fromkeys(url for url in candidates if url)


def prepare(url: str) -> Engine | None:
    """The engine at that address with the image on it, or None where none answers or what answers runs nothing."""
    try:
        # The backend is what the engine says it is, whatever variable or path led to it.
        engine = Engine("unknown", url)
        if not is_listening(engine.socket):
            return None
        found = identify(engine)
        engine = Engine(found.backend, url)
        print(f"found {found.backend} {found.version} at {url}", flush=True)
        images.quickstart(engine)
    except ToolError as error:
        print(f"not used: {error}", flush=True)
        return None
    return engine


def on_this_host() -> bool:
    """Whether bubblewrap, from PATH or from .venv, can make a sandbox here."""
    try:
        found = Sandbox.host().engine()
    except SandboxError as error:
        print(f"bubblewrap is not used: {error}", flush=True)
        return False
    print(f"no container engine answers: bubblewrap {found.version} runs the host's own programs", flush=True)
    return True


def bring_up(service: Service) -> Engine:
    print("no container engine answers: setting up Podman", flush=True)
    programs = {**PROGRAMS, **({} if is_root() else ROOTLESS_PROGRAMS)}
    if not is_root() and _services.is_hybrid():
        programs["runc"] = "runc"
    install(programs)
    found, started_here = _services.start(service, FOLDER)
    print(f"podman {found.version} {'started' if started_here else 'answers'} at {service.engine.url}", flush=True)
    images.quickstart(service.engine)
    return service.engine


def run_example(engine: Engine | None) -> int:
    """On that engine, or without one on this host."""
    environment = {**os.environ, "SANDBOXKIT_BACKEND": "bubblewrap", "SANDBOXKIT_URL": "", "SANDBOXKIT_IMAGE": "host"}
    if engine is not None:
        environment.update(
            SANDBOXKIT_BACKEND=engine.backend, SANDBOXKIT_URL=engine.url, SANDBOXKIT_IMAGE=images.QUICKSTART
        )
    print(f"running {EXAMPLE.relative_to(ROOT)}\n", flush=True)
    try:
        return subprocess.run([sys.executable, EXAMPLE], env=environment, timeout=TIMEOUT, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{EXAMPLE} did not end within {TIMEOUT:.0f} s") from error


def own_service() -> Service:
    return _services.podman() if is_root() else _services.podman_of_this_user()


def main() -> int:
    # So that a terminated run ends its service too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        engine = next((engine for url in usual_urls() if (engine := prepare(url))), None)
        if engine is None and not on_this_host():
            engine = bring_up(own_service())
        return run_example(engine)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        # What the record says was started by the quickstart: by this run, or by one that was killed before this line.
        if FOLDER.exists():
            _services.stop(own_service(), FOLDER)


if __name__ == "__main__":
    sys.exit(main())
