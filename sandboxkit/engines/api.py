"""What `EngineBackend` asks of one engine: its HTTP API, without any policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from sandboxkit.backend import ByteStream, ContainerSpec, ContainerStatus, EngineInfo, ProgressCallback
from sandboxkit.backend_parts import Running, Snapshots, Volumes
from sandboxkit.config import Limits

from .archives import FileFacts
from .ulimits import Ulimit

__all__ = ["UNKNOWN_OWNER", "ContainerRequest", "EngineApi", "EngineFiles", "ImageFacts"]

UNKNOWN_OWNER = -1
"""A folder is there, and the engine does not tell whose it is."""


@attrs.frozen
class ImageFacts:
    """An image on the engine. `reference` is what the engine finds it by, `user` the one it is set to run as."""

    id: str
    reference: str
    user: str


@attrs.frozen(kw_only=True)
class ContainerRequest:
    """A ContainerSpec made fit for this engine: `limits` holds only what it enforces."""

    spec: ContainerSpec
    image: str
    labels: Mapping[str, str]
    limits: Limits
    ulimits: Sequence[Ulimit]


class EngineFiles(Protocol):
    """The files in containers that do not run. Errors and absence as in EngineApi."""

    @property
    def volumes_follow_user(self) -> bool:
        """Whether a new volume belongs to the container's user where the image has no such folder; else to root."""
        ...

    def stat(self, container: str, path: str) -> FileFacts | None:
        """What is at a path."""
        ...

    def owner(self, container: str, folder: str) -> int | None:
        """The uid, as seen inside, that owns a folder, UNKNOWN_OWNER included; None when there is none."""
        ...

    def read(self, container: str, path: str) -> bytes | None:
        """A small file; None when it is missing or no file."""
        ...

    def put(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar archive there."""
        ...

    def give(self, container: str, folder: str, uid: int | None) -> None:
        """Make a volume's folder writable for the container's user, whose uid is None where it is not known."""
        ...


class EngineApi(Protocol):
    """One engine's API.

    Called from any thread; every method has a deadline and raises only errors of `sandboxkit.errors`.
    Where something may be absent the answer is None, never an error. Containers are named by id or name.
    """

    @property
    def engine(self) -> str:
        """The engine's name for people, such as `Docker`."""
        ...

    @property
    def running(self) -> Running:
        """Containers that outlive their stream."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """Images made of containers."""
        ...

    @property
    def volumes(self) -> Volumes:
        """Its named volumes."""
        ...

    @property
    def files(self) -> EngineFiles:
        """The archive calls."""
        ...

    def info(self) -> EngineInfo:
        """What answers; asked once."""
        ...

    def ulimits(self) -> Sequence[Ulimit]:
        """What every container gets."""
        ...

    def image(self, image: str) -> ImageFacts | None:
        """An image by any name that its users know it by."""
        ...

    def pull(self, image: str, progress: ProgressCallback | None) -> None:
        """Fetch an image. EngineError with the engine's reason when it could not."""
        ...

    def pull_command(self, image: str) -> str:
        """The shell command with which a person fetches it."""
        ...

    def create(self, request: ContainerRequest) -> str:
        """One request, never repeated; what it left when it failed or timed out is the caller's to find."""
        ...

    def create_helper(self, name: str, image: str, labels: Mapping[str, str], volume: str | None, folder: str) -> str:
        """A container that is never started: for the archive calls, as root, `volume` mounted read-write at `folder`.

        EngineError when there is one of that name.
        """
        ...

    def attach(self, container: str) -> ByteStream:
        """The stream, of a container that was not started."""
        ...

    def start(self, container: str) -> None:
        """Run it."""
        ...

    def inspect(self, container: str) -> ContainerStatus | None:
        """As it is now."""
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        """All that have these labels; an empty value matches any."""
        ...

    def delete(self, container: str) -> None:
        """End and remove it and its anonymous volumes: it is gone then. EngineError when it may still be there."""
        ...

    def ensure_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Afterwards there is one; also when another process makes it at the same moment."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent."""
        ...
