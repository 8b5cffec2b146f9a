"""An ephemeral workspace can be written by the container's user, whoever it is and whatever the image has there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from _system import BUILD

from sandboxkit.config import Security

from .lab import BUSYBOX, NONROOT, Lab

# The folder's owner and mode, whether something can be made in it, and what the image put there.
SCRIPT = (
    "stat -c %u /workspace; touch /workspace/new && mkdir /workspace/d && echo ok; cat /workspace/given 2>/dev/null"
)
PASSWD = b"root:x:0:0::/:/bin/sh\nsomeone:x:4321:4321::/:/bin/sh\n"


def image_tar(path: Path, owner: int | None) -> Path:
    """The busybox image with a user `someone`, and with a workspace of its own when it has an owner."""
    with tarfile.open(BUILD / "images" / "busybox.tar") as source, tarfile.open(path, "w") as target:
        for member in source:
            if member.name.lstrip("./") != "etc/passwd":
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        entries = [("etc/passwd", tarfile.REGTYPE, 0, PASSWD)]
        if owner is not None:
            entries += [
                ("workspace", tarfile.DIRTYPE, owner, b""),
                ("workspace/given", tarfile.REGTYPE, owner, b"hi\n"),
            ]
        for name, kind, uid, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.uid, entry.gid, entry.size = kind, uid, uid, len(content)
            entry.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            target.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def make_image(lab: Lab, tmp_path: Path) -> Iterator[str]:
    name = f"sandboxkit-lab/w{lab.token[:8]}"
    yield name
    lab.remove_image(f"localhost/{name}" if lab.engine.backend == "podman" else name)


@pytest.mark.parametrize("image", [BUSYBOX, NONROOT])
@pytest.mark.parametrize("user", [None, "1000", "2000:3000"])
def test_an_image_without_such_a_folder(lab: Lab, image: str, user: str | None) -> None:
    uid, written = lab.run(SCRIPT, image=image, security=Security(user=user)).stdout.split()
    assert written == "ok"
    assert uid == (user or ("1000" if image == NONROOT else "0")).partition(":")[0]


@pytest.mark.parametrize("readonly", [False, True], ids=["writable-root", "readonly-root"])
@pytest.mark.parametrize("owner", [None, 0, 1000], ids=["no-folder", "roots-folder", "somebodys-folder"])
def test_an_image_with_a_user_of_its_own(
    lab: Lab, make_image: str, tmp_path: Path, owner: int | None, readonly: bool
) -> None:
    lab.import_image(make_image, image_tar(tmp_path / "image.tar", owner), "USER someone")
    given = [] if owner is None else ["hi"]
    for user, uid in ((None, "4321"), ("root", "0"), ("1000", "1000")):
        output = lab.run(SCRIPT, image=make_image, security=Security(user=user, readonly_rootfs=readonly))
        assert output.stdout.split() == [uid, "ok", *given], (user, output.stderr)
