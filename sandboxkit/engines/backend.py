"""The Backend contract on top of an engine's API: all that Docker's and Podman's backends have in common.

Nothing here looks at an engine's words, and little at its status codes: when a call fails, the engine is asked what
is the case (is there such a container, is the image there, is the agent whole), and the answer decides.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

import attrs

from sandboxkit._labels import PREFIX, ROLE, TEMPORARY, owner_labels
from sandboxkit.backend import (
    AGENT_FOLDER,
    WORKSPACE_FOLDER,
    AgentBundle,
    AgentMissing,
    ByteStream,
    ContainerSpec,
    ContainerStatus,
    EngineInfo,
    Feature,
    ProgressCallback,
)
from sandboxkit.backend_parts import Running, Snapshots, Volumes
from sandboxkit.config import Limits, Pull, WorkspaceKind
from sandboxkit.errors import (
    ConfigError,
    EngineError,
    ImageNotFoundError,
    SandboxError,
    SessionNotFoundError,
    UnsupportedError,
)

from .api import ContainerRequest, EngineApi, ImageFacts
from .archives import agent_archive
from .deadlines import wait_until

__all__ = ["AGENT_VOLUME_LABELS", "ENGINE_FEATURES", "EngineBackend", "anonymous_labels", "helper_labels"]

ENGINE_FEATURES = frozenset(Feature) - {Feature.HOST_FILES}
"""Both engines can do everything that needs no files of this host: they may be on another one."""

AGENT_VOLUME_LABELS: Mapping[str, str] = {"sandboxkit.role": "agent"}
# Marks a container as made by one call of `create`, so that cleaning up after a failed call can't touch another's of
# the same name.
_CALL_LABEL = "sandboxkit.call"
_AGENT = f"{AGENT_FOLDER}/agent"
_JUST_NOW = 30.0
_STILL_CREATING = 2.0


def helper_labels() -> dict[str, str]:
    """Of a container that is never started and lives for one call: `prune` removes it when its owner is gone."""
    return {ROLE: "agent-installer", **owner_labels()}


def anonymous_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Of a volume that goes with its container: the container's own that say whose it is, so that `prune` can tell."""
    return {**{name: value for name, value in labels.items() if name.startswith(PREFIX)}, TEMPORARY: "1"}


