"""The suite on Podman, with root and without."""

from __future__ import annotations

import pytest

from .engines import EVERY, Engine

pytestmark = pytest.mark.engine


class TestPodman(Engine):
    features = EVERY
    backend_name = "podman"


class TestPodmanRootless(TestPodman):
    rootless = True
    _volumes = None
