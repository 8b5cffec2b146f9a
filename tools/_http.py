"""An engine as the tools see it: HTTP over a unix socket, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from _system import BUILD, ToolError, replace_file

ENGINES_FILE = BUILD / "engines.json"


class Reply(NamedTuple):
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()

    def json(self) -> Any:
        return json.loads(self.body)


class Identity(NamedTuple):
    """What an engine says it is."""

    backend: str
    version: str


@dataclass(frozen=True)
class Engine:
    backend: str
    url: str
    rootless: bool = False

    @property
    def socket(self) -> Path:
        if not self.url.startswith("unix://"):
            raise ToolError(f"{self.url}: these tools reach an engine through a unix socket only")
        return Path(self.url.removeprefix("unix://"))

    def request(self, method: str, target: str, body: Path | object = None, *, timeout: float = 60) -> Reply:
        """One request: a path is sent as the file's content, anything else as JSON."""
        connection = _Connection(self.socket, timeout)
        try:
            if isinstance(body, Path):
                headers = {"Content-Type": "application/x-tar", "Content-Length": str(body.stat().st_size)}
                with body.open("rb") as file:
                    connection.request(method, target, file, headers)
            elif body is not None:
                connection.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
            else:
                connection.request(method, target)
            response = connection.getresponse()
            return Reply(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise ToolError(f"{self.url}: {method} {target}: {error or type(error).__name__}") from error
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections there; a socket file left by a dead one does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror or error}") from error
        return True


def identify(engine: Engine, *, timeout: float = 15) -> Identity:
    """Ask what answers on the engine's socket.

    Podman speaks Docker's API too, and /var/run/docker.sock may lead to it, so neither the path nor a good ping
    says which engine it is: the list of components does.
    """
    ping = engine.request("GET", "/_ping", timeout=timeout)
    version = engine.request("GET", "/version", timeout=timeout)
    if not (ping.ok and version.ok):
        raise ToolError(f"{engine.url}: answers, but not as an engine does: {ping.status}, {version.status}")
    try:
        answer = version.json()
        names = {component["Name"] for component in answer.get("Components") or []}
        return Identity("podman" if "Podman Engine" in names else "docker", str(answer["Version"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(f"{engine.url}: /version does not answer as an engine does: {version.text[:200]}") from error


def read_engines() -> list[Engine]:
    try:
        return [Engine(**entry) for entry in json.loads(ENGINES_FILE.read_bytes())]
    except FileNotFoundError as error:
        raise ToolError(f"{ENGINES_FILE} is missing: run `python3 tools/engines.py up` first") from error


def write_engines(engines: list[Engine]) -> None:
    replace_file(ENGINES_FILE, (json.dumps([asdict(engine) for engine in engines], indent=2) + "\n").encode())
