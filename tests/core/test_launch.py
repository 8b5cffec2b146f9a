"""Creating a session: every setting is proved, or nothing is left, whatever fails and wherever Ctrl-C comes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from sandboxkit import (
    EngineError,
    ImageNotFoundError,
    Limits,
    LimitsNotEnforceableError,
    Network,
    Sandbox,
    SandboxError,
    Security,
    SessionNotFoundError,
)
from sandboxkit import _launch as launch_module
from sandboxkit._launch import Launched, check_limits, launch
from sandboxkit.backend import AgentMissing, ContainerSpec, Effective

from .fake_agent import hello
from .fake_backend import BUNDLE, FakeBackend
from .interrupts import interrupted_at

SPEC = ContainerSpec(name="sandboxkit-x", image="image", agent=BUNDLE)
STEPS = ["install_agent", "create", "attach", "start", "inspect"]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackend]:
    """Afterwards it has nothing: no container, no open stream."""
    monkeypatch.setattr(launch_module, "_PAUSE", 0)
    made = FakeBackend()
    yield made
    assert not made.agents, "a container was left behind"
    assert all(stream._socket.fileno() == -1 for stream in made.streams), "a stream was left open"


def raising(error: BaseException, times: int = 10**9) -> Callable[[], None]:
    left = itertools.count(times, -1)

    def fail() -> None:
        if next(left) > 0:
            raise error

    return fail


def end(backend: FakeBackend, launched: Launched) -> None:
    launched.connection.close(SandboxError("over"))
    backend.remove(launched.container_id)


def test_what_is_in_force_makes_a_session(backend: FakeBackend) -> None:
    launched = launch(backend, SPEC)
    assert backend.calls == STEPS
    assert backend.specs == [SPEC]
    assert launched.connection.lost is None
    end(backend, launched)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [EngineError("no"), SessionNotFoundError("gone"), KeyboardInterrupt(), MemoryError()])
def test_a_step_that_fails(step: str, error: BaseException, backend: FakeBackend) -> None:
    backend.fail[step] = raising(error)
    with pytest.raises(type(error)) as caught:
        launch(backend, SPEC)
    assert caught.value is error
    assert len(backend.removed) == (STEPS.index(step) > 1)


def test_the_first_error_is_the_one_told(backend: FakeBackend) -> None:
    backend.fail["start"] = raising(EngineError("first"))
    backend.fail["remove"] = raising(EngineError("second"))
    with pytest.raises(EngineError, match="first"):
        launch(backend, SPEC)
    for agent in backend.agents.values():
        agent.close()
    backend.agents.clear()


def test_ctrl_c_at_every_place(backend: FakeBackend) -> None:
    place = 0
    for place in itertools.count(1):
        before = len(backend.specs)
        if not interrupted_at(place, lambda: end(backend, launch(backend, SPEC))):
            break
        # `end` is the test's own: what it was kept from doing is caught up with here.
        for container_id, agent in list(backend.agents.items()):
            assert backend.calls[-1] == "remove" or launched_whole(backend, before), backend.calls[-5:]
            agent.close()
            del backend.agents[container_id]
        give_back(backend)
    assert place > 100


def give_back(backend: FakeBackend) -> None:
    """The streams of what was interrupted. Not closed under a reader: their numbers may be another's at once."""
    for stream in backend.streams:
        stream.shutdown()
    for thread in threading.enumerate():
        if thread.name == "sandboxkit-reader":
            thread.join(10)
    for stream in backend.streams:
        stream.close()
    backend.streams.clear()


def launched_whole(backend: FakeBackend, before: int) -> bool:
    return backend.calls[-5:] == STEPS and len(backend.specs) == before + 1


def test_no_hello_in_time(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "HELLO_TIMEOUT", 0.02)
    backend.greeting = b""
    with pytest.raises(EngineError, match=r"did not answer within 0.02 s.*try again") as caught:
        launch(backend, SPEC)
    assert caught.value.retryable


