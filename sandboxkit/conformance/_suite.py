"""What every test class stands on: the backend under test, its sessions, and the leak check around each test."""

from __future__ import annotations

import contextlib
import enum
import gc
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import attrs
import pytest

from sandboxkit import Limits, Sandbox, Session, SessionState
from sandboxkit.backend import Backend, EngineInfo, Feature

from ._inside import command_count
from ._watch import children, open_files, thread_names, wait_until

F = TypeVar("F", bound=Callable[..., object])

RUN_LABEL = "sandboxkit-conformance"
RUN = uuid.uuid4().hex[:12]

POOLED_SOCKETS = 32
"""An engine's client may keep as many idle connections more than when the class began."""


SETTLE = 3.0
"""Seconds that finalizers and the engine get to give back what a test has let go of."""


class Trait(str, enum.Enum):
    """What a container is and a plain process is not. A backend whose sandboxes lack one says so in `Suite.traits`."""

    OWN_PROCESSES = "own_processes"
    """Commands see no process of the host: a PID namespace whose PID 1 is the agent."""
    OWN_FILES = "own_files"
    """Commands see the image's files, the workspace at `Session.workspace`, the agent's folder: a mount namespace."""


Requirement = Feature | Trait


def needs(*requirements: Requirement) -> Callable[[F], F]:
    """The test is part of the suite of a backend that has all of these."""
    return _mark("_needs", requirements)


def without(*requirements: Requirement) -> Callable[[F], F]:
    """The test is part of the suite of a backend that has none of these."""
    return _mark("_without", requirements)


def _mark(name: str, requirements: Sequence[Requirement]) -> Callable[[F], F]:
    def mark(test: F) -> F:
        setattr(test, name, frozenset(requirements))
        return test

    return mark


def applies(test: object, had: Collection[Requirement]) -> bool:
    """Whether the test is part of the suite of a backend that has all in `had`."""
    wanted: frozenset[Requirement] = getattr(test, "_needs", frozenset())
    unwanted: frozenset[Requirement] = getattr(test, "_without", frozenset())
    return wanted <= frozenset(had) and unwanted.isdisjoint(had)


