"""A Backend without an engine: it records every call, and can be told to fail at any of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sandboxkit.backend import (
    AgentBundle,
    ByteStream,
    ContainerSpec,
    ContainerStatus,
    Effective,
    EngineInfo,
    Feature,
    ProgressCallback,
)
from sandboxkit.config import Pull
from sandboxkit.streams import SocketStream

from .fake_agent import BUILD, FakeAgent, hello

__all__ = ["BUNDLE", "IN_FORCE", "FakeBackend"]

BUNDLE = AgentBundle(build=BUILD, paths={"x86_64": Path("/nowhere")})
FEATURES = frozenset(
    {Feature.ISOLATION, Feature.LIMITS, Feature.READONLY_ROOTFS, Feature.USERS, Feature.TMPFS, Feature.BRIDGE}
    | {Feature.PUBLISHED_PORTS}
)
IN_FORCE = Effective(
    network="none",
    memory_bytes=2048 << 20,
    pids=512,
    cpus=0,
    capabilities_dropped=True,
    no_new_privileges=True,
    readonly_rootfs=False,
    privileged=False,
)


class FakeBackend:
    """See `sandboxkit.backend.Backend`.

    `fail` maps a method's name to what it calls first, which may raise. `calls` are the methods called, in order.
    """

    name = "fake"

    def __init__(self, features: frozenset[Feature] = FEATURES) -> None:
        self.features = features
        self.calls: list[str] = []
        self.fail: dict[str, Callable[[], object]] = {}
        self.greeting: bytes = hello()
        self.effective = IN_FORCE
        self.enforceable = frozenset({"memory", "pids", "cpus"})
        self.agents: dict[str, FakeAgent] = {}
        self.streams: list[SocketStream] = []
        self.specs: list[ContainerSpec] = []
        self.removed: list[str] = []
        self._ids = itertools.count(1)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            self.fail[name]()

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> FakeBackend:
        return cls()

    def info(self) -> EngineInfo:
        return EngineInfo(
            backend=self.name,
            url="fake://here",
            version="1",
            api_version="1",
            arch="x86_64",
            rootless=True,
            cgroup_version=2,
            storage_driver="none",
            enforceable=self.enforceable,
        )

    def ensure_image(self, image: str, pull: Pull, progress: ProgressCallback | None = None) -> None:
        self._called("ensure_image")

    def install_agent(self, agent: AgentBundle, image: str) -> None:
        self._called("install_agent")

    def create(self, spec: ContainerSpec) -> str:
        self._called("create")
        self.specs.append(spec)
        container_id = f"c{next(self._ids)}"
        self.agents[container_id] = FakeAgent(b"")
        return container_id

    def attach(self, container_id: str) -> ByteStream:
        self._called("attach")
        self.streams.append(SocketStream(self.agents[container_id].host))
        return self.streams[-1]

    def start(self, container_id: str) -> None:
        self._called("start")
        self.agents[container_id].send(self.greeting)

    def inspect(self, container_id: str) -> ContainerStatus:
        self._called("inspect")
        return ContainerStatus(id=container_id, name="n", running=True, effective=self.effective)

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        self._called("list")
        return []

    def remove(self, container_id: str) -> None:
        self._called("remove")
        self.removed.append(container_id)
        agent = self.agents.pop(container_id, None)
        if agent is not None:
            agent.close()
            agent.host.close()

    def close(self) -> None:
        self._called("close")

    def promise(self, **effective: Any) -> None:
        """What inspect will say."""
        self.effective = attrs.evolve(self.effective, **effective)