@pytest.mark.parametrize("inspect_fails", [False, True])
def test_an_agent_that_ends_at_once(inspect_fails: bool, backend: FakeBackend) -> None:
    def start() -> None:
        next(iter(backend.agents.values())).hang_up()

    backend.fail["start"] = start
    if inspect_fails:
        backend.fail["inspect"] = raising(SessionNotFoundError("gone"))
    with pytest.raises(EngineError, match="The container started, but its agent did not"):
        launch(backend, SPEC)


def test_a_container_that_speaks_something_else(backend: FakeBackend) -> None:
    backend.greeting = b"Usage: agent [OPTIONS] and more"
    with pytest.raises(EngineError, match=r"its agent did not.*broke the agent's protocol"):
        launch(backend, SPEC)


@pytest.mark.parametrize("times", [1, 3, 5])
@pytest.mark.parametrize("step", ["create", "attach", "start"])
def test_a_missing_agent_is_put_back(step: str, times: int, backend: FakeBackend) -> None:
    backend.fail[step] = raising(AgentMissing("empty"), times)
    launched = launch(backend, SPEC)
    assert backend.calls.count("install_agent") == times + 1
    assert len(backend.removed) == (times if step != "create" else 0)
    end(backend, launched)


def test_another_agent_in_the_volume_is_replaced(backend: FakeBackend) -> None:
    backend.greeting = hello(build="f" * 16)
    backend.fail["install_agent"] = lambda: (
        setattr(backend, "greeting", hello()) if backend.calls.count("install_agent") == 3 else None
    )
    end(backend, launch(backend, SPEC))
    assert len(backend.removed) == 3


@pytest.mark.parametrize("greeting", [hello(build="f" * 16), hello(build=None), hello(build="")])
def test_an_agent_that_stays_missing(greeting: bytes, backend: FakeBackend) -> None:
    backend.greeting = greeting
    with pytest.raises(EngineError, match=f"could not be put into its volume {BUNDLE.volume} in 6 attempts") as caught:
        launch(backend, SPEC)
    assert caught.value.retryable
    assert len(backend.removed) == 6


def test_ctrl_c_while_waiting_for_the_next_attempt(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.fail["start"] = raising(AgentMissing("empty"))
    monkeypatch.setattr(threading.Event, "wait", raising_wait)
    with pytest.raises(KeyboardInterrupt):
        launch_module.launch(backend, SPEC)


def raising_wait(event: threading.Event, timeout: float | None = None) -> bool:
    if timeout is not None:
        raise KeyboardInterrupt
    while not event.is_set():
        pass
    return True


def proof_fails(backend: FakeBackend, spec: ContainerSpec, setting: str) -> None:
    with pytest.raises(EngineError, match="fake did not put every setting in force") as caught:
        launch(backend, spec)
    settings = caught.value.details["settings"]
    assert isinstance(settings, list)
    (wrong,) = settings
    assert wrong.startswith(setting), wrong
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "security", "limits"),
    [
        ("network", "bridge", {}, {}),
        ("memory_bytes", 0, {}, {}),
        ("memory_bytes", (2048 << 20) + 1, {}, {}),
        ("pids", 0, {}, {}),
        ("pids", 511, {}, {}),
        ("cpus", 0.0, {}, {"cpus": 1.5}),
        ("cpus", 2.0, {}, {"cpus": 1.5}),
        ("capabilities_dropped", False, {}, {}),
        ("no_new_privileges", False, {}, {}),
        ("readonly_rootfs", True, {}, {}),
        ("readonly_rootfs", False, {"readonly_rootfs": True}, {}),
        ("privileged", True, {}, {}),
        ("runtime", "runc", {"runtime": "runsc"}, {}),
    ],
)
def test_each_setting_by_the_engine_s_word(
    field: str, value: Any, security: dict[str, Any], limits: dict[str, Any], backend: FakeBackend
) -> None:
    spec = attrs.evolve(SPEC, security=Security(**security), limits=Limits(**limits))
    backend.greeting = hello(rootfs_ro=str(int(bool(security.get("readonly_rootfs")))))
    backend.promise(**{field: value})
    proof_fails(backend, spec, f"{field} is ")
    backend.promise(**{field: None})  # an engine that does not say
    end(backend, launch(backend, spec))


