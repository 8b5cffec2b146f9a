"""The suite on Docker."""

from __future__ import annotations

import pytest
from sandboxkit_docker import DockerBackend

from sandboxkit.backend import Backend

from .engines import EVERY, Engine

pytestmark = pytest.mark.engine


class TestDocker(Engine):
    features = EVERY
    backend_name = "docker"

    @classmethod
    def connect(cls, url: str) -> Backend:
        return DockerBackend.connect(url)
