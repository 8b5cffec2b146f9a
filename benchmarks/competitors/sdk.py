"""What both engine SDKs have in common: a container that sleeps, and the SDK's calls on it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from typing import Any

from .base import Competitor

SLEEP = ["sleep", "100000"]


class EngineSdk(Competitor[Any]):
    """Files go in and out as bytes in memory, so this makes and takes apart the tar that the SDK's calls move."""

    def container(self, session: Any) -> str:
        identity: str = session.id
        return identity

    def exec(self, session: Any, argv: Sequence[str]) -> bytes:
        code, output = session.exec_run(list(argv))
        assert code == 0, f"exit code {code}: {output!r}"
        found: bytes = output
        return found

    def write(self, session: Any, path: str, data: bytes) -> None:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        assert session.put_archive("/tmp", tar.getvalue())

    def read(self, session: Any, path: str) -> bytes:
        chunks, _ = session.get_archive(f"/tmp/{path}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            file = archive.extractfile(path)
            assert file is not None
            return file.read()