class Suite:
    """The base of every test class. A backend's author sets the first three and writes `make_backend`."""

    features: ClassVar[frozenset[Feature]]
    """What the backend declares; a test compares it with `Backend.features`."""

    traits: ClassVar[frozenset[Trait]] = frozenset(Trait)

    images: ClassVar[Mapping[str, str]] = {}
    """From what an image can do (see the package's docstring) to its name on this engine."""

    _rig: ClassVar[Rig | None] = None

    @classmethod
    def make_backend(cls) -> Backend:
        """A new connection to the engine: one for the class, and more for tests that need a second one."""
        raise NotImplementedError

    @classmethod
    def leftovers(cls, backend: Backend) -> Collection[str]:
        """What is on the engine because of this class's containers besides them, such as the names of their volumes."""
        return ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "features" in cls.__dict__:
            # Chosen here and not skipped at run time, so that every skip that a run does show is a mistake.
            for name in standard_tests(cls):
                if not applies(getattr(cls, name), {*cls.features, *cls.traits}):
                    setattr(cls, name, None)

    # For tests.

    @property
    def rig(self) -> Rig:
        assert self._rig is not None
        return self._rig

    @property
    def backend(self) -> Backend:
        return self.rig.backend

    @property
    def info(self) -> EngineInfo:
        return self.rig.backend.info()

    def limits(self, **changes: Any) -> Limits:
        """Limits that this engine takes: it may enforce few."""
        return self.rig.limits(**changes)

    def sandbox(self, image: str = "shell", **options: Any) -> Sandbox:
        """A Sandbox on the backend under test; `image` by what it can do."""
        return self.rig.sandbox(image, **options)

    def create(self, image: str = "shell", *, id: str | None = None, **options: Any) -> Session:
        """A session of the test's own, which is destroyed after it if it is not yet."""
        return self.rig.create(image, id=id, **options)

    @pytest.fixture(autouse=True)
    def leak_check(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """After each test everything is as it was before it."""
        suite = type(self)
        if suite._rig is None:
            suite._rig = Rig(suite)
            node = request.node.getparent(pytest.Class)
            assert node is not None
            node.addfinalizer(suite.end_class)
        rig = suite._rig
        rig.begin_test()
        yield
        rig.end_test()

    @pytest.fixture
    def session(self) -> Session:
        """A session of the image "shell" that the class's tests share."""
        return self.rig.shared("shell")

    @pytest.fixture
    def python_session(self) -> Session:
        """A session of the image "python" that the class's tests share."""
        return self.rig.shared("python")

    @classmethod
    def end_class(cls) -> None:
        """After the class's last test: nothing is left of its sessions. To be extended, not replaced."""
        rig, cls._rig = cls._rig, None
        if rig is not None:
            rig.close()


def standard_tests(suite: type[Suite]) -> dict[str, object]:
    """The tests this package defines for the class, by name: those the backend's features leave out too."""
    found: dict[str, object] = {}
    for base in reversed(suite.__mro__):
        if base.__module__.startswith("sandboxkit.conformance."):
            found.update({name: value for name, value in vars(base).items() if name.startswith("test_")})
    return found


@attrs.frozen
class Held:
    """What this process and the engine hold on behalf of the suite at one moment."""

    containers: frozenset[str]
    leftovers: frozenset[str]
    files: tuple[str, ...]
    sockets: int
    children: frozenset[tuple[int, str]]
    threads: tuple[str, ...]
    commands: int

    def against(self, before: Held) -> list[str]:
        """What has come or gone since."""
        found = []
        for name in ("containers", "leftovers", "files", "children", "threads"):
            old, new = getattr(before, name), getattr(self, name)
            if old != new:
                found.append(f"{name} were {sorted(old)} and are {sorted(new)}")
        if self.commands != before.commands:
            found.append(f"{before.commands} processes ran in the shared sandbox and {self.commands} do")
        if self.sockets > before.sockets + POOLED_SOCKETS:
            found.append(f"{before.sockets} sockets were open and {self.sockets} are")
        return found


class Rig:
    """One class's connection to its engine and its sessions."""

    def __init__(self, suite: type[Suite]) -> None:
        self._suite = suite
        self.backend = suite.make_backend()
        self._shared: dict[str, Session] = {}
        self._own: list[Session] = []
        self._before: Held | None = None

    def limits(self, **changes: Any) -> Limits:
        enforced = {"memory", "pids"} <= self.backend.info().enforceable
        return Limits(**{"allow_unenforced": not enforced, **changes})

    def sandbox(self, image: str, **options: Any) -> Sandbox:
        labels = {RUN_LABEL: RUN, **options.pop("labels", {})}
        options.setdefault("limits", self.limits())
        options.setdefault("pull", "never")
        return Sandbox(self._suite.images.get(image, image), self.backend, labels=labels, **options)

    def create(self, image: str, *, id: str | None, **options: Any) -> Session:
        session = self.sandbox(image, **options).create_session(id=id)
        self._own.append(session)
        return session

    def shared(self, image: str) -> Session:
        session = self._shared.get(image)
        if session is None:
            session = self.sandbox(image).create_session()
            self._shared[image] = session
            self._before = None  # from here on it is part of what is held
        return session

    def begin_test(self) -> None:
        self.shared("shell")
        if self._before is None:
            self._before = self._held()

    def end_test(self) -> None:
        own, self._own = self._own, []
        for session in own:
            session.destroy()
        lost = [image for image, session in self._shared.items() if session.state is not SessionState.RUNNING]
        if lost:
            for image in lost:
                self._shared.pop(image).destroy()
            self._before = None
            raise AssertionError(f"the test lost the shared session of {', '.join(lost)}")
        before = self._before
        if before is None:  # a further shared session was made: the next test starts from here
            return
        self._check(before)

    def close(self) -> None:
        for session in (*self._own, *self._shared.values()):
            session.destroy()
        self._shared.clear()
        self._own.clear()
        gc.collect()
        held = self._held()
        self.backend.close()
        assert not held.containers, f"containers are left over: {sorted(held.containers)}"
        assert not held.leftovers, f"left over on the engine: {sorted(held.leftovers)}"
        wait_until(lambda: not thread_names(), "sandboxkit's threads end")

    def _check(self, before: Held) -> None:
        # What finalizers and the engine do late is waited for. A leak is told once, by the test that made it.
        problems: list[str] = []

        def clean() -> bool:
            problems[:] = self._held().against(before)
            return not problems

        if clean():
            return
        gc.collect()
        try:
            with contextlib.suppress(AssertionError):
                wait_until(clean, "nothing is left over", SETTLE)
        finally:
            if problems:
                self._before = None
        assert not problems, "the test left something behind: " + "; ".join(problems)

    def _held(self) -> Held:
        files, sockets = open_files()
        commands = 0
        if Trait.OWN_PROCESSES in self._suite.traits and "shell" in self._shared:
            commands = command_count(self._shared["shell"])
        return Held(
            containers=frozenset(status.name for status in self.backend.list({RUN_LABEL: RUN})),
            leftovers=frozenset(self._suite.leftovers(self.backend)),
            files=tuple(files),
            sockets=sockets,
            children=frozenset(children()),
            threads=tuple(thread_names()),
            commands=commands,
        )
