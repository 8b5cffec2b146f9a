"""Engines that are reached over TCP, and over TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _http import Engine
from sandboxkit_docker import DockerBackend

from sandboxkit.backend import AgentBundle
from sandboxkit.errors import EngineUnavailableError

from .conftest import connect, engine_named
from .fakes import forwarding
from .lab import Lab

BLOCK = bytes(range(256)) * 400


def exercise(lab: Lab) -> None:
    with lab.running("/bin/cat") as running:
        for _ in range(5):
            running.send(BLOCK)
            assert running.receive_exactly(len(BLOCK)) == BLOCK
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
def certificates(tmp_path: Path) -> Iterator[Path]:
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
    yield tmp_path


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
