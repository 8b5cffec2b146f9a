"""Calls on other threads, other processes and at other moments: the one place of the suite that starts threads."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Generic, TypeVar

from typing_extensions import Self

from ._watch import MARGIN, wait_until

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds a test waits for a call that must return, before it says that it hangs."""


class Background(Generic[T]):
    """A call that runs on a thread of its own from now on."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="conformance", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds: float = PATIENCE) -> T:
        """What the call returned or raised; AssertionError when it does neither."""
        self._thread.join(seconds * MARGIN)
        assert not self.running, f"a call still hangs after {seconds * MARGIN:g} s"
        if self._error is not None:
            raise self._error
        return self._value[0]


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """All calls at once, each on a thread; their results in order, or the first error."""
    gate = threading.Barrier(len(calls))

    def held(call: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            gate.wait(PATIENCE)
            return call()

        return run

    running = [Background(held(call)) for call in calls]
    return [background.result() for background in running]


class ForkedChild:
    """`body` in a forked copy of this process; the lines it tells come back. It runs none of its parent's endings."""

    def __init__(self, body: Callable[[Callable[[str], None]], None]) -> None:
        self._read, write = os.pipe()
        self._rest = b""
        self._code: int | None = None
        with warnings.catch_warnings():
            # Python 3.12 warns of forks with threads about. That is the very case; the child takes no lock of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._read)
                body(lambda line: _write_line(write, line))
                code = 0
            except BaseException as error:  # noqa: BLE001 - this process ends here
                _write_line(write, f"error: {error!r}")
            finally:
                os._exit(code)
        os.close(write)

    def read_line(self, seconds: float = PATIENCE) -> str:
        """The next line it tells; empty when it has ended."""
        deadline = time.monotonic() + seconds * MARGIN
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"the child said nothing within {seconds * MARGIN:g} s"
            data = os.read(self._read, 65536)
            if not data:
                return ""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        """SIGKILL, and it is reaped."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Its exit code; negative for a signal."""

        def ended() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            return pid != 0

        if self._code is None:
            wait_until(ended, "the forked child ends", PATIENCE)
            os.close(self._read)
        assert self._code is not None
        return self._code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


def _write_line(descriptor: int, line: str) -> None:
    os.write(descriptor, line.replace("\n", "\\n").encode() + b"\n")


class Interrupts:
    """Ctrl-C for this process's main thread, made inside the block of `interrupts()` alone: outside it does nothing."""

    def __init__(self) -> None:
        self._armed = False

    def now(self) -> None:
        """As the terminal does it: SIGINT for the process. From any thread."""
        os.kill(os.getpid(), signal.SIGINT)

    def when(self, condition: Callable[[], object], what: str) -> Background[None]:
        """`now` as soon as `condition` holds; looked at on another thread."""

        def run() -> None:
            wait_until(condition, what)
            self.now()

        return Background(run)

    @contextlib.contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        """Once, `seconds` from now, if the block has not ended by then."""
        self._armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            yield
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def raise_if_armed(self, number: int, frame: FrameType | None) -> None:
        """The handler of both signals, which does what Python's own does."""
        if number == signal.SIGINT or self._armed:
            self._armed = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Only in the main thread, as Python's own handler."""
    made = Interrupts()
    before = {number: signal.signal(number, made.raise_if_armed) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
