"""sandboxkit itself, on an engine or, without one, under bubblewrap."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import sandboxkit
from sandboxkit import Limits, Pool, Sandbox, Session

from .base import Competitor, Engine

GIB = 1 << 30


class Sandboxkit(Competitor[Session]):
    """The public API and nothing else."""

    modules = ("sandboxkit",)

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        limits = Limits(
            timeout=300,
            max_output_bytes=GIB,
            max_file_bytes=GIB,
            max_concurrent_execs=512,
            pids=4096,
            allow_unenforced=True,
        )
        host = engine.backend == "host"
        self._sandbox = (
            Sandbox("host", "bubblewrap", limits=limits)
            if host
            else Sandbox(image, engine.backend, engine.url, limits=limits, pull="never")
        )
        self._pool: Pool | None = None
        self._kept = contextlib.ExitStack()

    def open(self) -> Session:
        return self._sandbox.create_session()

    def close(self, session: Session) -> None:
        session.destroy()

    def exec(self, session: Session, argv: Sequence[str]) -> bytes:
        return session.exec(argv[0], argv[1:]).check().stdout_bytes

    def exec_timeout(self, session: Session, argv: Sequence[str], seconds: float) -> None:
        # Without the grace that a command gets by default after its SIGTERM: the others give none.
        result = session.exec(argv[0], argv[1:], timeout=seconds, kill_grace=0)
        assert result.timed_out

    def exec_abort(self, session: Session, argv: Sequence[str], abort: threading.Event) -> None:
        assert session.exec(argv[0], argv[1:], abort=abort).aborted

    def exec_flood(self, session: Session, argv: Sequence[str]) -> None:
        # With the cap that a session has unless it is told otherwise.
        assert session.exec(argv[0], argv[1:], max_output_bytes=Limits().max_output_bytes).check().stdout_truncated

    def write(self, session: Session, path: str, data: bytes) -> None:
        session.files.write(path, data)

    def read(self, session: Session, path: str) -> bytes:
        return session.files.read(path)

    def list(self, session: Session, folder: str) -> int:
        return len(session.files.list(folder).entries)

    def acquire(self) -> tuple[float, float]:
        if self._pool is None:
            self._pool = Pool(self._sandbox, 1)
        self._pool.wait_warm(60)
        start = time.perf_counter()
        with self._pool.acquire() as session:
            acquired = time.perf_counter() - start
            session.exec("true").check()
            ran = time.perf_counter() - start
        self._pool.wait_warm(60)  # or making the next one would slow whatever is measured after this
        return acquired, ran

    def serve(self, program: str, port: int) -> int:
        session = self._kept.enter_context(self._sandbox.create_session())
        server = self._kept.enter_context(
            session.exec_stream("python3", ["-c", program, "127.0.0.1", str(port)], timeout=3600)
        )
        next(server)
        url = self._kept.enter_context(session.ports.forward(port))
        return int(url.rpartition(":")[2])

    def program_size(self) -> int:
        agents = Path(sandboxkit.__file__).parent / "_agents"
        return max(path.stat().st_size for path in agents.glob("agent-*"))

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._kept.close()
