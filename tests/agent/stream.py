"""An agent's process and the host's end of its stream, as bytes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.agent.processes import DEADLINE


class Stream:
    """An agent's process, and the bytes to and from it."""

    ended = False

    def __init__(
        self,
        binary: Path,
        workspace: Path,
        *,
        prefix: Sequence[str] = (),
        pipes: bool = False,
        env: Mapping[str, str] | None = None,
        stderr: int | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        command = [*prefix, str(binary), "--workspace", str(workspace), *arguments]
        if pipes:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, bufsize=0
            )
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self._in = self.process.stdout.fileno()
            self._out = self.process.stdin.fileno()
            self._socket = None
        else:
            ours, theirs = socket.socketpair()
            with theirs:
                end = theirs.fileno()
                self.process = subprocess.Popen(command, stdin=end, stdout=end, stderr=stderr, env=env)
            self._socket = ours
            self._in = self._out = ours.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._received = bytearray()
        self._unsent = bytearray()

    def send_raw(self, data: bytes) -> None:
        """Queues bytes and writes what the stream takes now; the rest goes out while something is awaited."""
        self._unsent += data
        self._write()

    def _write(self) -> None:
        while self._unsent:
            try:
                count = os.write(self._out, self._unsent[: 1 << 20])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()
                return
            del self._unsent[:count]

    def _read(self) -> bool:
        try:
            data = os.read(self._in, 1 << 20)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
        self._received += data
        return True

    def pump(self, deadline: float) -> None:
        """Waits until bytes have moved, in either direction; fails the test at the deadline."""
        poll = select.poll()
        poll.register(self._in, select.POLLIN)
        if self._unsent:
            poll.register(self._out, select.POLLOUT | (select.POLLIN if self._out == self._in else 0))
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise AssertionError(f"nothing from the agent before the deadline; {self.describe()}")
        self._write()
        self._read()

    def flush(self, timeout: float = DEADLINE) -> None:
        """Returns when all that was sent is in the stream: before a test waits for anything but the agent's frames."""
        deadline = time.monotonic() + timeout
        while self._unsent:
            self.pump(deadline)

    def describe(self) -> str:
        """For whoever waits in vain."""
        return f"agent {self.process.pid} returned {self.process.poll()}"

    def close_input(self) -> None:
        """End of file for the agent, behind all that was sent; what it still sends can be read."""
        self.flush()
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_WR)
        else:
            assert self.process.stdin is not None
            self.process.stdin.close()

    def close(self, timeout: float = DEADLINE) -> int:
        """Ends the session as a host does; returns the agent's exit code."""
        if self._socket is not None:
            self._socket.close()
        else:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
        return self.process.wait(timeout)

    def destroy(self) -> None:
        """For a failed test: nothing is left, whatever state it is in."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.close(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
