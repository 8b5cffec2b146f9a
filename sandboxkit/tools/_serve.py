"""One session's tools for one MCP client over standard input and output, until either ends."""

from __future__ import annotations

import os
import signal as signals
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from sandboxkit.abort import AbortSignal
from sandboxkit.session import Session
from sandboxkit.version import __version__

from ._extras import need
from ._mcp import register

if TYPE_CHECKING:
    from ._tool import Tools

__all__ = ["Wire", "serve_stdio"]

MAX_LINE: Final = 64 * 1024 * 1024
_READ: Final = 65_536
_WRITE: Final = 4096  # a pipe that can be written to takes so much without blocking (pipe(7))

_INSTRUCTIONS: Final = (
    "A disposable Linux sandbox: commands and files in it, nothing of the user's machine but what was given to it. It "
    "ends with this connection."
)


class Wire:
    """Standard input and output of this process, taken away from everybody else: nothing but the protocol is on them.

    Its waits can be cancelled; those of a thread in `readline` could not.
    """

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdout.flush()
        os.dup2(2, 1)  # what anybody prints goes where it harms nothing
        self._waits = not stat.S_ISREG(os.fstat(self._input).st_mode)
        self.ended = AbortSignal()

    async def _lines(self) -> AsyncIterator[str]:
        import anyio

        rest = bytearray()
        while True:
            if self._waits:
                await anyio.wait_readable(self._input)
            chunk = os.read(self._input, _READ)
            seen = len(rest)
            rest += chunk
            while (end := rest.find(b"\n", seen)) >= 0:
                line, seen = bytes(rest[:end]), 0
                del rest[: end + 1]
                yield line.decode("utf-8", "replace")
            if not chunk or len(rest) > MAX_LINE:
                self.ended.set()  # what runs for the client has nobody to answer any more
                return

    def __aiter__(self) -> AsyncIterator[str]:
        return self._lines()

    async def write(self, text: str) -> None:
        """All of it, unless the client is gone: that is seen at the input."""
        import anyio

        data = memoryview(text.encode())
        with suppress(BrokenPipeError):
            while data:
                await anyio.wait_writable(self._output)
                data = data[os.write(self._output, data[:_WRITE]) :]

    async def flush(self) -> None:
        """Nothing is held back."""


def serve_stdio(session: Session, tools: Tools, wire: Wire) -> int:
    """Until the client has gone (0) or a signal came (its number); then the session is destroyed.

    Needs mcp. Runs an event loop in the main thread, with handlers for SIGINT and SIGTERM as long.
    """
    need("serve_stdio", "sandboxkit[mcp]", "mcp")
    import anyio
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    came: list[int] = []

    async def main() -> None:
        server: Server[Any] = Server("sandboxkit", version=__version__, instructions=_INSTRUCTIONS)
        register(tools, server, wire.ended)

        async def until_signal() -> None:
            with anyio.open_signal_receiver(signals.SIGINT, signals.SIGTERM) as received:
                async for number in received:
                    came.append(int(number))
                    wire.ended.set()
                    # First the session: whatever call is in its midst ends by that, however it waits.
                    await anyio.to_thread.run_sync(session.destroy)
                    group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(until_signal)
            file = cast("anyio.AsyncFile[str]", wire)
            async with stdio_server(stdin=file, stdout=file) as (read, write):
                await server.run(read, write, server.create_initialization_options())
            group.cancel_scope.cancel()

    try:
        anyio.run(main)
    finally:
        wire.ended.set()
        session.destroy()
    return came[0] if came else 0
