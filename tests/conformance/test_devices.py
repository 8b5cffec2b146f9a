"""Device nodes in a workspace: no sandbox can make one, but a bound folder may hold some."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Limits, PathError, Sandbox, SandboxError, Workspace

from .engines import IMAGES, address

pytestmark = pytest.mark.engine

ENGINES = [("docker", False), ("podman", False), ("podman", True)]
ZERO, WATCHDOG = os.makedev(1, 5), os.makedev(10, 130)


@pytest.fixture(params=ENGINES, ids=["docker", "podman", "podman-rootless"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """With a workspace that holds devices: an endless one, and one that does something when it is merely opened."""
    backend, rootless = request.param
    url = address(backend, rootless=rootless)
    with tempfile.TemporaryDirectory(prefix="sandboxkit-devices-", dir="/var/tmp") as name:
        folder = Path(name)
        os.mknod(folder / "zero", stat.S_IFCHR | 0o666, ZERO)
        os.mknod(folder / "watchdog", stat.S_IFCHR | 0o666, WATCHDOG)
        (folder / "text").write_text("plain\n")
        owner = os.stat(url.removeprefix("unix://")).st_uid
        for path in (folder, *folder.iterdir()):
            os.chown(path, owner, owner)
        yield Sandbox(
            IMAGES["shell"],
            backend,
            url,
            limits=Limits(allow_unenforced=True, timeout=20),
            pull="never",
            workspace=Workspace.bind(folder, allowed=[folder]),
        )


def test_devices_are_refused_without_being_opened(sandbox: Sandbox, tmp_path: Path) -> None:
    with sandbox.create_session() as session:
        files = session.files
        for name in ("zero", "watchdog"):
            for call in (
                lambda name=name: files.read(name),
                lambda name=name: files.read_text_page(name),
                lambda name=name: files.edit(name, "a", "b"),
                lambda name=name: files.write(name, b"x", append=True),
                lambda name=name: files.download(name, tmp_path / "copy"),
            ):
                with pytest.raises((PathError, SandboxError), match="regular file"):
                    call()
            assert stat.S_ISCHR(os.stat(Path(_folder(sandbox)) / name).st_mode), "it is still there"
        kinds = {entry.name: entry.type for entry in files.list(".").entries}
        assert kinds["zero"] == kinds["watchdog"] != kinds["text"]
        assert [match.path for match in files.search(regex="pl.in").matches] == ["text"]
        assert files.read("text") == b"plain\n"


def _folder(sandbox: Sandbox) -> str:
    assert sandbox.workspace.host_path is not None
    return sandbox.workspace.host_path
