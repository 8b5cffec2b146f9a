"""Sandbox: the configuration that sessions are made from."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from os import PathLike

from typing_extensions import Self

from . import _validate as check
from ._bundle import bundle
from ._hooked import open_session
from ._labels import SESSION, owner_labels
from ._lasting import lasting, resume_session
from ._launch import Launched, check_limits, launch
from ._network import PROXY_PORT, proxy_environment
from ._registry import connect
from ._transfer import Seed, sow
from ._volumes import holder_labels, security_for, volume_made
from ._way_out import check_extra
from .backend import WORKSPACE_FOLDER, Backend, ContainerSpec, EngineInfo, Feature, ProgressCallback
from .backend_parts import running_of
from .config import (
    Lifecycle,
    Limits,
    Network,
    NetworkMode,
    Pull,
    Security,
    Workspace,
    WorkspaceKind,
    checked,
    pull_policy,
)
from .errors import ConfigError, SandboxError, UnsupportedError
from .hooks import Hooks
from .session import Session
from .sessions import heal, on_removed
from .version import __version__

__all__ = ["DockerSandbox", "PodmanSandbox", "Sandbox"]


_ROOTFS = "rootfs:"
_HOST_BACKEND = "bubblewrap"


class Sandbox:
    """What sessions are made from: an image, an engine, and what they may use. It holds configuration and does no I/O.

    - `image`: any image; nothing needs to be in it, not even a shell. `rootfs:PATH`, an absolute path, is an unpacked
      root filesystem of this host or a tar of one, and runs under bubblewrap.
    - `backend`: `"docker"`, `"podman"`, another installed one, or `"auto"`: the environment's SANDBOXKIT_BACKEND, else
      the first engine that answers. `url`: the engine's address (SANDBOXKIT_URL goes with SANDBOXKIT_BACKEND); without
      it the places that the engine's own tools look in.
    - `env`, `labels`: of every session. `pull`: `"missing"`, `"never"` or `"always"`; `on_pull` is told of its
      progress.
    - `extra_paths`: absolute paths of folders of this host, which the sandbox sees read-only at the same paths; with a
      virtual environment comes the Python it was made from, and its programs are found first. Bubblewrap alone has it.
    - `lifecycle`: when its sessions end by themselves.
    - `hooks`: who is told what happens in its sessions.

    Raises ConfigError for anything malformed.
    """

    def __init__(
        self,
        image: str,
        backend: str | Backend = "auto",
        url: str | None = None,
        *,
        limits: Limits | None = None,
        network: Network | None = None,
        security: Security | None = None,
        workspace: Workspace | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        pull: Pull | str = Pull.MISSING,
        on_pull: ProgressCallback | None = None,
        extra_paths: Sequence[str | PathLike[str]] = (),
        lifecycle: Lifecycle | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.image = check.image(image)
        if self.image.startswith(_ROOTFS) and backend == "auto":
            backend = _HOST_BACKEND
        if isinstance(backend, type) or not isinstance(backend, Backend):
            check.text("backend", backend, accepted="the name of a backend, such as 'docker', or 'auto'")
        if url is not None:
            check.text("url", url, accepted="an engine's address, such as 'unix:///run/podman/podman.sock', or None")
        if on_pull is not None and not callable(on_pull):
            check.fail("on_pull", on_pull, "a callable that takes one Progress, or None")
        self._backend = backend
        self._url = url
        self.limits = Limits() if limits is None else limits
        self.network = Network.none() if network is None else network
        self.security = Security() if security is None else security
        self.workspace = Workspace.ephemeral() if workspace is None else workspace
        checked("limits", self.limits, Limits, "a Limits")
        checked("network", self.network, Network, "Network.none(), Network.bridge() or Network.allow([...])")
        checked("security", self.security, Security, "a Security")
        checked("workspace", self.workspace, Workspace, "Workspace.ephemeral(), .tmpfs(), .volume() or .bind()")
        self.env = check.environment("env", env)
        self.labels = check.labels(labels)
        self.pull = pull_policy(pull)
        self._on_pull = on_pull
        self.lifecycle = Lifecycle() if lifecycle is None else lifecycle
        checked("lifecycle", self.lifecycle, Lifecycle, "a Lifecycle")
        self.hooks = Hooks() if hooks is None else hooks
        checked("hooks", self.hooks, Hooks, "a Hooks")
        self.extra_paths = check.host_paths("extra_paths", extra_paths)

    @staticmethod
    def host(**options: object) -> Sandbox:
        """The host's own programs, read-only, under bubblewrap: no engine, no daemon, no image, no root.

        What commands see: `/usr` and the folders merged into it, the few files of `/etc` that programs need, a private
        `/tmp`, `/dev` and `/proc`, the workspace, `extra_paths`, and of the environment PATH, LANG and TERM. The
        options are the constructor's.
        """
        return Sandbox("host", _HOST_BACKEND, **options)  # type: ignore[arg-type]

    @classmethod
    def python(cls, **options: object) -> Self:
        """With the official `python:3.12-slim` image. The options are the constructor's."""
        return cls("docker.io/library/python:3.12-slim", **options)  # type: ignore[arg-type]

    @classmethod
    def node(cls, **options: object) -> Self:
        """With the official `node:22-slim` image. The options are the constructor's."""
        return cls("docker.io/library/node:22-slim", **options)  # type: ignore[arg-type]

    @classmethod
    def deno(cls, **options: object) -> Self:
        """With the `denoland/deno` image. The options are the constructor's."""
        return cls("docker.io/denoland/deno:latest", **options)  # type: ignore[arg-type]

    @classmethod
    def bun(cls, **options: object) -> Self:
        """With the `oven/bun` image. The options are the constructor's."""
        return cls("docker.io/oven/bun:slim", **options)  # type: ignore[arg-type]

    def engine(self) -> EngineInfo:
        """What would run a session. EngineUnavailableError when nothing answers."""
        return self._connect().info()

    def create_session(
        self,
        *,
        id: str | None = None,
        files: Mapping[str, bytes | str | PathLike[str]] | None = None,
        directories: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        detached: bool = False,
        keep: bool = False,
    ) -> Session:
        """Start a container and return the session in it; on any error nothing is left behind.

        `id` is unique on the engine (made up when not given); `env` and `labels` are added to the sandbox's own. Before
        the first command the workspace holds `files`, by path: bytes, text, or a file or folder of this machine as a
        `pathlib.Path`; and `directories`. When
        this returns, every setting has been read back from the engine and from inside. Raises ConfigError,
        EngineUnavailableError, ImageNotFoundError, LimitsNotEnforceableError, UnsupportedError or EngineError.

        - `detached`: it lives on when this process ends or is killed, until it is destroyed or its `lifecycle` ends
          it, and `sandboxkit.attach(id)` continues it. Let go of it with `detach()`; leaving its `with` block destroys
          it.
        - `keep`: it can be stopped and resumed with its files; when its process is killed it is stopped. It stays on
          the engine until it is destroyed, or `prune` finds its time to live over.
        """
        started = time.monotonic()
        session_id = check.session_id(uuid.uuid4().hex[:16] if id is None else id)
        merged_env = {**self.env, **check.environment("env", env)}
        merged_labels = {**self.labels, **check.labels(labels)}
        plan = Seed.of(files, directories, WORKSPACE_FOLDER).plan(self.limits.max_file_bytes)
        check.boolean("detached", detached)
        check.boolean("keep", keep)
        check_extra(self.network)
        backend = self._connect()
        self._check_features(backend)
        for feature, name, wanted in ((Feature.DETACHED, "detached", detached), (Feature.RESUME, "keep", keep)):
            if wanted:
                running_of(backend, feature, f"create_session({name}=True)")
        check_limits(self.limits, backend.info())
        backend.ensure_image(self.image, self.pull, self._on_pull)
        heal(backend)
        spec = ContainerSpec(
            name=f"sandboxkit-{session_id}",
            image=self.image,
            agent=bundle(),
            env={**(proxy_environment(PROXY_PORT) if self.network.is_guarded else {}), **merged_env},
            labels={**merged_labels, **_own_labels(session_id), **holder_labels(self.workspace)},
            limits=self.limits,
            network=self.network,
            security=security_for(self.workspace, self.security, backend.info()),
            workspace=self.workspace,
            extra_paths=self.extra_paths,
            detached=detached,
            keep=keep,
        )
        spec = lasting(spec, self.lifecycle)
        made: list[Launched] = []
        try:
            with volume_made(backend, self.workspace, session_id):
                made.extend(map(launch, (backend,), (spec,)))  # no Ctrl-C can come between the two
            (launched,) = made
            session = open_session(
                self.hooks,
                self.image,
                started,
                session_id=session_id,
                container_id=launched.container_id,
                backend=backend,
                connection=launched.connection,
                published=launched.published,
                network=self.network,
                knows_proxy=True,
                limits=self.limits,
                env=merged_env,
                on_removed=on_removed(backend, self.workspace, session_id),
                detached=detached,
                keep=keep,
            )
        except BaseException as error:
            for launched in made:
                launched.discard(backend)
            if isinstance(error, SandboxError):
                error.details.setdefault("session", session_id)
                error.details.setdefault("image", self.image)
            raise
        sow(session, plan, self.limits.max_file_bytes)
        return session

    def _connect(self) -> Backend:
        if isinstance(self._backend, str):
            return connect(self._backend, self._url)
        return self._backend

    def resume(self, id: str, *, network: Network | None = None) -> Session:
        """Start a stopped session again: its files are there, its settings are those it was made with, whatever
        this Sandbox's are.

        Of this Sandbox the engine and the hooks are used; `network` is as in `sandboxkit.attach`. Raises
        SessionNotFoundError, also for one whose time to live is over; ConfigError for one that was made without
        `keep=True`; SessionBusyError when it runs, or another session uses its volume.
        """
        return resume_session(self._connect(), check.session_id(id), self.hooks, network)

    def _check_features(self, backend: Backend) -> None:
        needed = {
            Feature.READONLY_ROOTFS: ("security.readonly_rootfs", self.security.readonly_rootfs),
            Feature.USERS: ("security.user", self.security.user is not None),
            Feature.TMPFS: ("Workspace.tmpfs", self.workspace.kind is WorkspaceKind.TMPFS),
            Feature.VOLUMES: ("Workspace.volume", self.workspace.kind is WorkspaceKind.VOLUME),
            Feature.BINDS: ("Workspace.bind", self.workspace.kind is WorkspaceKind.BIND),
            Feature.BRIDGE: ("Network.bridge", self.network.mode is NetworkMode.BRIDGE),
            Feature.PUBLISHED_PORTS: ("Network.bridge(ports=...)", bool(self.network.ports)),
            Feature.HOST_FILES: ("extra_paths", bool(self.extra_paths)),
        }
        if self.image.startswith(_ROOTFS) and Feature.HOST_FILES not in backend.features:
            raise ConfigError(
                f"image is {self.image!r}; accepted by the backend {backend.name}: the name of an image. A root "
                "filesystem of this host needs backend='bubblewrap', or no backend named.",
                details={"field": "image"},
            )
        for feature, (name, wanted) in needed.items():
            if wanted and feature not in backend.features:
                raise UnsupportedError(
                    f"The backend {backend.name} has no {name}. Leave it out, or use another backend."
                )

    def __repr__(self) -> str:
        name = self._backend if isinstance(self._backend, str) else self._backend.name
        return f"{type(self).__name__}({self.image!r}, backend={name!r})"


class DockerSandbox(Sandbox):
    """A Sandbox on Docker, whatever else is installed."""

    def __init__(self, image: str, url: str | None = None, **options: object) -> None:
        super().__init__(image, "docker", url, **options)  # type: ignore[arg-type]


class PodmanSandbox(Sandbox):
    """A Sandbox on Podman, rootless or not, whatever else is installed."""

    def __init__(self, image: str, url: str | None = None, **options: object) -> None:
        super().__init__(image, "podman", url, **options)  # type: ignore[arg-type]


def _own_labels(session_id: str) -> dict[str, str]:
    return {SESSION: session_id, "sandboxkit.version": __version__, **owner_labels()}
