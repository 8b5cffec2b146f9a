"""The way out with TLS made by the host, and with pip: on the agent as a plain local process."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandboxkit import EgressEvent, Limits, Network, Sandbox, Session
from sandboxkit.conformance._outside import PACKAGE, WHEEL, inside, pages, wheel
from tests.support.local import LocalBackend

SECRET = "Bearer s3cret"
DAY = dt.timedelta(days=1)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for that name, and its certificate, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    chain, path = folder / f"{name}.chain", folder / f"{name}.pem"
    chain.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + pem
    )
    path.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context, path


class Api(http.server.BaseHTTPRequestHandler):
    """Tells what it was sent; only with the secret."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        allowed = self.headers.get_all("Authorization") == [SECRET]
        headers = {name.lower(): "(the secret)" if value == SECRET else value for name, value in self.headers.items()}
        body = json.dumps(headers).encode() if allowed else b"who are you?"
        if self.path.startswith("/big"):
            body = bytes(2_000_000)
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """An HTTPS server for api.test; its port and authority."""
    context, authority = certificate(tmp_path, "api.test")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_port, authority
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def session_with(folder: Path, network: Network) -> Iterator[Session]:
    folder.joinpath("engine").mkdir(exist_ok=True)
    backend = LocalBackend(folder / "engine")
    with contextlib.closing(backend):
        sandbox = Sandbox("host", backend, network=network, limits=Limits(allow_unenforced=True))
        with sandbox.create_session() as session:
            yield session


def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def test_a_secret_is_added_outside_and_never_seen_inside(api: tuple[int, Path], tmp_path: Path) -> None:
    port, authority = api
    events: list[EgressEvent] = []
    network = Network.allow(
        ["public.test"],
        private=[f"api.test:{port}"],
        credentials={f"api.test:{port}": {"Authorization": SECRET}},
        ssl_context=ssl.create_default_context(cafile=str(authority)),
        resolver=here,
        audit=events.append,
    )
    with session_with(tmp_path, network) as session:
        status, body = inside(session, f"fetch('http://api.test:{port}/x', None, {{'Authorization': 'mine'}})")
        assert status == 200, body
        assert json.loads(body) == {
            "authorization": "(the secret)",
            "host": f"api.test:{port}",
            "accept-encoding": "identity",
            "user-agent": json.loads(body)["user-agent"],
            "connection": "close",
        }
        assert inside(session, f"len(fetch('http://api.test:{port}/big')[1])") == 2_000_000
        everything = session.exec("sh", ["-c", "env; cat /proc/self/environ; find . -type f -exec cat {} +"]).stdout
        assert "s3cret" not in everything
    assert [(event.protocol, event.verdict) for event in events] == [("https", "allowed")] * 2
    assert "s3cret" not in repr(events)


def test_a_server_that_can_not_prove_its_name_gets_nothing(api: tuple[int, Path], tmp_path: Path) -> None:
    port, authority = api
    for name, context in (
        ("api.test", None),  # an authority that the system does not know
        ("other.test", ssl.create_default_context(cafile=str(authority))),
    ):
        network = Network.allow(
            ["public.test"],
            private=[f"{name}:{port}"],
            credentials={f"{name}:{port}": {"Authorization": SECRET}},
            ssl_context=context,
            resolver=here,
        )
        with session_with(tmp_path, network) as session:
            status, body = inside(session, f"fetch('http://{name}:{port}/x')")
            assert (status, "TLS can't be trusted" in body) == (502, True), body


def test_pip_downloads_a_package_through_it(tmp_path: Path) -> None:
    with pages() as web:
        network = Network.allow(["public.test"], private=[f"index.test:{web}"], resolver=here)
        with session_with(tmp_path, network) as session:
            pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
            options = ["--no-deps", "--no-cache-dir", "--trusted-host", f"index.test:{web}"]
            index = ["--index-url", f"http://index.test:{web}/simple/"]
            # pip's own configuration of this machine names other places to look.
            clean = {
                "PIP_CONFIG_FILE": "/dev/null",
                "PIP_FIND_LINKS": "",
                "PIP_EXTRA_INDEX_URL": "",
                "PIP_CONSTRAINT": "",
            }
            download = [*pip[1:], "download", *options, *index, PACKAGE]
            session.exec(pip[0], download, timeout=100, env=clean).check()
            assert session.files.read(WHEEL) == wheel()
            away = ["--index-url", "http://denied.test/simple/", "--trusted-host", "denied.test", "--retries", "0"]
            refused = session.exec(pip[0], [*pip[1:], "download", *away, PACKAGE], timeout=100, env=clean)
            assert not refused.ok
