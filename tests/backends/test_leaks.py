"""Nothing grows with the number of containers: no descriptors, threads or connections here, no containers there."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from sandboxkit.backend import Backend
from sandboxkit.config import Pull
from sandboxkit.errors import SandboxError

from .conftest import connect
from .lab import BUSYBOX, Lab

CYCLES = 100


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def fresh(lab: Lab) -> Iterator[Backend]:
    backend = connect(lab.engine)
    yield backend
    backend.close()


def test_no_descriptor_grows_with_the_containers(lab: Lab, fresh: Backend) -> None:
    fresh.ensure_image(BUSYBOX, Pull.NEVER)
    fresh.install_agent(lab.agent, BUSYBOX)

    def cycle(*, start: bool) -> None:
        container_id = fresh.create(lab.spec("/bin/cat"))
        if start:
            stream = fresh.attach(container_id)
            fresh.start(container_id)
            stream.close()
        fresh.remove(container_id)

    cycle(start=True)
    before, threads = open_descriptors(), threading.active_count()
    for number in range(CYCLES):
        # Most are not started, which is most of the time and none of what could grow.
        cycle(start=number % 20 == 0)
    # Each request has a URL of its own: docker-py alone would hold a connection for each of the last 25.
    assert open_descriptors() <= before + 1
    assert threading.active_count() <= threads
    assert lab.backend.list({"test.sandboxkit.lab": lab.token}) == []


def test_closing_gives_every_descriptor_back(lab: Lab) -> None:
    before = open_descriptors()
    backend = connect(lab.engine)
    backend.ensure_image(BUSYBOX, Pull.NEVER)
    threads = [threading.Thread(target=backend.list, args=({"a": "b"},)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.close()
    backend.close()
    assert open_descriptors() == before


def test_an_attach_that_fails_leaves_no_descriptor(lab: Lab, fresh: Backend) -> None:
    with pytest.raises(SandboxError):
        fresh.attach("0" * 64)
    before = open_descriptors()
    for _ in range(5):
        with pytest.raises(SandboxError):
            fresh.attach("0" * 64)
    assert open_descriptors() <= before
