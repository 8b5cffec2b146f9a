"""The contract between the core and an engine: what a backend has to do, and the values that pass between them.

A backend knows containers and byte streams. It knows nothing of commands, files or tools: those are the agent's, which
the core speaks to over the stream that `attach` returns. `sandboxkit.conformance` holds a backend to all of this.

Rules for every method: it has a deadline (the backend's `timeout`, seconds) and may be called from any thread; it
raises only the errors of `sandboxkit.errors`, told apart by the engine's status codes, never by its English text; an
error that leaves something behind is a defect.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs

from .config import Limits, Network, Pull, Security, Workspace

__all__ = [
    "AGENT_FOLDER",
    "WORKSPACE_FOLDER",
    "AgentBundle",
    "AgentMissing",
    "Backend",
    "ByteStream",
    "ContainerSpec",
    "ContainerStatus",
    "Effective",
    "EngineInfo",
    "Feature",
    "Progress",
    "ProgressCallback",
]

AGENT_FOLDER = "/.sandboxkit"
"""Where the agent's volume is mounted, read-only; the program is `AGENT_FOLDER + "/agent"`."""

WORKSPACE_FOLDER = "/workspace"
"""Where the workspace is mounted."""


class Feature(str, enum.Enum):
    """What a backend can do beyond the contract; the conformance suite tests exactly what is declared."""

    IMAGES = "images"
    """Named images: `ensure_image` finds and pulls them."""
    ISOLATION = "isolation"
    """Capabilities, no-new-privileges, seccomp and the network setting are in force inside."""
    LIMITS = "limits"
    """The limits named by `EngineInfo.enforceable` are in force inside."""
    READONLY_ROOTFS = "readonly_rootfs"
    """`Security.readonly_rootfs` holds."""
    USERS = "users"
    """`Security.user` and an image's own user hold."""
    TMPFS = "tmpfs"
    """`Workspace.tmpfs` holds."""
    BRIDGE = "bridge"
    """`Network.bridge` holds."""
    PUBLISHED_PORTS = "published_ports"
    """The ports of `Network.bridge(ports=[...])` are published, at 127.0.0.1 of the engine's host alone."""
    VOLUMES = "volumes"
    """Named volumes: the backend has the part `volumes` (`sandboxkit.backend_parts`)."""
    HOST_FILES = "host_files"
    """Files of the host's own: the images `host` and `rootfs:PATH`, and `ContainerSpec.extra_paths`."""
    BINDS = "binds"
    """`Workspace.bind` holds."""
    DETACHED = "detached"
    """Sessions that outlive their stream: the backend has the part `running` (`sandboxkit.backend_parts`)."""
    RESUME = "resume"
    """Sessions that can be stopped and resumed: the backend has the part `running`."""
    SNAPSHOTS = "snapshots"
    """Images made of sessions: the backend has the part `snapshots` (`sandboxkit.backend_parts`)."""
    CRASH_CLEANUP = "crash_cleanup"
    """When the host process is killed, container and volume go by themselves."""


@attrs.frozen(kw_only=True)
class EngineInfo:
    """What answers behind a backend. `enforceable`: those of memory, pids, cpus and disk that it enforces.

    `notes`: sentences for people on what this engine does otherwise, such as a second best for a limit.
    """

    backend: str
    url: str
    version: str
    api_version: str
    arch: str
    rootless: bool
    cgroup_version: int
    storage_driver: str
    enforceable: frozenset[str]
    runtimes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Progress:
    """One step of a pull: `layer` is the engine's id of it (may be empty), bytes are None where it does not say."""

    image: str
    status: str
    layer: str = ""
    current: int | None = None
    total: int | None = None


ProgressCallback = Callable[[Progress], None]


@attrs.frozen(kw_only=True)
class AgentBundle:
    """The agent of this installation: `build` is 16 hex digits, `paths` maps an architecture to its binary."""

    build: str
    paths: Mapping[str, Path]

    @property
    def volume(self) -> str:
        """The name of the volume that holds this very agent."""
        return f"sandboxkit-agent-{self.build}"

    def read(self, arch: str) -> bytes:
        """The binary for `arch` (`x86_64` or `aarch64`); KeyError for another."""
        return self.paths[arch].read_bytes()


class AgentMissing(Exception):  # noqa: N818 - a turn in the flow, not an error anyone sees
    """Raised by `Backend.start` when the container could not start because the agent is not (wholly) in its volume.

    The core then calls `install_agent` again and starts a new container; it never reaches a user.
    """


