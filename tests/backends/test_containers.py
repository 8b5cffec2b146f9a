"""Names, lists and the end of containers."""

from __future__ import annotations

import threading
import time
import uuid

import attrs
import pytest

from sandboxkit.errors import ConfigError, SessionNotFoundError
from tests.support.waiting import wait_until

from .lab import LABEL, Lab


def test_info_says_what_answers(lab: Lab) -> None:
    info = lab.backend.info()
    assert (info.backend, info.url, info.rootless) == (lab.engine.backend, lab.engine.url, lab.engine.rootless)
    assert info.version
    assert info.api_version
    assert info.arch in ("x86_64", "aarch64")
    assert info.storage_driver


def test_a_name_that_is_taken_is_refused_and_its_container_is_not_touched(lab: Lab) -> None:
    with lab.running("/bin/cat") as running:
        taken = lab.backend.inspect(running.id).name
        with pytest.raises(ConfigError, match=taken) as caught:
            lab.backend.create(attrs.evolve(lab.spec("/bin/true"), name=taken))
        assert caught.value.details["field"] == "id"
        assert lab.backend.inspect(running.id).running
        running.send(b"still there")
        assert running.receive_exactly(11) == b"still there"


def test_a_container_is_listed_by_its_labels_whether_it_runs_or_not(lab: Lab) -> None:
    created = lab.create(lab.spec("/bin/cat", labels={"test.kind": "created"}))
    with lab.running("/bin/cat", labels={"test.kind": "running"}) as running:
        both = {status.id: status for status in lab.backend.list({LABEL: lab.token})}
        assert set(both) == {created, running.id}
        assert (both[created].running, both[running.id].running) == (False, True)
        assert both[running.id].labels["test.kind"] == "running"
        assert both[running.id].name == lab.backend.inspect(running.id).name
        assert [status.id for status in lab.backend.list({LABEL: lab.token, "test.kind": "created"})] == [created]
        assert len(lab.backend.list({LABEL: lab.token, "test.kind": ""})) == 2
        assert lab.backend.list({LABEL: lab.token, "test.no-such-label": ""}) == []
    lab.backend.remove(created)


def test_inspect_follows_a_container(lab: Lab) -> None:
    container_id = lab.create(lab.spec("/bin/cat"))
    status = lab.backend.inspect(container_id)
    assert (status.id, status.running, status.exit_code) == (container_id, False, None)
    stream = lab.backend.attach(container_id)
    lab.backend.start(container_id)
    assert lab.backend.inspect(container_id).running
    stream.close()
    lab.backend.remove(container_id)
    with pytest.raises(SessionNotFoundError):
        lab.backend.inspect(container_id)


def test_removing_what_is_gone_is_no_error(lab: Lab) -> None:
    lab.backend.remove(uuid.uuid4().hex * 2)
    container_id = lab.create(lab.spec("/bin/cat"))
    for _ in range(2):
        lab.backend.remove(container_id)
        assert lab.left_over() == []


def test_removing_what_the_engine_is_removing_waits_until_it_is_gone(lab: Lab) -> None:
    for _ in range(4):
        with lab.running("/bin/true") as running:
            assert not running.stream.receive()
            # It ended by itself: the engine's own removal is under way.
            lab.backend.remove(running.id)
            assert lab.backend.list({LABEL: lab.token}) == []


def test_a_command_that_ignores_signals_is_removed_at_once(lab: Lab) -> None:
    with lab.running("/bin/sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done") as running:
        running.receive_exactly(6)
        begin = time.monotonic()
        lab.backend.remove(running.id)
        assert time.monotonic() - begin < 5
        assert lab.left_over() == []


def test_threads_make_and_remove_containers_at_once(lab: Lab) -> None:
    outputs: list[str] = []

    def work(number: int) -> None:
        outputs.extend(lab.run(f"echo {number}").stdout for _ in range(2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outputs) == sorted(f"{number}\n" for number in range(6) for _ in range(2))
    wait_until(lambda: lab.left_over() == [], "all are removed")
