"""The conformance tests of applets once more: with the agent under sanitizers, and as on a kernel of 2018.

That kernel has no openat2, so paths are walked by hand; and the filter that plays it makes nameless drafts impossible,
so they have names.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import attrs
import pytest

from sandboxkit import sandbox
from sandboxkit._bundle import bundle
from sandboxkit.backend import AgentBundle, Backend, Feature
from sandboxkit.conformance import Suite, Trait
from sandboxkit.conformance._file_safety import Atomicity, Outside
from sandboxkit.conformance._file_transfers import Pages, Search, Transfers
from sandboxkit.conformance._files import FileContents, FileNames, Folders
from sandboxkit.conformance._ports import Ports
from sandboxkit.conformance._tools import Programs
from tests.agent import build
from tests.support.local import LocalBackend


class OtherAgent(Suite):
    """The local backend with another binary than the one that ships."""

    folder: ClassVar[Path]
    build_digest: ClassVar[str | None] = None  # what it says in HELLO; None: as the one that ships

    @classmethod
    def command(cls, folder: Path) -> Path:
        """What is run in the agent's place."""
        raise NotImplementedError

    @classmethod
    def make_backend(cls) -> Backend:
        cls.folder = Path(tempfile.mkdtemp(prefix="sandboxkit-local-"))
        return LocalBackend(cls.folder)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def other_bundle(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """For as long as the class has sessions."""
        command = cls.command(tmp_path_factory.mktemp("agent"))
        real = bundle()

        def other() -> AgentBundle:
            paths = {**real.paths, platform.machine(): command}
            return attrs.evolve(real, build=cls.build_digest or real.build, paths=paths)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sandbox, "bundle", other)
            yield


def script(folder: Path, line: str) -> Path:
    """A program that becomes another."""
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


class TestOldKernel(
    FileContents, FileNames, Folders, Outside, Atomicity, Pages, Search, Transfers, Ports, Programs, OtherAgent
):
    features = frozenset({Feature.CRASH_CLEANUP})
    traits: ClassVar[frozenset[Trait]] = frozenset()

    @classmethod
    def command(cls, folder: Path) -> Path:
        return script(folder, f'exec {build.tool("old_kernel")} {build.release(platform.machine())} "$@"')


class TestSanitized(
    FileContents, FileNames, Folders, Outside, Atomicity, Pages, Search, Transfers, Ports, Programs, OtherAgent
):
    features = frozenset({Feature.CRASH_CLEANUP})
    traits: ClassVar[frozenset[Trait]] = frozenset()
    build_digest = "0" * 16

    @classmethod
    def command(cls, folder: Path) -> Path:
        return script(folder, f'ASAN_OPTIONS=detect_leaks=0 exec {build.sanitized()} "$@"')
