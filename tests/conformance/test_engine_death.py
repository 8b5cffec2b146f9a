"""An engine that dies in the middle of a command: on engines of the test's own, which it may kill."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import _services
import pytest
from sandboxkit_docker import DockerBackend
from sandboxkit_podman import PodmanBackend

from sandboxkit import Sandbox, Session, SessionLostError, SessionState
from sandboxkit.backend import Backend
from sandboxkit.conformance._inside import fresh, sh, wait_for_file
from sandboxkit.conformance._threads import Background
from sandboxkit.conformance._watch import Stopwatch, allowed, host_processes, wait_until
from sandboxkit.errors import SandboxError

from .engines import ADVICE, IMAGES, UnixConnection, address, ask

pytestmark = pytest.mark.engine

BUSYBOX = Path(__file__).parent.parent.parent / "build/images/busybox.tar"


class OwnEngine:
    """An engine's service, started for one test and killed by it."""

    def __init__(self, command: Sequence[str], url: str, folder: Path, environment: dict[str, str]) -> None:
        self.url = url
        self._folder = folder
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
            try:
                return ask(self.url, "/version") is not None
            except AssertionError:
                return False

        wait_until(ready, "the engine answers", 60)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Nothing that it started outlives it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(30)
        wait_until(self._killed, "its processes are gone", 30)

    def _killed(self) -> bool:
        found = [pid for pid, *_ in host_processes() if str(self._folder) in _command_line(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def stops(session: Session, engine: OwnEngine) -> None:
    """The waiting exec and the waiting stream raise; so does every later call; nothing hangs."""
    path = fresh()
    running = Background(lambda: sh(session, 'touch "$1"; exec sleep 1000', path))
    stream = session.exec_stream("sh", ["-c", "echo up; exec sleep 1000"])
    next(stream)
    wait_for_file(session, path)
    with Stopwatch() as watch:
        engine.kill()
        with pytest.raises(SessionLostError, match="Create a new session"):
            running.result()
        with pytest.raises(SessionLostError):
            next(stream)
    assert watch.seconds < allowed(2)
    assert session.state is SessionState.LOST
    with pytest.raises(SessionLostError):
        session.exec("true")


@pytest.fixture
def own_podman(tmp_path: Path) -> Iterator[OwnEngine]:
    """A second service beside the first: it shares the storage, and no container hangs on it."""
    address("podman", rootless=False)
    if os.geteuid() != 0:
        pytest.fail(f"this test starts a service of its own, as root: {ADVICE}")
    service = _services.podman()
    url = f"unix://{tmp_path}/podman.sock"
    command = [part.replace(service.engine.url, url) for part in service.command]
    engine = OwnEngine(command, url, tmp_path, service.environment)
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.close()


@pytest.fixture
def own_docker(tmp_path: Path) -> Iterator[OwnEngine]:
    """A second daemon in namespaces of its own, or it would take the first one's bridge away."""
    address("docker", rootless=False)
    if os.geteuid() != 0:
        pytest.fail(f"this test starts a daemon of its own, as root: {ADVICE}")
    url = f"unix://{tmp_path}/docker.sock"
    command = [
        *("unshare", "--net", "--mount", "dockerd", "--host", url),
        *("--data-root", f"{tmp_path}/data", "--exec-root", f"{tmp_path}/exec", "--pidfile", f"{tmp_path}/pid"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false"),
    ]
    engine = OwnEngine(command, url, tmp_path, _services.docker().environment)
    try:
        engine.wait_ready()
        import_image(url, BUSYBOX, IMAGES["shell"])
        yield engine
    finally:
        engine.close()
        # Its mounts went with its last process; what Docker made immutable or deep is no matter for pytest then.
        subprocess.run(["rm", "-rf", str(tmp_path / "data"), str(tmp_path / "exec")], check=True)


def import_image(url: str, path: Path, name: str) -> None:
    """POST /images/create of Docker's API, with a root filesystem as its body."""
    assert path.is_file(), f"{path} is missing: {ADVICE}"
    connection = UnixConnection(url.removeprefix("unix://"))
    with contextlib.closing(connection), path.open("rb") as body:
        headers = {"Content-Type": "application/x-tar", "Content-Length": str(path.stat().st_size)}
        connection.request("POST", f"/images/create?fromSrc=-&repo={name}", body=body, headers=headers)
        response: http.client.HTTPResponse = connection.getresponse()
        answer = response.read()
    assert response.status == 200, answer


def lose_the_engine(backend: Backend, engine: OwnEngine) -> Session:
    session = Sandbox(IMAGES["shell"], backend, pull="never").create_session()
    stops(session, engine)
    return session


def test_podmans_service_dies_in_mid_exec(own_podman: OwnEngine) -> None:
    """With an engine stopped mid-session the waiting exec raises SessionLostError within 2 s."""
    backend = PodmanBackend.connect(own_podman.url, may_start=False)
    session = lose_the_engine(backend, own_podman)
    # The container ends with its stream, and the engine's other service sees it go.
    other = PodmanBackend.connect(address("podman", rootless=False), may_start=False)
    try:
        wait_until(lambda: not other.list({"sandboxkit.session": session.id}), "the container is gone", 10)
    finally:
        other.close()
    with pytest.raises(SandboxError) as caught:
        session.destroy()
    assert caught.value.retryable
    backend.close()


def test_dockers_daemon_dies_in_mid_exec(own_docker: OwnEngine) -> None:
    """With an engine stopped mid-session the waiting exec raises SessionLostError within 2 s."""
    backend = DockerBackend.connect(own_docker.url, may_start=False)
    session = lose_the_engine(backend, own_docker)
    with pytest.raises(SandboxError) as caught:
        session.destroy()
    assert caught.value.retryable
    backend.close()


def test_an_engine_that_stands_still_does_not_hold_destroy_up_for_ever(own_podman: OwnEngine) -> None:
    """Every engine call has a deadline. This service is stopped, not dead: it takes calls and answers none."""
    backend = PodmanBackend.connect(own_podman.url, may_start=False, timeout=3)
    session = Sandbox(IMAGES["shell"], backend, pull="never").create_session()
    os.kill(own_podman._process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(SandboxError) as caught:
            session.destroy()
        assert time.monotonic() - start < allowed(10)
        assert caught.value.retryable
    finally:
        os.kill(own_podman._process.pid, signal.SIGCONT)
    session.destroy()
    assert session.state is SessionState.DESTROYED
    backend.close()
