"""What a backend may bring beyond the Backend contract, each part on its own and announced by a Feature.

A backend that declares `Feature.VOLUMES` has an attribute `volumes`, one that declares `Feature.SNAPSHOTS` has
`snapshots`, and so on, with the protocols below; the core asks for a part by the functions here and never for one that
was not declared. The rules for every method are those of `sandboxkit.backend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

import attrs

from .backend import Backend, ByteStream, Feature
from .errors import UnsupportedError

__all__ = [
    "ImageStatus",
    "Running",
    "Snapshots",
    "VolumeStatus",
    "Volumes",
    "running_of",
    "snapshots_of",
    "volumes_of",
]


@attrs.frozen(kw_only=True)
class VolumeStatus:
    """A volume as the engine sees it."""

    name: str
    labels: Mapping[str, str] = attrs.field(factory=dict)


class Volumes(Protocol):
    """Named volumes (`Feature.VOLUMES`)."""

    def ensure(self, name: str, labels: Mapping[str, str]) -> None:
        """Afterwards there is one of that name; one that was there keeps its content and labels. Any number at once."""
        ...

    def inspect(self, name: str) -> VolumeStatus | None:
        """None when there is none."""
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[VolumeStatus]:
        """Those with all these labels; an empty value matches any."""
        ...

    def remove(self, name: str) -> bool:
        """Whether it is gone; False when a container, running or not, uses it: then nothing was changed."""
        ...


class Running(Protocol):
    """Containers whose stream is not their life: `Feature.DETACHED` and `Feature.RESUME`.

    A container of a spec with `detached` has no stream: `Backend.attach` is never called for it. One with `keep` stays
    when it has ended; `Backend.attach` and `Backend.start` then work as for a new one, and `Backend.remove` removes it.
    """

    def connect(self, container_id: str, command: Sequence[str]) -> ByteStream:
        """Run a program in a running container, as the container's user; the stream is its input and output.

        Whatever ends the stream closes the program's input; the end of the program ends the stream.
        """
        ...

    def hold(self, container_id: str) -> AbstractContextManager[None]:
        """For the length of the block nobody else, of any process, holds this container; SessionBusyError if so."""
        ...

    def prepare(self, container_id: str) -> None:
        """Called before `Backend.attach` for a container that has run before."""
        ...

    def stop(self, container_id: str) -> None:
        """End what runs in it, at once (SIGKILL); its files stay. No error when it does not run."""
        ...


@attrs.frozen(kw_only=True)
class ImageStatus:
    """An image that was made of a container. `tag` is `name:version`."""

    id: str
    tag: str
    size: int
    labels: Mapping[str, str] = attrs.field(factory=dict)


class Snapshots(Protocol):
    """Images made of containers (`Feature.SNAPSHOTS`)."""

    def commit(self, container_id: str, tag: str, labels: Mapping[str, str], folder: str | None) -> ImageStatus:
        """Make an image of a container's root filesystem, running or not, with the content of `folder`, a volume,
        in its place.

        Its configuration is that of the image the container was made from; of the container's labels and environment
        nothing
        with a value is left. An image that had the tag loses it. On an error nothing new has the tag.
        """
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[ImageStatus]:
        """Tagged images with all these labels; an empty value matches any."""
        ...

    def remove(self, tag: str) -> bool:
        """Whether there was one."""
        ...


def snapshots_of(backend: Backend, wanted_for: str) -> Snapshots:
    """The part, or UnsupportedError that names what it was wanted for."""
    return cast(Snapshots, _part(backend, Feature.SNAPSHOTS, "snapshots", wanted_for))


def running_of(backend: Backend, feature: Feature, wanted_for: str) -> Running:
    """The part, or UnsupportedError that names what it was wanted for."""
    return cast(Running, _part(backend, feature, "running", wanted_for))


def volumes_of(backend: Backend, wanted_for: str) -> Volumes:
    """The part, or UnsupportedError that names what it was wanted for."""
    return cast(Volumes, _part(backend, Feature.VOLUMES, "volumes", wanted_for))


def _part(backend: Backend, feature: Feature, name: str, wanted_for: str) -> object:
    if feature not in backend.features:
        raise UnsupportedError(
            f"The backend {backend.name} has no {wanted_for}. Leave it out, or use another backend.",
            details={"feature": feature.value},
        )
    return getattr(backend, name)
