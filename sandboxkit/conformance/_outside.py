"""What stands for the outside in tests of the guarded way out: servers on this host's loopback, and clients inside."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import socket
import socketserver
import zipfile
from collections.abc import Iterator
from typing import Any

from sandboxkit import Session

from ._threads import Background

PACKAGE = "sandboxkit-test-package"
WHEEL = "sandboxkit_test_package-1.0-py3-none-any.whl"


class _Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/redirect":
            self.send_response(302)
            self.send_header("Location", query)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if path == "/simple/" + PACKAGE + "/":
            digest = hashlib.sha256(wheel()).hexdigest()
            page = f'<!DOCTYPE html><html><body><a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a></body></html>'
            self._answer(page.encode(), "text/html")
        elif path == "/files/" + WHEEL:
            self._answer(wheel())
        elif path == "/big":
            self._answer(pattern(int(query)))
        elif path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/headers":
            self._answer(json.dumps([[name.lower(), value] for name, value in self.headers.items()]).encode())
        else:
            self._answer(b"hello from " + self.path.encode())

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        if length is not None:
            body = self.rfile.read(int(length))
        else:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        self._answer(hashlib.sha256(body).hexdigest().encode())

    def _answer(self, body: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Tests are silent."""


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        sock: socket.socket = self.request
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)


class _EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256


class _PageServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextlib.contextmanager
def pages() -> Iterator[int]:
    """A web server on 127.0.0.1; its port."""
    with _serving(_PageServer(("127.0.0.1", 0), _Pages)) as port:
        yield port


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with _serving(_EchoServer(("127.0.0.1", 0), _Echo)) as port:
        yield port


@contextlib.contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    serving = Background(lambda: server.serve_forever(0.05))
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        serving.result()


def pattern(size: int) -> bytes:
    """Bytes that show what is missing or twice."""
    block = b"".join(index.to_bytes(4, "big") for index in range(16384))
    return (block * (size // len(block) + 1))[:size]


def wheel() -> bytes:
    """A small package, the same bytes each time."""
    packed = io.BytesIO()
    info = "sandboxkit_test_package-1.0.dist-info"
    files = {
        "sandboxkit_test_package.py": "VALUE = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return packed.getvalue()


_CLIENT = """
import hashlib, http.client, json, os, socket, struct, sys, urllib.error, urllib.request
def proxy():
    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    return socket.create_connection((host, int(port)), timeout=30)
def fetch(url, data=None, headers={}):
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode("latin-1")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("latin-1")
def whole(sock):
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)
def exactly(sock, size):
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError(data)
        data += part
    return data
def raw(text):
    with proxy() as sock:
        sock.sendall(text.encode("latin-1"))
        return whole(sock).decode("latin-1")
def connect(host, port):
    sock = proxy()
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += exactly(sock, 1)
    return int(head.split()[1]), sock
def socks(host, port):
    sock = proxy()
    sock.sendall(b"\\5\\1\\0" + b"\\5\\1\\0\\3" + bytes([len(host)]) + host.encode() + struct.pack(">H", port))
    assert exactly(sock, 2) == b"\\5\\0"
    return exactly(sock, 10)[1], sock
def through(answered, data):
    code, sock = answered
    with sock:
        if code not in (0, 200):
            return code, whole(sock).decode()
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return code, whole(sock).decode("latin-1")
def pattern(size):
    block = b"".join(index.to_bytes(4, "big") for index in range(16384))
    return (block * (size // len(block) + 1))[:size]
"""


def run_inside(session: Session, program: str) -> str:
    """What a program in Python prints, in the sandbox, with the functions above."""
    return session.exec("python3", ["-c", f"{_CLIENT}\n{program}"], timeout=60).check().stdout


def inside(session: Session, expression: str) -> Any:
    """The value of an expression in the sandbox, with the functions above; through JSON."""
    return json.loads(run_inside(session, f"print(json.dumps({expression}))"))
