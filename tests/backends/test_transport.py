"""Engines that are reached over TCP, and over TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from _http import Engine
from sandboxkit_docker import DockerBackend

from sandboxkit.backend import AgentBundle
from sandboxkit.errors import EngineUnavailableError

from .conftest import connect, engine_named
from .fakes import DOCKER_INFO, DOCKER_VERSION, PODMAN_INFO, PODMAN_VERSION, FakeEngine, forwarding, serving_unix
from .lab import Lab

BLOCK = bytes(range(256)) * 400
COUNT = 40


def exercise(lab: Lab) -> None:
    """Both ways at once, and more than all buffers hold."""
    with lab.running("/bin/cat") as running:
        sender = threading.Thread(target=lambda: [running.send(BLOCK) for _ in range(COUNT)])
        sender.start()
        assert running.receive_exactly(COUNT * len(BLOCK)) == BLOCK * COUNT
        sender.join(30)
    assert lab.run("echo first; echo oh >&2") == ("first\n", "oh")
    assert lab.left_over() == []


def test_a_session_over_tcp(engine: Engine, agent: AgentBundle) -> None:
    with forwarding(str(engine.socket)) as port:
        backend = connect(Engine(engine.backend, f"tcp://127.0.0.1:{port}", engine.rootless))
        try:
            assert backend.info().url == f"tcp://127.0.0.1:{port}"
            exercise(Lab(engine, backend, agent))
        finally:
            backend.close()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """ca.pem, cert.pem and key.pem, as DOCKER_CERT_PATH has them: one self-signed certificate for both ends."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed to make a certificate"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    shutil.copy(tmp_path / "cert.pem", tmp_path / "ca.pem")
    return tmp_path


@pytest.mark.engine
def test_a_docker_session_over_tls(certificates: Path, agent: AgentBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    engine = engine_named("docker")
    with forwarding(str(engine.socket), context) as port:
        monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
        with pytest.raises(EngineUnavailableError):
            DockerBackend.connect(f"https://localhost:{port}")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://localhost:{port}")
        backend = DockerBackend.connect()
        try:
            exercise(Lab(engine, backend, agent))
        finally:
            backend.close()


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder+50% #1?é"
    folder.mkdir()
    return folder


def test_a_socket_path_may_have_any_character(engine: Engine, agent: AgentBundle, odd_folder: Path) -> None:
    path = odd_folder / "engine.sock"
    path.symlink_to(engine.socket)
    backend = connect(Engine(engine.backend, f"unix://{quote(str(path))}", engine.rootless))
    try:
        exercise(Lab(engine, backend, agent))
    finally:
        backend.close()


FRAME = b"\x01\0\0\0\0\0\0\x05"
SWITCHED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_what_came_with_the_headers_is_not_lost(name: str, tmp_path: Path) -> None:
    """The server sends its answer, a frame and a half in one piece, and the rest later."""
    fake = FakeEngine(*((DOCKER_VERSION, DOCKER_INFO) if name == "docker" else (PODMAN_VERSION, PODMAN_INFO)))
    with serving_unix(tmp_path / "known", fake) as url:
        backend: Any = connect(Engine(name, url))
    (tmp_path / "known").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "known"))
        server.listen()

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += peer.recv(4096)
                assert b"Upgrade: tcp" in request
                peer.sendall(SWITCHED + FRAME + b"early" + FRAME + b"la")
                assert peer.recv(10) == b"go on"
                peer.sendall(b"ter")

        thread = threading.Thread(target=serve)
        thread.start()
        stream = backend.attach("c0ffee")
        received = bytes(stream.receive())
        while len(received) < 7:
            received += bytes(stream.receive())
        assert received == b"earlyla"
        assert stream.send(memoryview(b"go on")) == 5
        assert bytes(stream.receive()) == b"ter"
        assert bytes(stream.receive()) == b""
        stream.close()
        thread.join(10)
        backend.close()
