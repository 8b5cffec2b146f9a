"""Servers that stand where an engine is looked for: engines of a few canned answers, a registry, and a TCP way in."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import socket
import socketserver
import ssl
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

DOCKER_VERSION = {"Version": "99.0", "ApiVersion": "1.44", "Components": [{"Name": "Engine", "Version": "99.0"}]}
PODMAN_VERSION = {
    "Version": "9.9.9",
    "ApiVersion": "1.41",
    "Components": [{"Name": "Podman Engine", "Version": "9.9.9", "Details": {"APIVersion": "9.9.9"}}],
}
DOCKER_INFO = {"Architecture": "x86_64", "CgroupVersion": "2", "Driver": "overlay2", "MemoryLimit": True}
PODMAN_INFO = {
    "host": {"arch": "amd64", "cgroupVersion": "v2", "cgroupControllers": ["memory"], "security": {"rootless": False}},
    "store": {"graphDriverName": "overlay"},
}


class Request(NamedTuple):
    """`path` without the query and the version before it."""

    method: str
    path: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Answer(NamedTuple):
    status: int
    body: object = b""
    kind: str = "application/json"


Answerer = Callable[[Request], Answer]


class FakeEngine:
    """Records what it is asked and answers as `answer` says; whoever is asked beyond that gets 404."""

    def __init__(self, version: object, info: object, answer: Answerer | None = None) -> None:
        self.requests: list[Request] = []
        self._version = version
        self._info = info
        self._answer = answer

    def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.path == "/version":
            return Answer(200, self._version)
        if request.path == "/info":
            return Answer(200, self._info)
        return self._answer(request) if self._answer else Answer(404, {"message": "no", "cause": "no"})

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if request[:2] == (method, path)]


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 50


class _TcpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True


def _handler(answer: Answerer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "client"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class names it so
            pass

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path)
            first = path.split("/", 2)[1]
            if first.startswith("v") and first[1:2].isdigit():
                path = path[len(first) + 1 :]
            status, content, kind = answer(Request(self.command, path.removeprefix("/libpod"), body))
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    for method in ("GET", "POST", "DELETE", "PUT", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._any)
    return Handler


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving_unix(path: Path, answer: Answerer) -> Iterator[str]:
    """An HTTP server on a unix socket; its URL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _served(_UnixServer(str(path), _handler(answer))):
        yield f"unix://{path}"


@contextmanager
def serving_tcp(answer: Answerer) -> Iterator[int]:
    """An HTTP server on the loopback; its port."""
    server = _TcpServer(("127.0.0.1", 0), _handler(answer))
    with _served(server):
        yield server.server_address[1]


@contextmanager
def forwarding(unix_path: str, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A TCP port, with TLS when there is a context, whose connections are carried to a unix socket."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as inner:
                outer = context.wrap_socket(self.request, server_side=True) if context else self.request
                with outer:
                    inner.connect(unix_path)
                    back = threading.Thread(target=_copy, args=(inner, outer))
                    back.start()
                    _copy(outer, inner)
                    back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", 0), Forward)
    with _served(server):
        yield server.server_address[1]


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    # Over TLS there is no half-close: both ends go.
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def registry(name: str, layer: Path) -> Answerer:
    """A registry with one image of one layer, tag `latest` (OCI distribution specification, as far as pulls go)."""
    raw = layer.read_bytes()
    packed = gzip.compress(raw, 1, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(raw)]},
        "history": [{"created_by": "test"}],
    }
    described = json.dumps(config).encode()
    kind = "application/vnd.docker."
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}distribution.manifest.v2+json",
            "config": {
                "mediaType": f"{kind}container.image.v1+json",
                "size": len(described),
                "digest": _digest(described),
            },
            "layers": [
                {
                    "mediaType": f"{kind}image.rootfs.diff.tar.gzip",
                    "size": len(packed),
                    "digest": _digest(packed),
                }
            ],
        }
    ).encode()
    blobs = {_digest(blob): blob for blob in (described, packed, manifest)}

    def answer(request: Request) -> Answer:
        if request.path == "/":
            return Answer(200, {})
        what, _, reference = request.path.removeprefix(f"/{name}/").partition("/")
        if what == "manifests" and reference == "latest":
            return Answer(200, manifest, f"{kind}distribution.manifest.v2+json")
        if what == "manifests" and reference in blobs:
            return Answer(200, blobs[reference], f"{kind}distribution.manifest.v2+json")
        if what == "blobs" and reference in blobs:
            return Answer(200, blobs[reference], "application/octet-stream")
        return Answer(404, {"errors": []})

    return answer


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def small_layer(path: Path) -> Path:
    """A layer of one file."""
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 200_000
        tar.addfile(entry, io.BytesIO(bytes(range(250)) * 800))
    return path
