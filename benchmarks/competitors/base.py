"""What a competitor is: one way to run commands in a sandbox, as the measurements use it.

Only the standard library: this is imported by processes that live in the competitors' own environments.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class UnsupportedError(Exception):
    """The competitor has no such operation; the message is the reason that the results give."""


@dataclass(frozen=True)
class Engine:
    """Where containers run. `host` is no engine: this machine itself."""

    backend: str
    url: str = ""
    rootless: bool = False

    @property
    def name(self) -> str:
        """What the results call it."""
        return f"{self.backend}-rootless" if self.rootless else self.backend

    def cli(self, *arguments: str) -> list[str]:
        """A command line of the engine's own client at this very address."""
        return [self.backend, "--host" if self.backend == "docker" else "--url", self.url, *arguments]


class Competitor(Generic[S]):
    """Subclasses fill in what the competitor can do; the rest says that it can't.

    One instance lives in one worker process and serves one engine. `exec` may be called from many threads at once.
    """

    modules: tuple[str, ...] = ()
    """What a program that uses the competitor imports; the first says how long the import takes."""

    frames_in_output = False
    """Whether output comes back with the engine's frame headers in it, so that its length proves nothing."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine = engine
        self.image = image
        self.kept: set[str] = set()  # further containers that live until `stop`, as `container` names them

    def open(self) -> S:
        """A new sandbox in which a command can be run: from nothing, the image being there."""
        raise NotImplementedError

    def open_with_volume(self) -> S:
        """The same with an anonymous volume, as a sandbox of sandboxkit has one."""
        return self.open()

    def container(self, session: S) -> str | None:
        """Id or name of the session's container, with which the driver removes what a killed worker leaves."""
        return None

    def close(self, session: S) -> None:
        """The way the competitor ends a sandbox, until nothing of it is left."""
        raise NotImplementedError

    def exec(self, session: S, argv: Sequence[str]) -> bytes:
        """Run a command to its end and return its standard output; an exception if it fails."""
        raise NotImplementedError

    def exec_timeout(self, session: S, argv: Sequence[str], seconds: float) -> None:
        """Run a command that will not end by itself with a timeout; return when the competitor gives up."""
        raise UnsupportedError("no timeout for a command")

    def exec_abort(self, session: S, argv: Sequence[str], abort: threading.Event) -> None:
        """Run a command that will not end by itself and end it when the event is set; return when it has ended."""
        raise UnsupportedError("no way to end a running command")

    def exec_flood(self, session: S, argv: Sequence[str]) -> None:
        """Run a command that prints far more than anyone wants to keep."""
        self.exec(session, argv)

    def write(self, session: S, path: str, data: bytes) -> None:
        """A file from bytes in memory."""
        raise UnsupportedError("no call that writes a file")

    def read(self, session: S, path: str) -> bytes:
        """A file's bytes, in memory."""
        raise UnsupportedError("no call that reads a file")

    def list(self, session: S, folder: str) -> int:
        """How many entries a folder has, each with what `ls -l` tells of it."""
        return len(self.exec(session, ["ls", "-lA", folder]).splitlines()) - 1  # the total is a line too

    def acquire(self) -> tuple[float, float]:
        """Seconds to get a ready sandbox from a warm pool, and until a first command's result."""
        raise UnsupportedError("no pool of ready sandboxes")

    def serve(self, program: str, port: int) -> int:
        """Run a Python program, whose arguments are an address and this port to listen on, in a new sandbox until
        `stop`; return the port of this host's 127.0.0.1 that leads there."""
        raise UnsupportedError("no way to a server in the sandbox was tried")

    def program_size(self) -> int:
        """Bytes of the one program that it brings into a container."""
        raise UnsupportedError("no program that it brings into a container")

    def stop(self) -> None:
        """Give back what the competitor holds; called once, at the end."""


class AsyncCompetitor(Competitor[S]):
    """A competitor with an asynchronous API: one event loop, in a thread of its own."""

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop; any thread may."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