@pytest.mark.parametrize(
    ("published", "wrong"),
    [
        ({}, "port 8000 is published at nothing, not at 127.0.0.1 alone"),
        ({8000: [("0.0.0.0", 32768)]}, "port 8000 is published at 0.0.0.0:32768, not at 127.0.0.1 alone"),
        ({8000: [("127.0.0.1", 0)]}, "port 8000 is published at 127.0.0.1:0, not at 127.0.0.1 alone"),
        ({8000: [("127.0.0.1", 5), ("::", 5)]}, "port 8000 is published at 127.0.0.1:5, :::5, not at 127.0.0.1 alone"),
        ({8000: [("127.0.0.1", 5)], 22: [("127.0.0.1", 6)]}, "port 22 is published at 127.0.0.1:6, which nobody asked"),
        (None, "published ports are not told by the engine's inspect"),
    ],
)
def test_ports_are_published_as_they_were_asked_for(published: Any, wrong: str, backend: FakeBackend) -> None:
    spec = attrs.evolve(SPEC, network=Network.bridge(ports=[8000]))
    backend.promise(network="bridge", published=published)
    proof_fails(backend, spec, wrong)
    backend.promise(published={8000: [("127.0.0.1", 32768)]})
    launched = launch(backend, spec)
    assert launched.published[8000].url == "http://127.0.0.1:32768"
    end(backend, launched)


def test_nothing_is_published_that_was_not_asked_for(backend: FakeBackend) -> None:
    backend.promise(published={80: [("127.0.0.1", 32768)]})
    proof_fails(backend, SPEC, "port 80 is published")


@pytest.mark.parametrize(
    ("facts", "security"),
    [
        *(
            ({name: value}, {})
            for name in ("cap_eff", "cap_prm", "cap_bnd")
            for value in ("00000000a80425fb", "", None)
        ),
        *(({"no_new_privs": value}, {}) for value in ("0", "", None, "x")),
        *(({"seccomp": value}, {}) for value in ("0", "1", "", None)),
        *(({"deny_list": value}, {}) for value in ("0", "", None)),
        *(({"pid": value}, {}) for value in ("2", "", None)),
        *(({"rootfs_ro": value}, {"readonly_rootfs": True}) for value in ("0", "", None)),
        *(({"workspace_writable": value}, {}) for value in ("0", "", None)),
        *(({"memory_max": value}, {}) for value in ("max", "0", "9999999999", "x")),
        *(({"pids_max": value}, {}) for value in ("max", "0", "511", "x")),
        *(({"uid": value}, {"user": "1000"}) for value in ("0", "", None)),
        ({"uid": "1000", "gid": "0"}, {"user": "1000:1001"}),
    ],
)
def test_each_setting_from_inside(facts: dict[str, str | None], security: dict[str, Any], backend: FakeBackend) -> None:
    backend.promise(readonly_rootfs=security.get("readonly_rootfs", False))
    backend.greeting = hello(**facts)  # type: ignore[arg-type]
    proof_fails(backend, attrs.evolve(SPEC, security=Security(**security)), f"{list(facts)[-1]} is ")


def test_all_that_is_wrong_is_told_at_once(backend: FakeBackend) -> None:
    backend.promise(privileged=True, network="host")
    backend.greeting = hello(seccomp="0", pid="7")
    with pytest.raises(EngineError) as caught:
        launch(backend, SPEC)
    assert caught.value.details["settings"] == [
        "privileged is True by the engine's inspect, not False",
        "network is host by the engine's inspect, not none",
        "seccomp is 0 inside, not 2",
        "pid is 7 inside, not 1",
    ]