@attrs.frozen(kw_only=True)
class ContainerSpec:
    """Everything a backend needs to make one session's container.

    The container's name is `name`; its entrypoint is the agent with `agent_args`, never the image's; health check off;
    standard input open, once; no terminal; log driver none; removed by the engine when it ends, with its anonymous
    volumes; stop signal SIGKILL; security: all capabilities dropped, no-new-privileges, engine's
    default seccomp unless `security.seccomp`. `env` is set over the image's environment. nofile and nproc are set
    explicitly, no higher than the host allows. `extra_paths`: absolute paths of host folders, mounted read-only at the
    same paths; ConfigError for one that is not there. `network`: its `mode` and, with a bridge, its `ports`, each
    published at 127.0.0.1 and a host port that the engine chooses; all else of it is the core's.
    """

    name: str
    image: str
    agent: AgentBundle
    agent_args: tuple[str, ...] = ("--workspace", WORKSPACE_FOLDER)
    env: Mapping[str, str] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=Limits)
    network: Network = attrs.field(factory=Network.none)
    security: Security = attrs.field(factory=Security)
    workspace: Workspace = attrs.field(factory=Workspace.ephemeral)
    detached: bool = False
    keep: bool = False
    extra_paths: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Effective:
    """What is in force, read back from the engine. None where the engine does not say; 0 for "no limit".

    `published`: by the container's TCP port, every address and port of the engine's host it is published at, as they
    are while the container runs.
    """

    network: str | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    capabilities_dropped: bool | None = None
    no_new_privileges: bool | None = None
    readonly_rootfs: bool | None = None
    privileged: bool | None = None
    runtime: str | None = None
    published: Mapping[int, Sequence[tuple[str, int]]] | None = None


@attrs.frozen(kw_only=True)
class ContainerStatus:
    """A container as the engine sees it. `never_started`: it was made and has not run yet.

    `pid`: of its first process, as this machine numbers them; None where the engine does not say or is elsewhere.
    `image`: the engine's id of what it was made from; empty where it does not say.
    """

    id: str
    name: str
    running: bool
    never_started: bool = False
    pid: int | None = None
    image: str = ""
    exit_code: int | None = None
    oom_killed: bool = False
    labels: Mapping[str, str] = attrs.field(factory=dict)
    effective: Effective = attrs.field(factory=Effective)


class ByteStream(Protocol):
    """The attached stream: what is sent reaches the agent's standard input, what is received is its standard output.

    One thread receives; senders are serialised by the caller. `sandboxkit.streams` has the two implementations most
    backends need.
    """

    @property
    def send(self) -> Callable[[memoryview], int]:
        """Sends at least one byte and returns how many; TimeoutError when none could go for the stream's timeout.

        It should be a C function (a socket's own bound method): then a KeyboardInterrupt can't fall between the system
        call and its return value, and a frame is never sent by halves.
        """
        ...

    def receive(self) -> memoryview:
        """The next bytes of the agent's standard output; empty at the end. The view holds until the next call.

        TimeoutError when nothing came for the stream's timeout (call again); OSError when the connection broke.
        """
        ...

    def diagnostics(self) -> str:
        """The last lines of the agent's standard error, for an error message; empty when there are none."""
        ...

    def shutdown(self) -> None:
        """End it both ways: the agent sees end of input, a `receive` blocked in another thread returns. Idempotent."""
        ...

    def close(self) -> None:
        """Give the descriptors back. No other thread may be inside. Idempotent."""
        ...


@runtime_checkable
class Backend(Protocol):
    """One engine at one address. Called by the core alone; users see `Sandbox`."""

    @property
    def name(self) -> str:
        """The entry point's name, such as `docker`."""
        ...

    @property
    def features(self) -> frozenset[Feature]:
        """What this backend can do; constant."""
        ...

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float = 60.0, may_start: bool = True) -> Backend:
        """Find the engine: at `url` alone when given, else in the places its own tools look, in their order.

        `may_start` allows starting a service where the engine needs none running otherwise; it lives as long as this
        process. Raises EngineUnavailableError with `details["tried"]`, a list of `"address: reason"`, and a message
        that lists them and says how to start the engine. ConfigError for a malformed `url`.
        """
        ...

    def info(self) -> EngineInfo:
        """What answers. May be cached for the life of the backend."""
        ...

    def ensure_image(self, image: str, pull: Pull, progress: ProgressCallback | None = None) -> None:
        """Afterwards the engine has `image`; `progress` runs on this thread. ImageNotFoundError says how to get it."""
        ...

    def install_agent(self, agent: AgentBundle, image: str) -> None:
        """Afterwards the agent's volume holds the whole binary for the engine's architecture.

        `image` is one that is present, for a helper container that is never started. Several processes may do this at
        once, and the volume may be pruned at any moment after: see AgentMissing. Leaves nothing but the volume behind.
        Cheap when it was done before.
        """
        ...

    def create(self, spec: ContainerSpec) -> str:
        """Make the container, not started, and return the engine's id of it. On any error nothing is left.

        Raises ConfigError when a container of that name exists (it is not touched), ImageNotFoundError, EngineError.
        """
        ...

    def attach(self, container_id: str) -> ByteStream:
        """The stream of a container that is created and not yet started. Called once."""
        ...

    def start(self, container_id: str) -> None:
        """Run it. Raises AgentMissing or EngineError; the caller removes the container then."""
        ...

    def inspect(self, container_id: str) -> ContainerStatus:
        """Raises SessionNotFoundError when the engine does not have it (any more)."""
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        """Containers, running or not, with all these labels (an empty value matches any); `effective` may be empty."""
        ...

    def remove(self, container_id: str) -> None:
        """End it at once (SIGKILL) and remove it with its anonymous volumes; then the engine no longer lists it.

        No error when it is gone already, or going. Raises EngineError when it is still there at the deadline.
        """
        ...

    def close(self) -> None:
        """Give connections back; ends a service that `connect` started. Idempotent."""
        ...
