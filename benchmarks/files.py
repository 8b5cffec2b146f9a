"""Reading and writing one large file: `session.files` against the engine SDK's get_archive and put_archive.

    python benchmarks/files.py [--mib 64] [--runs 5]

Both sides begin and end with the file's bytes in memory; so the SDK's side makes or takes apart the tar that its calls
move. Needs `make images`.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tarfile
from collections.abc import Callable

from _engines import Engine, EngineContainer, engines, interleaved

from sandboxkit import Limits

MIB = 1 << 20


class Archives(EngineContainer):
    """The same through the engine's SDK."""

    def write(self, data: bytes) -> None:
        """put_archive of a tar of one file."""
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            info = tarfile.TarInfo("file")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        assert self._container.put_archive("/tmp", tar.getvalue())

    def read(self) -> bytes:
        """get_archive, and the file out of it."""
        chunks, _ = self._container.get_archive("/tmp/file")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            file = archive.extractfile("file")
            assert file is not None
            return file.read()


def measure(engine: Engine, mib: int, runs: int) -> None:
    """One engine: MiB/s of each, then the ratios."""
    data = os.urandom(mib * MIB)
    limits = Limits(max_file_bytes=len(data), timeout=300, allow_unenforced=True)
    archives = Archives(engine)

    def same(found: bytes) -> None:
        assert found == data

    try:
        with engine.sandbox(limits).create_session() as session:
            calls: dict[str, Callable[[], object]] = {
                "write": lambda: session.files.write("file", data),
                "put_archive": lambda: archives.write(data),
                "read": lambda: same(session.files.read("file")),
                "get_archive": lambda: same(archives.read()),
            }
            times = interleaved(calls, dict.fromkeys(calls, runs))
    finally:
        archives.remove()
    rates = {name: mib / statistics.median(found) for name, found in times.items()}
    print(engine)
    for name, rate in rates.items():
        print(f"  {name:12} {rate:8.1f} MiB/s (at {mib} MiB)")
    for ours, theirs in (("write", "put_archive"), ("read", "get_archive")):
        print(f"  {ours} / {theirs}: {rates[ours] / rates[theirs]:.2f} (must be at least 2)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description="A large file in and out.")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for engine in engines():
        measure(engine, options.mib, options.runs)


if __name__ == "__main__":
    main()