def test_only_what_can_be_asked_for_is_proved(backend: FakeBackend) -> None:
    backend.features = frozenset()
    backend.enforceable = frozenset()
    backend.effective = Effective(privileged=True, network="host", memory_bytes=0, pids=0, readonly_rootfs=True)
    backend.greeting = hello(cap_eff="f", no_new_privs="0", seccomp="0", pid="9", memory_max="max", pids_max="max")
    end(backend, launch(backend, SPEC))


def test_settings_that_were_not_asked_for_are_free(backend: FakeBackend) -> None:
    backend.promise(network="bridge", memory_bytes=0, pids=0, runtime="runsc")
    backend.greeting = hello(memory_max="max", pids_max="max", seccomp="0", uid="1000", gid="1000")
    spec = attrs.evolve(
        SPEC,
        network=Network.bridge(),
        limits=Limits(memory_mb=None, pids=None),
        security=Security(runtime="runsc", user="app"),
    )
    end(backend, launch(backend, spec))


def test_limits_that_an_engine_would_ignore(backend: FakeBackend) -> None:
    info = attrs.evolve(backend.info(), enforceable=frozenset({"memory"}))
    check_limits(Limits(pids=None), info)
    check_limits(Limits(allow_unenforced=True, cpus=1, disk_mb=1), info)
    with pytest.raises(
        LimitsNotEnforceableError, match=r"would ignore limits\.pids in silence.* set it to None"
    ) as caught:
        check_limits(Limits(), info)
    assert caught.value.details["limits"] == ["pids"]
    with pytest.raises(
        LimitsNotEnforceableError, match=r"limits\.pids, limits\.cpus, limits\.disk_mb .*set them to None"
    ):
        check_limits(Limits(cpus=1, disk_mb=1), info)


@pytest.fixture
def sandbox(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.setattr("sandboxkit.sandbox.bundle", lambda: BUNDLE)
    return Sandbox("image", backend)


def test_a_sandbox_s_session(sandbox: Sandbox, backend: FakeBackend) -> None:
    with sandbox.create_session(id="one", env={"A": "b"}, labels={"who": "me"}) as session:
        assert session.id == "one"
        assert session.exec("echo", ["hello"]).stdout == "hello"
    assert backend.calls[0] == "ensure_image"
    assert [call for call in backend.calls if call in STEPS] == STEPS
    (spec,) = backend.specs
    assert (spec.name, spec.image, dict(spec.env)) == ("sandboxkit-one", "image", {"A": "b"})
    assert spec.labels["who"] == "me"
    assert spec.labels["sandboxkit.session"] == "one"


@pytest.mark.parametrize("step", ["ensure_image", *STEPS])
def test_an_error_says_which_session(step: str, sandbox: Sandbox, backend: FakeBackend) -> None:
    backend.fail[step] = raising(ImageNotFoundError("no"))
    with pytest.raises(ImageNotFoundError) as caught:
        sandbox.create_session(id="one")
    if step != "ensure_image":
        assert caught.value.details == {"session": "one", "image": "image"}


def test_limits_are_refused_before_anything_is_made(sandbox: Sandbox, backend: FakeBackend) -> None:
    backend.enforceable = frozenset()
    with pytest.raises(LimitsNotEnforceableError):
        sandbox.create_session()
    assert "create" not in backend.calls
    assert "ensure_image" not in backend.calls


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ctrl-C just after open(): Python closes the file
def test_ctrl_c_at_every_place_of_a_session_s_life(sandbox: Sandbox, backend: FakeBackend) -> None:
    # What is left of a session that was interrupted ends with its stream, as a real container does. The finalizer of
    # a session that was destroyed is one place more.
    def live() -> None:
        with sandbox.create_session() as session:
            session.exec("true")

    place = 0
    for place in itertools.count(1):
        reached = interrupted_at(place, live, finalizers=True)
        for container_id, agent in list(backend.agents.items()):
            for thread in agent._threads[:1]:
                thread.join(10)
                assert not thread.is_alive(), f"place {place}: a container runs on: {backend.calls[-8:]}"
            agent.close()
            del backend.agents[container_id]
        give_back(backend)
        if not reached:
            break
    assert place > 200