class EngineBackend:
    """A Backend (see `sandboxkit.backend.Backend`, whose docstrings hold here) over an EngineApi."""

    def __init__(self, api: EngineApi, *, name: str, timeout: float) -> None:
        self._api = api
        self._name = name
        self._timeout = timeout
        self._info = api.info()
        self._images: dict[str, ImageFacts] = {}
        self._installed: set[str] = set()
        # By the image's id, the uid that owns its own WORKSPACE_FOLDER, None where it has no such folder.
        self._workspace_owners: dict[str, int | None] = {}
        self._seen: dict[str, float] = {}  # by volume, when the agent there was made that a start failed with
        self._uids: dict[tuple[str, str], int | None] = {}
        # What start() needs in order to say why it failed; from create() until the container runs or is removed.
        self._waiting: dict[str, ContainerSpec] = {}

    @property
    def name(self) -> str:
        """See Backend.name."""
        return self._name

    @property
    def features(self) -> frozenset[Feature]:
        """See Backend.features."""
        return ENGINE_FEATURES

    @property
    def running(self) -> Running:
        """See sandboxkit.backend_parts."""
        return self._api.running

    @property
    def snapshots(self) -> Snapshots:
        """See sandboxkit.backend_parts."""
        return self._api.snapshots

    @property
    def volumes(self) -> Volumes:
        """See sandboxkit.backend_parts."""
        return self._api.volumes

    def info(self) -> EngineInfo:
        """See Backend.info."""
        return self._info

    def ensure_image(self, image: str, pull: Pull, progress: ProgressCallback | None = None) -> None:
        """See Backend.ensure_image."""
        if pull is not Pull.ALWAYS and self._look_up(image):
            return
        command = self._api.pull_command(image)
        if pull is Pull.NEVER:
            raise ImageNotFoundError(
                f"{self._api.engine} has no image {image!r}, and pull='never' forbids fetching it: run `{command}`, "
                "or use pull='missing'",
                details={"image": image},
            )
        try:
            self._api.pull(image, progress)
        except EngineError as error:
            raise ImageNotFoundError(
                f"{self._api.engine} could not pull the image {image!r}: {error.details.get('reason', error)}; "
                f"see whether `{command}` works, or name an image that is there with pull='never'",
                details={**error.details, "image": image},
                retryable=error.retryable,
            ) from error
        if not self._look_up(image):
            raise ImageNotFoundError(
                f"{self._api.engine} says it pulled {image!r}, but does not have it under that name",
                details={"image": image},
            )

    def install_agent(self, agent: AgentBundle, image: str) -> None:
        """See Backend.install_agent."""
        facts = self._images.get(image) or self._look_up(image)
        if agent.volume in self._installed and facts is not None and facts.id in self._workspace_owners:
            return
        size = self._agent_size(agent)
        self._api.ensure_volume(agent.volume, AGENT_VOLUME_LABELS)
        with self._helper(agent, image) as helper:

            def is_whole() -> bool:
                found = self._api.files.stat(helper, _AGENT)
                return found is not None and found.size == size

            if not is_whole():
                self._api.files.put(helper, AGENT_FOLDER, agent_archive(agent.read(self._info.arch)))
                # Another process that fills the volume at the same time takes the name away for a moment.
                if not wait_until(is_whole, min(self._timeout, 10)):
                    raise EngineError(
                        f"{self._api.engine} took the agent for the volume {agent.volume}, but it is not there; "
                        f"remove that volume and try again",
                        retryable=True,
                        details={"operation": "install agent"},
                    )
            if facts is not None:
                self._workspace_owners[facts.id] = self._api.files.owner(helper, WORKSPACE_FOLDER)
        self._installed.add(agent.volume)

    def create(self, spec: ContainerSpec) -> str:
        """See Backend.create."""
        self._check_runtime(spec.security.runtime)
        image = self._images.get(spec.image) or self._look_up(spec.image)
        call = secrets.token_hex(8)
        request = ContainerRequest(
            spec=spec,
            image=image.reference if image else spec.image,
            labels={**spec.labels, _CALL_LABEL: call},
            limits=self._enforceable(spec.limits),
            ulimits=self._api.ulimits(),
        )
        try:
            container_id = self._api.create(request)
            self._waiting[container_id] = spec
            self._prove_runtime(container_id, spec.security.runtime)
            if self._must_give(spec, image):
                with self._missing_agent_noticed(container_id):
                    self._give_workspace(container_id, spec, image)
        except BaseException as error:
            self._clean_up_create(spec, call, error)
            raise
        return container_id

    def attach(self, container_id: str) -> ByteStream:
        """See Backend.attach."""
        with self._missing_agent_noticed(container_id):
            return self._api.attach(container_id)

    def start(self, container_id: str) -> None:
        """See Backend.start."""
        with self._missing_agent_noticed(container_id):
            self._api.start(container_id)
        self._waiting.pop(container_id, None)

    def inspect(self, container_id: str) -> ContainerStatus:
        """See Backend.inspect."""
        found = self._api.inspect(container_id)
        if found is None:
            raise SessionNotFoundError(
                f"{self._api.engine} has no container {container_id}: it ended and was removed",
                details={"container": container_id},
            )
        # Anything but a socket of this machine leads to processes of another one.
        return found if self._info.url.startswith("unix:") else attrs.evolve(found, pid=None)

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        """See Backend.list."""
        return self._api.list(labels)

    def remove(self, container_id: str) -> None:
        """See Backend.remove."""
        self._remove(container_id)
        self._waiting.pop(container_id, None)

    def close(self) -> None:
        """See Backend.close."""
        self._api.close()

    def _look_up(self, image: str) -> ImageFacts | None:
        found = self._api.image(image)
        if found is None:
            self._images.pop(image, None)
        else:
            self._images[image] = found
        return found

    def _check_runtime(self, runtime: str | None) -> None:
        if runtime is None or not self._info.runtimes or runtime in self._info.runtimes:
            return
        raise ConfigError(
            f"security.runtime is {runtime!r}; accepted: one that this {self._api.engine} has, "
            f"{', '.join(self._info.runtimes)}, or None",
            details={"field": "security.runtime"},
        )

    def _prove_runtime(self, container_id: str, runtime: str | None) -> None:
        """Before anything runs in it: Podman's service takes its own runtime in silence (podman#28429)."""
        if runtime is None:
            return
        found = self.inspect(container_id).effective.runtime
        if found != runtime:
            raise UnsupportedError(
                f"{self._api.engine} {self._info.version} would run the container with {found}, not with the runtime "
                f"{runtime}: make that the engine's own (`podman --runtime {runtime} system service`, or `runtime` in "
                "containers.conf), or leave security.runtime out",
                details={"field": "security.runtime"},
            )

    def _enforceable(self, limits: Limits) -> Limits:
        def kept(name: str) -> bool:
            return name in self._info.enforceable

        return attrs.evolve(
            limits,
            memory_mb=limits.memory_mb if kept("memory") else None,
            pids=limits.pids if kept("pids") else None,
            cpus=limits.cpus if kept("cpus") else None,
            disk_mb=limits.disk_mb if kept("disk") else None,
        )

    def _must_give(self, spec: ContainerSpec, image: ImageFacts | None) -> bool:
        if spec.workspace.kind is WorkspaceKind.VOLUME:
            return True  # it may have been somebody else's before
        return spec.workspace.kind is WorkspaceKind.EPHEMERAL and not self._can_write(spec, image)

    def _can_write(self, spec: ContainerSpec, image: ImageFacts | None) -> bool:
        """Whether the container's user is known to own a new workspace volume.

        The engines copy the image's folder of that name, with its owner, into a new volume; without the capability
        CAP_DAC_OVERRIDE root, too, can't write where others own.
        """
        if image is None or image.id not in self._workspace_owners:
            return False
        uid = _numeric(_user(spec, image))
        owner = self._workspace_owners[image.id]
        if owner is None:
            return uid == 0 or self._api.files.volumes_follow_user
        return uid == owner

    def _give_workspace(self, container_id: str, spec: ContainerSpec, image: ImageFacts | None) -> None:
        user = _user(spec, image)
        uid = _numeric(user)
        if spec.workspace.shared:
            self._api.files.give(container_id, WORKSPACE_FOLDER, None)
            return
        if uid is None:
            # Owned by the user, not just writable: git, for one, distrusts a folder that somebody else owns.
            key = (image.id if image else "", user)
            if key not in self._uids:
                self._uids[key] = _uid_in_passwd(self._api.files.read(container_id, "/etc/passwd") or b"", user)
            uid = self._uids[key]
        self._api.files.give(container_id, WORKSPACE_FOLDER, uid)

    def _clean_up_create(self, spec: ContainerSpec, call: str, error: BaseException) -> None:
        """Leave nothing of a `create` that failed, and raise the error that says what was wrong, where asking tells.

        Also after a timeout or a KeyboardInterrupt: the engine may have made the container all the same
        (docker-py#2461).
        """
        refused = isinstance(error, EngineError) and "status" in error.details
        try:
            found = self._api.inspect(spec.name)
            end = time.monotonic() + min(self._timeout, _STILL_CREATING)
            while found is None and not refused and time.monotonic() < end:
                time.sleep(0.05)
                found = self._api.inspect(spec.name)
            if found is not None and found.labels.get(_CALL_LABEL) == call:
                self._remove(found.id)
                self._waiting.pop(found.id, None)
                return
            image = self._api.image(spec.image)
        except SandboxError:
            return  # The engine does not answer: the first error tells more.
        if not refused:
            return
        if found is not None:
            raise ConfigError(
                f"{self._api.engine} already has a container named {spec.name}: choose another id, or remove that one",
                details={"field": "id", "container": found.id},
            ) from error
        if image is None:
            raise ImageNotFoundError(
                f"{self._api.engine} has no image {spec.image!r}: run `{self._api.pull_command(spec.image)}`, "
                "or use pull='missing'",
                details={"image": spec.image},
            ) from error

    @contextlib.contextmanager
    def _missing_agent_noticed(self, container_id: str) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            spec = self._waiting.get(container_id)
            if spec is None or not self._agent_may_be_missing(spec):
                raise
            self._installed.discard(spec.agent.volume)
            raise AgentMissing(f"the agent's volume {spec.agent.volume} does not hold it (wholly)") from error

    def _agent_may_be_missing(self, spec: ContainerSpec) -> bool:
        """Whether the agent's state explains that a container did not start.

        Seen through a helper: the container itself may be gone, the engine removes it after a failed start. An agent
        that was put there just now also counts: another process may have filled the volume after the start failed.
        """
        try:
            with self._helper(spec.agent, spec.image) as helper:
                found = self._api.files.stat(helper, _AGENT)
        except SandboxError:
            return False
        if found is None or found.size != self._agent_size(spec.agent):
            return True
        # Once for each time that it was put there: then the failure has another cause.
        seen = self._seen.get(spec.agent.volume)
        self._seen[spec.agent.volume] = found.modified
        return seen != found.modified and abs(time.time() - found.modified) < _JUST_NOW

    def _agent_size(self, agent: AgentBundle) -> int:
        try:
            return agent.paths[self._info.arch].stat().st_size
        except KeyError:
            raise UnsupportedError(
                f"{self._api.engine} runs on {self._info.arch}; this installation has agents for "
                f"{', '.join(sorted(agent.paths)) or 'no architecture'}",
                details={"arch": self._info.arch},
            ) from None

    @contextlib.contextmanager
    def _helper(self, agent: AgentBundle, image: str) -> Iterator[str]:
        """A container that is never started, with the agent's volume; it is removed whatever happens."""
        facts = self._images.get(image) or self._look_up(image)
        # Removed by its name: that is known also when the call that makes it is cut short.
        name = f"sandboxkit-helper-{secrets.token_hex(8)}"
        try:
            reference = facts.reference if facts else image
            yield self._api.create_helper(name, reference, helper_labels(), agent.volume, AGENT_FOLDER)
        except BaseException:
            with contextlib.suppress(SandboxError):
                self._remove(name)
            raise
        self._remove(name)

    def _remove(self, container: str) -> None:
        end = time.monotonic() + self._timeout
        while True:
            try:
                self._api.delete(container)
                return
            except EngineError as error:
                refused = error
            # Most often it is being removed already, by the engine itself since it ended.
            if wait_until(lambda: self._api.inspect(container) is None, min(1.0, self._timeout)):
                return
            if time.monotonic() >= end:
                raise EngineError(
                    f"{self._api.engine} did not remove {container} within {self._timeout:g} s: try again",
                    retryable=True,
                    details={**refused.details, "container": container},
                ) from refused


def _user(spec: ContainerSpec, image: ImageFacts | None) -> str:
    """The user that a container runs as, as it was named; empty for root."""
    return (spec.security.user or (image.user if image else "")).partition(":")[0]


def _numeric(user: str) -> int | None:
    if user in ("", "root"):
        return 0
    return int(user) if user.isdecimal() else None


def _uid_in_passwd(content: bytes, user: str) -> int | None:
    for line in content.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[0] == user and fields[2].isdecimal():
            return int(fields[2])
    return None
