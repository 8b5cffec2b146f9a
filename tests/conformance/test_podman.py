"""The suite on Podman, with root and without."""

from __future__ import annotations

import pytest
from sandboxkit_podman import PodmanBackend

from sandboxkit.backend import Backend

from .engines import EVERY, Engine

pytestmark = pytest.mark.engine


class TestPodman(Engine):
    features = EVERY
    backend_name = "podman"

    @classmethod
    def connect(cls, url: str) -> Backend:
        return PodmanBackend.connect(url)


class TestPodmanRootless(TestPodman):
    rootless = True
    _volumes = None
