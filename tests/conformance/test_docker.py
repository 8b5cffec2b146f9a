"""The suite on Docker."""

from __future__ import annotations

import pytest

from .engines import EVERY, Engine

pytestmark = pytest.mark.engine


class TestDocker(Engine):
    features = EVERY
    backend_name = "docker"
