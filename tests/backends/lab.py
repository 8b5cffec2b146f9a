"""What the tests of the backends share: containers that run a command of their image, and a look behind the backend."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from _http import Engine, Reply

from sandboxkit.backend import AgentBundle, AgentMissing, Backend, ByteStream, ContainerSpec
from sandboxkit.config import Pull
from sandboxkit.errors import EngineError

BUSYBOX = "sandboxkit-test/busybox"
NONROOT = "sandboxkit-test/nonroot"
EMPTY = "sandboxkit-test/empty"
LABEL = "test.sandboxkit.lab"

_RUNNER = Path(__file__).with_name("runner.c")
_BUILD = Path(__file__).parents[2] / "build" / "tests"


class Output(NamedTuple):
    """Of a command that ended by itself."""

    stdout: str
    stderr: str


class Running(NamedTuple):
    """A container whose command runs."""

    id: str
    stream: ByteStream

    def receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = bytes(self.stream.receive())
            assert chunk, f"the stream ended after {data!r}; {self.stream.diagnostics()}"
            data += chunk
        return data

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.stream.send(view) :]


class Lab:
    """One engine, its backend, and what a test makes there."""

    def __init__(self, engine: Engine, backend: Backend, agent: AgentBundle) -> None:
        self.engine = engine
        self.backend = backend
        self.agent = agent
        self.token = uuid.uuid4().hex
        self.volumes: set[str] = set()

    def spec(self, *command: str, image: str = BUSYBOX, **settings: Any) -> ContainerSpec:
        settings.setdefault("agent", self.agent)
        return ContainerSpec(
            name=f"lab-{uuid.uuid4().hex[:12]}",
            image=image,
            agent_args=command,
            labels={LABEL: self.token, **settings.pop("labels", {})},
            **settings,
        )

    def create(self, spec: ContainerSpec) -> str:
        """As a session does it, up to the container that is not started; its anonymous volumes are remembered."""
        self.backend.ensure_image(spec.image, Pull.NEVER)
        self.backend.install_agent(spec.agent, spec.image)
        container_id = self.backend.create(spec)
        self.volumes |= self.volumes_of(container_id)
        return container_id

    @contextmanager
    def running(self, *command: str, **settings: Any) -> Iterator[Running]:
        container_id = self.create(self.spec(*command, **settings))
        try:
            stream = self.backend.attach(container_id)
            try:
                self.backend.start(container_id)
                yield Running(container_id, stream)
            finally:
                stream.close()
        finally:
            self.backend.remove(container_id)

    def fails(self, *command: str, **settings: Any) -> EngineError:
        """Why a container does not start. As a session does it, a missing agent is put there again, once."""
        error: Exception = AssertionError("it started")
        for _ in range(2):
            try:
                with self.running(*command, **settings):
                    break
            except AgentMissing as missing:
                error = missing
            except EngineError as found:
                return found
        raise error

    def run(self, script: str, **settings: Any) -> Output:
        """What a shell script says, from its start to its end."""
        with self.running("/bin/sh", "-c", script, **settings) as running:
            data = b""
            while chunk := bytes(running.stream.receive()):
                data += chunk
            return Output(data.decode(), running.stream.diagnostics())

    def request(self, method: str, target: str, body: Path | object = None) -> Reply:
        """The engine's own API, past the backend: libpod's on Podman."""
        prefix = "/v4.0.0/libpod" if self.engine.backend == "podman" else ""
        return self.engine.request(method, prefix + target, body)

    def inspect(self, container: str) -> Any:
        return self.request("GET", f"/containers/{container}/json").json()

    def volumes_of(self, container: str) -> set[str]:
        """A container's volumes, but for an agent's."""
        mounts = self.inspect(container)["Mounts"]
        names = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
        return {name for name in names if not name.startswith("sandboxkit-agent-")}

    def volume_exists(self, name: str) -> bool:
        path = f"/volumes/{quote(name)}" + ("/json" if self.engine.backend == "podman" else "")
        return self.request("GET", path).status == 200

    def remove_volume(self, name: str) -> None:
        reply = self.request("DELETE", f"/volumes/{quote(name)}")
        assert reply.status in (204, 404), reply.text

    def import_image(self, name: str, tar: Path, *changes: str) -> None:
        query = "&".join(f"changes={quote(change)}" for change in changes)
        if self.engine.backend == "podman":
            reply = self.request("POST", f"/images/import?reference={name}&{query}", tar)
        else:
            reply = self.request("POST", f"/images/create?fromSrc=-&repo={name}&{query}", tar)
        assert reply.ok, reply.text
        self.backend.ensure_image(name, Pull.NEVER)

    def remove_image(self, name: str) -> None:
        self.request("DELETE", f"/images/{name}?force=true")

    def left_over(self) -> list[str]:
        """What the tests made and is still there."""
        containers = [container.name for container in self.backend.list({LABEL: self.token})]
        return containers + [name for name in self.volumes if self.volume_exists(name)]


def runner_bundle() -> AgentBundle:
    """The runner, compiled for this machine when its source changed."""
    arch = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    digest = hashlib.sha256(_RUNNER.read_bytes()).hexdigest()[:16]
    binary = _BUILD / f"runner-{arch}-{digest}"
    if not binary.exists():
        _BUILD.mkdir(parents=True, exist_ok=True)
        part = binary.with_suffix(f".{uuid.uuid4().hex}")
        command = ["-m", "ziglang", "cc", "-target", f"{arch}-linux-none", "-nostdlib", "-static", "-Os", "-s"]
        subprocess.run([sys.executable, *command, str(_RUNNER), "-o", str(part)], check=True, timeout=300)
        part.replace(binary)
    # Its volume is this process's own: tests that run beside it fill and remove theirs.
    own = hashlib.sha256(f"{digest} {os.getpid()}".encode()).hexdigest()[:16]
    return AgentBundle(build=own, paths={arch: binary})
