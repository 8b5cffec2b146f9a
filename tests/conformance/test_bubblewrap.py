"""The suite on bubblewrap: as root, or whoever runs it, and as an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxkit_bubblewrap import BubblewrapBackend

from sandboxkit import Session
from sandboxkit.backend import AGENT_FOLDER, Backend, Feature
from sandboxkit.conformance import Conformance
from tests.support import ordinary

IMAGES = Path(__file__).parents[2] / "build/images"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The unpacked tars go with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class TestBubblewrap(Conformance):
    features = frozenset(
        {
            *(Feature.ISOLATION, Feature.LIMITS, Feature.READONLY_ROOTFS, Feature.USERS, Feature.TMPFS),
            *(Feature.HOST_FILES, Feature.CRASH_CLEANUP),
        }
    )
    # Tars of root filesystems, as `make images` leaves them. It knows no user of an image's own: everybody is 1000.
    images = {
        "shell": f"rootfs:{IMAGES}/busybox.tar",
        "python": f"rootfs:{IMAGES}/python.tar",
        "empty": f"rootfs:{IMAGES}/empty.tar",
        "static": f"rootfs:{IMAGES}/static.tar",
        "nonroot": f"rootfs:{IMAGES}/busybox.tar",
    }

    @classmethod
    def make_backend(cls) -> Backend:
        return BubblewrapBackend.connect()

    def test_nothing_of_the_host_is_mounted(self, session: Session) -> None:
        """The root filesystem is mounted folder by folder, so here the question is what of it can be written."""
        lines = [line.split() for line in session.exec("cat", ["/proc/self/mounts"]).check().stdout.splitlines()]
        kernels = {"proc", "tmpfs", "devpts", "devtmpfs", "cgroup", "cgroup2"}
        folders = {f"/{name}" for name in session.exec("ls", ["/"]).check().stdout.split()}
        for _, point, kind, options, *_ in lines:
            assert "nosuid" in options.split(","), point
            if kind not in kernels:
                assert "ro" in options.split(","), point
                assert point in folders | {f"{AGENT_FOLDER}/agent"}

    def test_what_a_killed_process_left_half_made_is_pruned(self) -> None:
        """Nothing is: what is not started is no more than its process."""
        self.half_made("half-made-1")
        assert "half-made-1" not in self.ids()

    def test_a_failed_removal_is_told_after_the_rest_was_removed(self) -> None:
        """There is nothing half made to be removed, and whatever a killed process had runs out by itself."""
        for id in ("stuck-1", "stuck-2"):
            self.half_made(id)
        assert not self.ids() & {"stuck-1", "stuck-2"}


@pytest.mark.timeout(900)
def test_the_suite_as_an_ordinary_user() -> None:
    if os.geteuid() == 0:  # else this very run is one
        ordinary.run_pytest(f"{__file__}::TestBubblewrap", timeout=900)
