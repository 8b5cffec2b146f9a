"""The engines that `make engines` set up, as the suite's classes take them, and a direct way to ask one."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from sandboxkit_docker import DockerBackend
from sandboxkit_podman import PodmanBackend

from sandboxkit.backend import Backend, ByteStream, Feature
from sandboxkit.conformance import Conformance, Suite

FILE = Path(__file__).parent.parent.parent / "build/engines.json"
ADVICE = "run `make engines images`"

BACKENDS: Mapping[str, type[Backend]] = {"docker": DockerBackend, "podman": PodmanBackend}
IMAGES = {
    "shell": "sandboxkit-test/busybox",
    "python": "sandboxkit-test/python",
    "empty": "sandboxkit-test/empty",
    "static": "sandboxkit-test/static",
    "nonroot": "sandboxkit-test/nonroot",
}


def address(backend: str, *, rootless: bool) -> str:
    """The URL of an engine; AssertionError saying what to do when there is none."""
    assert FILE.is_file(), f"{FILE} is missing: {ADVICE}"
    found = [e["url"] for e in json.loads(FILE.read_text()) if (e["backend"], e["rootless"]) == (backend, rootless)]
    assert found, f"{FILE} has no {'rootless ' if rootless else ''}{backend}: {ADVICE}"
    url: str = found[0]
    return url


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(url: str, path: str) -> Any:
    """GET of Docker's API, which Podman speaks too; None for what is not there."""
    connection = UnixConnection(url.removeprefix("unix://"))
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        raise AssertionError(f"nothing answers at {url} ({error}): {ADVICE}") from error
    finally:
        connection.close()
    if response.status == 404:
        return None
    assert response.status == 200, f"{path} at {url}: {response.status} {body[:500]!r}"
    return json.loads(body)


class Volumes:
    """The anonymous volumes that containers brought. Others use the engine too: each container is asked for its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def note(self, container_id: str) -> None:
        """Ask a new container which volumes it has."""
        found = ask(self._url, f"/containers/{container_id}/json")
        names = {mount["Name"] for mount in (found or {}).get("Mounts", []) if mount.get("Name")}
        with self._lock:
            self._known |= {name for name in names if not name.startswith("sandboxkit-agent-")}

    def left(self) -> set[str]:
        """Those that are still there."""
        with self._lock:
            known = set(self._known)
        left = {name for name in known if ask(self._url, f"/volumes/{quote(name)}") is not None}
        with self._lock:
            self._known -= known - left
        return left


class OnEngine(Suite):
    """A container engine of this host, with the volumes of its containers in the leak check."""

    images = IMAGES
    backend_name: ClassVar[str]
    rootless: ClassVar[bool] = False
    _volumes: ClassVar[Volumes | None] = None

    @classmethod
    def make_backend(cls) -> Backend:
        url = address(cls.backend_name, rootless=cls.rootless)
        assert ask(url, "/version") is not None
        if cls._volumes is None:
            cls._volumes = Volumes(url)
        return _noting(BACKENDS[cls.backend_name].connect(url), cls._volumes)

    @classmethod
    def leftovers(cls, backend: Backend) -> Collection[str]:
        return cls._volumes.left() if cls._volumes is not None else ()


class Engine(OnEngine, Conformance):
    """The whole suite there."""


def _noting(backend: Backend, volumes: Volumes) -> Backend:
    """The backend, whose `attach` tells `volumes` of the container first.

    Not its `create`: whoever calls that owns nothing yet when an interrupt comes before it returns.
    """
    attach = backend.attach

    def noting(container_id: str) -> ByteStream:
        volumes.note(container_id)
        return attach(container_id)

    backend.attach = noting  # type: ignore[method-assign]
    return backend


EVERY = frozenset(Feature) - {Feature.HOST_FILES}
