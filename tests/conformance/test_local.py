"""The suite on the agent as a plain local process: no engine, no container, seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from sandboxkit.backend import Backend, Feature
from sandboxkit.conformance import Conformance, Trait
from tests.support.local import LocalBackend


class Local(Conformance):
    """What both variants share: a folder that plays the engine, for as long as the class's tests run."""

    engine_folder: ClassVar[Path | None] = None
    namespace: ClassVar[bool]

    @classmethod
    def make_backend(cls) -> Backend:
        if cls.engine_folder is None:
            cls.engine_folder = Path(tempfile.mkdtemp(prefix="sandboxkit-local-"))
        return LocalBackend(cls.engine_folder, namespace=cls.namespace)

    @classmethod
    def end_class(cls) -> None:
        super().end_class()
        if cls.engine_folder is not None:
            cls.engine_folder.rmdir()  # no session left anything in it
            cls.engine_folder = None


class TestLocal(Local):
    features = frozenset({Feature.CRASH_CLEANUP})
    traits: ClassVar[frozenset[Trait]] = frozenset()
    namespace = False


class TestLocalNamespace(Local):
    """In a PID namespace of its own, so that the hostile commands can reach nothing but each other."""

    features = frozenset({Feature.CRASH_CLEANUP})
    traits = frozenset({Trait.OWN_PROCESSES})
    namespace = True
