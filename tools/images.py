"""The images that the tests and the quickstart run in, made on this host without any registry.

    python3 tools/images.py up                                          on each engine of build/engines.json
    python3 tools/images.py quickstart --backend NAME --url unix:///...  one small image on one engine

Each is a tar, imported through the engine's API. An image carries the digest of what it was made from as a label, and
one that has the right label is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import _trees
from _http import Engine, Reply, read_engines
from _system import ToolError

LABEL = "sandboxkit-test.digest"
QUICKSTART = "sandboxkit/quickstart:latest"
LIBPOD = "/v4.0.0/libpod"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    name: str
    tar: Path
    changes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        with self.tar.open("rb") as file:
            digest = hashlib.sha256("\n".join(self.changes).encode())
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()


def test_images() -> list[Image]:
    """Small ones first: the tests that need no Python can begin while its image is made."""
    busybox = _trees.busybox()
    return [
        Image("sandboxkit-test/busybox:latest", busybox, (f"ENV {PATH}", 'CMD ["/bin/sh"]')),
        Image(
            "sandboxkit-test/nonroot:latest",
            busybox,
            (f"ENV {PATH}", 'CMD ["/bin/sh"]', f"USER {_trees.USER_ID}:{_trees.USER_ID}"),
        ),
        Image("sandboxkit-test/empty:latest", _trees.empty()),
        Image("sandboxkit-test/static:latest", _trees.static()),
    ]


def python_image() -> Image:
    return Image("sandboxkit-test/python:latest", _trees.python(), (f"ENV {PATH}", 'CMD ["python3"]'))


def quickstart_image() -> Image:
    return Image(QUICKSTART, _trees.busybox(), (f"ENV {PATH}", 'CMD ["/bin/sh"]'))


def provide(engine: Engine, image: Image) -> bool:
    """See that the engine has the image as it is described; returns whether it had to be imported."""
    digest = image.digest
    before = _inspect(engine, image.name)
    if before and _label(before) == digest:
        return False
    changes = [*image.changes, f"LABEL {LABEL}={digest}"]
    reply = _import(engine, image, changes)
    after = _inspect(engine, image.name)
    # Docker answers 200 before it has read the tar and reports what went wrong in the body: only the image tells.
    if not after or _label(after) != digest:
        raise ToolError(f"{engine.url} did not import {image.name}: {reply.status} {reply.text}")
    if before:
        _discard(engine, before["Id"])
    return True


def _import(engine: Engine, image: Image, changes: list[str]) -> Reply:
    repository, _, tag = image.name.rpartition(":")
    if engine.backend == "docker":
        query = [("fromSrc", "-"), ("repo", repository), ("tag", tag)]
        target = "/images/create"
    else:
        # Podman gives a bare name the registry docker.io when it pulls and localhost when it builds. It finds
        # `sandboxkit-test/x` under localhost without asking any registry, through both of its APIs.
        query = [("reference", f"localhost/{image.name}")]
        target = f"{LIBPOD}/images/import"
    query += [("changes", change) for change in changes]
    return engine.request("POST", f"{target}?{urlencode(query)}", image.tar, timeout=600)


def _api(engine: Engine) -> str:
    return "" if engine.backend == "docker" else LIBPOD


def _inspect(engine: Engine, name: str) -> dict[str, Any] | None:
    """The image, found by the name that users give it."""
    reply = engine.request("GET", f"{_api(engine)}/images/{quote(name)}/json")
    if reply.status == 404:
        return None
    if not reply.ok:
        raise ToolError(f"{engine.url}: inspecting {name}: {reply.status} {reply.text}")
    found: dict[str, Any] = reply.json()
    return found


def _discard(engine: Engine, identity: str) -> None:
    """Remove an image that lost its name to a newer one; it stays if it has another, or a container uses it."""
    image = _inspect(engine, identity)
    if image and not image.get("RepoTags"):
        engine.request("DELETE", f"{_api(engine)}/images/{identity}")


def _label(image: dict[str, Any]) -> str | None:
    labels: dict[str, str] = image["Config"].get("Labels") or {}
    return labels.get(LABEL)


def check(engine: Engine, image: Image) -> None:
    """Run a command in the image, with the network off: an engine may answer well and start nothing.

    The limits are given because some hosts refuse the engine's own, which are above what the host allows.
    """
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: resource.getrlimit(which)[1] for name, which in limits.items()}
    ceilings = {name: 4096 if value == resource.RLIM_INFINITY else min(value, 4096) for name, value in hard.items()}
    command = ["/bin/sh", "-c", "exit 7"]
    body: dict[str, Any]
    if engine.backend == "docker":
        ulimits = [{"Name": name, "Soft": value, "Hard": value} for name, value in ceilings.items()]
        host = {"NetworkMode": "none", "Ulimits": ulimits}
        body = {"Image": image.name, "Cmd": command, "HostConfig": host}
    else:
        ulimits = [{"type": name, "soft": value, "hard": value} for name, value in ceilings.items()]
        body = {"image": image.name, "command": command, "netns": {"nsmode": "none"}, "r_limits": ulimits}
    containers = f"{_api(engine)}/containers"
    created = engine.request("POST", f"{containers}/create", body)
    if not created.ok:
        raise ToolError(f"{engine.url} creates no container: {created.status} {created.text}")
    container = f"{containers}/{created.json()['Id']}"
    try:
        started = engine.request("POST", f"{container}/start")
        if not started.ok:
            raise ToolError(f"{engine.url} starts no container: {started.status} {started.text}")
        waited = engine.request("POST", f"{container}/wait", timeout=60).text
        # Docker says {"StatusCode": 7}, Podman 7.
        answer = json.loads(waited)
        code = answer["StatusCode"] if isinstance(answer, dict) else answer
        if code != 7:
            raise ToolError(f"{engine.url} runs a container wrongly: `exit 7` ended with {waited}")
    finally:
        engine.request("DELETE", f"{container}?force=true")


def up() -> None:
    engines = read_engines()
    for image in test_images():
        for engine in engines:
            _report(engine, image)
            if image.name == "sandboxkit-test/busybox:latest":
                check(engine, image)
    python = python_image()
    for engine in engines:
        _report(engine, python)


def quickstart(engine: Engine) -> None:
    image = quickstart_image()
    _report(engine, image)
    check(engine, image)


def _report(engine: Engine, image: Image) -> None:
    begin = time.monotonic()
    how = f"imported in {time.monotonic() - begin:.1f} s" if provide(engine, image) else "was there"
    print(f"{image.name:34}{engine.url:46} {how}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="make the test images on each engine")
    one = commands.add_parser("quickstart", help="make the quickstart's image on one engine")
    one.add_argument("--backend", required=True, choices=["docker", "podman"])
    one.add_argument("--url", required=True, help="unix:///path/of/the/socket")
    options = parser.parse_args(arguments)
    try:
        if options.command == "up":
            up()
        else:
            quickstart(Engine(options.backend, options.url))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
