"""What every test of the project has: assertions that explain themselves, and the rules of tests/_ci.py."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.support")

pytest_plugins = ["tests._ci", "pytester"]
