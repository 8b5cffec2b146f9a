"""The Podman backend of sandboxkit, on podman-py: `pip install 'sandboxkit[podman]'`."""

from ._backend import PodmanBackend

__all__ = ["PodmanBackend"]
