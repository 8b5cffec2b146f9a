"""The three engines that the tests run on: Docker, rootful Podman, rootless Podman.

    python3 tools/engines.py up      install what is missing, start what is not running, write build/engines.json
    python3 tools/engines.py down    end what `up` started, and nothing else
    python3 tools/engines.py status  what answers where; fails unless all three do

`up` may be run again at any time. An engine that can't be brought up is a failure, never a skip. Logs and the record
of what was started are in build/engines/. Docker's containers end with it; Podman's run on without its service.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import _services
from _http import ENGINES_FILE, identify, is_listening, write_engines
from _services import Service
from _system import BUILD, ToolError, find, install, is_root, run

USER = "sandboxkit"
FOLDER = BUILD / "engines"

#: What the engines need, and the Debian package that brings it.
PROGRAMS = {
    "dockerd": "docker.io",
    "podman": "podman",
    "crun": "crun",
    "newuidmap": "uidmap",
    "slirp4netns": "slirp4netns",
    "fuse-overlayfs": "fuse-overlayfs",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
    "iptables": "iptables",
    "nft": "nftables",
    "catatonit": "catatonit",
    "busybox": "busybox-static",
    "mmdebstrap": "mmdebstrap",
}


def up() -> None:
    _become_root()
    with _alone():
        try:
            install(PROGRAMS)
            services = _services_here(create_user=True)
            for service in services:
                _bring_up(service)
        except ToolError:
            # Whoever finds the file finds three engines that answered; it stays while they are only looked at again.
            ENGINES_FILE.unlink(missing_ok=True)
            raise
        write_engines([service.engine for service in services])


def _bring_up(service: Service) -> None:
    begin = time.monotonic()
    found, started_here = _services.start(service, FOLDER)
    how = f"started in {time.monotonic() - begin:.1f} s" if started_here else "was up"
    print(f"{service.name:16}{service.engine.url:46} {found.backend} {found.version}, {how}", flush=True)


def down() -> None:
    _become_root()
    with _alone():
        # Gone first: whoever starts a test from now on is told to bring the engines up.
        ENGINES_FILE.unlink(missing_ok=True)
        for service in reversed(_services_here()):
            ended = _services.stop(service, FOLDER)
            print(f"{service.name:16}{'ended' if ended else 'not started here, left as it is'}", flush=True)


def status() -> bool:
    services = _services_here()
    answering = 0
    for service in services:
        found = None
        try:
            found = identify(service.engine) if is_listening(service.engine.socket) else None
            state = f"{found.backend} {found.version}" if found else "down"
            answering += found is not None and found.backend == service.engine.backend
        except ToolError as error:
            state = str(error)
        owner = ", started here" if found and _services.is_ours(service, FOLDER) else ""
        print(f"{service.name:16}{service.engine.url:46} {state}{owner}")
    if len(services) < 3:
        print(f"{'podman-rootless':16}down: there is no user {USER} yet")
    return answering == 3


def _services_here(*, create_user: bool = False) -> list[Service]:
    services = [_services.docker(), _services.podman()]
    if create_user:
        _ensure_user()
    with suppress(KeyError):
        services.append(_services.podman_rootless(USER))
    return services


def _ensure_user() -> None:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        # Not --system: only an ordinary user gets ranges in /etc/subuid and /etc/subgid.
        run(["useradd", "--create-home", "--shell", "/bin/sh", USER], timeout=30)


def _become_root() -> None:
    """Run the same command under sudo: two of the engines are root's, and so is the third's user."""
    if is_root():
        return
    sudo = find("sudo")
    if sudo is None:
        raise ToolError("root is needed to start the engines, and there is no sudo: run this as root")
    # Made by the caller, so that what root writes in it does not keep the caller from replacing it.
    FOLDER.mkdir(parents=True, exist_ok=True)
    print("the engines are started as root: going on under sudo", flush=True)
    os.execv(sudo, [sudo, sys.executable, *sys.argv])


@contextmanager
def _alone() -> Iterator[None]:
    """One `up` or `down` at a time: two would both find an engine down and both start it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with Path(FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    commands = {"up": up, "down": down, "status": status}
    if len(arguments) != 1 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return 1 if commands[arguments[0]]() is False else 0
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
