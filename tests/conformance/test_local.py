"""The suite on the agent as a plain local process: no engine, no container, seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from sandboxkit.backend import Backend, Feature
from sandboxkit.conformance import Conformance, Trait
from tests.support.local import LocalBackend


class Local(Conformance):
    """What both variants share: a folder that plays the engine."""

    folder: ClassVar[Path]
    namespace: ClassVar[bool]

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.folder = Path(tempfile.mkdtemp(prefix="sandboxkit-local-"))

    @classmethod
    def make_backend(cls) -> Backend:
        return LocalBackend(cls.folder, namespace=cls.namespace)


class TestLocal(Local):
    features = frozenset({Feature.CRASH_CLEANUP})
    traits: ClassVar[frozenset[Trait]] = frozenset()
    namespace = False


class TestLocalNamespace(Local):
    """In a PID namespace of its own, so that the hostile commands can reach nothing but each other."""

    features = frozenset({Feature.CRASH_CLEANUP})
    traits = frozenset({Trait.OWN_PROCESSES})
    namespace = True
