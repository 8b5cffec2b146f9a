"""The Docker backend of sandboxkit, on the `docker` SDK: `pip install 'sandboxkit[docker]'`."""

from ._backend import DockerBackend

__all__ = ["DockerBackend"]
