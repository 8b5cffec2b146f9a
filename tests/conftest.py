"""What every test of the project has: assertions that explain themselves, and the rules of tests/_ci.py."""

from __future__ import annotations

import signal

import pytest

# A shell without job control starts background jobs with SIGINT ignored, and Python then leaves it so: the tests of
# Ctrl-C need it as a person's terminal has it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("tests.support")

pytest_plugins = ["tests._ci", "pytester"]
