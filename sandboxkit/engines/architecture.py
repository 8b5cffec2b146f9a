"""The engines' names of architectures as the agent's."""

from __future__ import annotations

__all__ = ["normalised_arch"]

_NAMES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64", "arm64/v8": "aarch64"}


def normalised_arch(name: str) -> str:
    """`x86_64` or `aarch64` for every spelling of them; another name as it is."""
    return _NAMES.get(name.lower(), name.lower())
