"""Image names, made to mean on Podman what they mean on Docker."""

from __future__ import annotations

__all__ = ["is_named", "local_references", "pull_references"]

_DOCKER_HUB = "docker.io"


def local_references(image: str) -> list[str]:
    """The names under which an image may be on the engine, likeliest first; a bare one is to be checked by `is_named`.

    Podman itself matches a short name with any image whose name ends so: `busybox` finds `localhost/mine/busybox`
    (Podman 4.3). What was built or imported under a short name is below `localhost/`.
    """
    if _has_registry(image):
        return [image]
    return [f"localhost/{image}", _on_docker_hub(image), image]


def pull_references(image: str) -> list[str]:
    """The names to pull under: a short one is Docker Hub's, as for Docker, else as registries.conf resolves it."""
    if _has_registry(image):
        return [image]
    return [_on_docker_hub(image), image]


def is_named(image: str, image_id: str, names: list[str]) -> bool:
    """Whether an image that Podman found for a short name is that one: by its id, or its whole path in a registry."""
    if image_id.removeprefix("sha256:").startswith(image.removeprefix("sha256:")):
        return True
    wanted = image if "@" in image or ":" in image else f"{image}:latest"
    return any(name.partition("/")[2] == wanted for name in names)


def _has_registry(image: str) -> bool:
    # The rule of github.com/distribution/reference: a first part with a dot or a port, or `localhost`, is a registry.
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def _on_docker_hub(image: str) -> str:
    return f"{_DOCKER_HUB}/{image}" if "/" in image else f"{_DOCKER_HUB}/library/{image}"
