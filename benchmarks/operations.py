"""What is done to a competitor, and timed: inside its own process, so that talking to the driver is in no figure."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import processes, served
from .competitors.base import Competitor, UnsupportedError

PYCACHE = Path(__file__).parent.parent / "build" / "bench" / "pycache"
Samples = dict[str, list[float]]
SERVER_PORT = 8000
START = 20.0  # seconds that a server may take to be reached
PATIENCE = 3.0  # seconds after which what still lives is a survivor
# Four processes: one in a session of its own, one that ignores SIGTERM, as build tools and servers leave them.
TREE = "sleep {0} & setsid sleep {0} & (trap '' TERM; exec sleep {0}) & sleep {0}"
TREE_SIZE = 4


def _text(size: int) -> bytes:
    """So many bytes that compress badly, and that a competitor which carries text alone can carry."""
    return base64.b64encode(random.randbytes(size * 3 // 4 + 3))[:size]


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Operations:
    """Each public method is an operation; it returns samples by name. `notice` hears of containers made and ended."""

    def __init__(self, competitor: Competitor[Any], notice: Callable[[str, str], object], bare_mib: float) -> None:
        self._competitor = competitor
        self._notice = notice
        self._bare_mib = bare_mib
        self._warm: Any = None
        self._port: int | None = None

    def exec(self, repeat: int, argv: list[str]) -> Samples:
        """One command in a warm session."""
        session = self._session()
        return {"seconds": [timed(lambda: self._competitor.exec(session, argv)) for _ in range(repeat)]}

    def life(self, repeat: int) -> Samples:
        """From nothing to the first result; then the end."""
        samples: Samples = {"cold": [], "close": []}
        for _ in range(repeat):
            start = time.perf_counter()
            session = self._open(self._competitor.open)
            self._competitor.exec(session, ["true"])
            samples["cold"].append(time.perf_counter() - start)
            samples["close"].append(self._close(session))
        return samples

    def destroy(self, repeat: int) -> Samples:
        """The end of a running sandbox that has a volume."""
        samples = []
        for _ in range(repeat):
            session = self._open(self._competitor.open_with_volume)
            self._competitor.exec(session, ["true"])
            samples.append(self._close(session))
        return {"seconds": samples}

    def stdout(self, repeat: int, size: int) -> Samples:
        """So many bytes of output, captured."""
        session = self._session()

        def run() -> None:
            found = self._competitor.exec(session, ["head", "-c", str(size), "/dev/zero"])
            if not self._competitor.frames_in_output:
                assert len(found) == size, f"{len(found)} bytes came, not {size}: {found[:200]!r}"

        return {"seconds": [timed(run) for _ in range(repeat)]}

    def write(self, repeat: int, size: int) -> Samples:
        """A file from memory."""
        session, data = self._session(), _text(size)
        return {"seconds": [timed(lambda: self._competitor.write(session, "written", data)) for _ in range(repeat)]}

    def read(self, repeat: int, size: int) -> Samples:
        """A file into memory; what comes back is compared."""
        session, data = self._session(), _text(size)
        self._competitor.write(session, "read", data)
        samples = []
        for _ in range(repeat):
            start = time.perf_counter()
            found = self._competitor.read(session, "read")
            samples.append(time.perf_counter() - start)
            assert found == data, f"{len(found)} other bytes came back, not the {len(data)} that were written"
        return {"seconds": samples}

    def list(self, repeat: int, count: int) -> Samples:
        """A folder of empty files."""
        session = self._session()
        script = f"mkdir -p many && cd many && i=0 && while [ $i -lt {count} ]; do : >file$i; i=$((i+1)); done"
        self._competitor.exec(session, ["sh", "-c", script])
        samples = []
        for _ in range(repeat):
            start = time.perf_counter()
            found = self._competitor.list(session, "many")
            samples.append(time.perf_counter() - start)
            assert found == count, f"{found} entries, not {count}"
        return {"seconds": samples}

    def threads(self, repeat: int, threads: int, each: int) -> Samples:
        """Seconds a command, `each` commands in each of so many threads; every one must answer with its own number."""
        session = self._session()

        def work(thread: int) -> None:
            for number in range(thread * each, (thread + 1) * each):
                answer = self._competitor.exec(session, ["echo", str(number)]).strip()
                wanted = str(number).encode()
                right = answer.endswith(wanted) if self._competitor.frames_in_output else answer == wanted
                assert right, f"{answer!r} came, not {number}"

        def run() -> None:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(work, thread) for thread in range(threads)]:
                    done.result()

        return {"seconds": [timed(run) / (threads * each) for _ in range(repeat)]}

    def abort(self, repeat: int) -> Samples:
        """From the abort of a command with children until the call has returned and all are dead; how many are not."""
        session = self._session()
        samples: Samples = {"seconds": [], "survivors": []}
        for _ in range(repeat):
            event = threading.Event()
            tree = _Tree(lambda argv, event=event: self._competitor.exec_abort(session, argv, event))  # type: ignore[misc]
            start = time.perf_counter()
            event.set()
            tree.finish(samples, start)
        return samples

    def timeout(self, repeat: int) -> Samples:
        """The same from the moment on at which a timeout of one second is over."""
        session = self._session()
        samples: Samples = {"seconds": [], "survivors": []}
        for _ in range(repeat):
            start = time.perf_counter()
            tree = _Tree(lambda argv: self._competitor.exec_timeout(session, argv, 1.0))
            tree.finish(samples, start + 1.0)
        return samples

    def pool(self, repeat: int) -> Samples:
        """A session from a warm pool, and a first command in it."""
        pairs = [self._competitor.acquire() for _ in range(repeat)]
        self._notice_kept()
        return {"acquire": [acquired for acquired, _ in pairs], "first": [ran for _, ran in pairs]}

    def request(self, repeat: int) -> Samples:
        """One connection to a server in the sandbox, with a few bytes each way."""
        port = self._served()
        return {"seconds": [timed(lambda: served.get(port, 10)) for _ in range(repeat)]}

    def download(self, repeat: int, size: int) -> Samples:
        """So many bytes from a server in the sandbox, over one connection."""
        port = self._served()
        return {"seconds": [timed(lambda: served.get(port, size)) for _ in range(repeat)]}

    def upload(self, repeat: int, size: int) -> Samples:
        """The other way."""
        port = self._served()
        return {"seconds": [timed(lambda: served.put(port, size)) for _ in range(repeat)]}

    def memory(self, repeat: int) -> Samples:
        """MiB that one session takes at rest: of this process beyond a bare Python, and in the container."""
        session = self._session()
        for _ in range(20):
            self._competitor.exec(session, ["true"])
        here = processes.memory("VmRSS") - self._bare_mib
        return {"host": [here], **{name: [mib] for name, mib in self._inside(session).items()}}

    def program(self, repeat: int) -> Samples:
        """Bytes of what is put into a container to run commands there."""
        return {"bytes": [float(self._competitor.program_size())]}

    def imports(self, repeat: int) -> Samples:
        """Seconds of the import statement, in new interpreters; `modules` counts what it loads.

        All alike from compiled files in a folder of ours: installed packages have theirs, a source tree may not.
        """
        if not self._competitor.modules:
            raise UnsupportedError("no Python package")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        code = "import sys, time; b = len(sys.modules); t = time.perf_counter()\n"
        code += f"import {', '.join(self._competitor.modules)}\n"
        code += "print(time.perf_counter() - t, len(sys.modules) - b)"
        samples: Samples = {"seconds": [], "modules": []}
        for _ in range(repeat):
            command = [sys.executable, "-X", f"pycache_prefix={PYCACHE}", "-c", code]
            seconds, modules = subprocess.check_output(command, env=environment, text=True).split()
            samples["seconds"].append(float(seconds))
            samples["modules"].append(float(modules))
        return samples

    def flood(self, repeat: int, size: int) -> Samples:
        """MiB by which this process grows while a command prints so many bytes, at the competitor's own defaults."""
        session = self._session()
        self._competitor.exec(session, ["true"])
        growth = []
        for _ in range(repeat):
            before = processes.memory("VmRSS")
            processes.reset_peak()
            self._competitor.exec_flood(session, ["head", "-c", str(size), "/dev/zero"])
            growth.append(max(processes.memory("VmHWM") - before, 0.0))
        return {"mib": growth}

    def sessions(self, repeat: int, count: int) -> Samples:
        """With so many sessions at once: MiB for each, here and in its container, and seconds of a command."""
        before = processes.memory("VmRSS")
        opened: list[Any] = []
        try:
            for _ in range(count):
                opened.append(self._open(self._competitor.open))
            seconds = [timed(lambda s=s: self._competitor.exec(s, ["true"])) for s in opened for _ in range(3)]  # type: ignore[misc]
            host = (processes.memory("VmRSS") - before) / count
            inside = [mib for s in opened[:5] for name, mib in self._inside(s).items() if name == "container"]
        finally:
            for session in opened:
                self._close(session)
        return {"seconds": seconds, "host": [host], "container": inside}

    def end(self) -> None:
        """Close the warm session and the competitor."""
        if self._warm is not None:
            self._close(self._warm)
        self._competitor.stop()

    def _session(self) -> Any:
        if self._warm is None:
            self._warm = self._open(self._competitor.open)
        return self._warm

    def _served(self) -> int:
        if self._port is None:
            self._port = self._competitor.serve(served.SERVER, SERVER_PORT)
            self._notice_kept()
            # A proxy of the engine's accepts before the server does.
            deadline = time.monotonic() + START
            while True:
                try:
                    served.get(self._port, 1)
                    break
                except (OSError, AssertionError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        return self._port

    def _notice_kept(self) -> None:
        for container in self._competitor.kept:
            self._notice("opened", container)

    def _open(self, how: Callable[[], Any]) -> Any:
        session = how()
        if container := self._competitor.container(session):
            self._notice("opened", container)
        return session

    def _close(self, session: Any) -> float:
        container = self._competitor.container(session)
        seconds = timed(lambda: self._competitor.close(session))
        if container:
            self._notice("closed", container)
        return seconds

    def _inside(self, session: Any) -> dict[str, float]:
        """MiB that the session's container takes: all of it, and its first process. Nothing without a container."""
        mark = f"0.3{random.randrange(10**8):08}"
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._competitor.exec, session, ["sleep", mark])
            namespace = None
            while namespace is None and not future.done():
                found = [processes.pid_namespace(pid) for pid in processes.with_argument(mark)]
                namespace = next((each for each in found if each != processes.pid_namespace("self")), None)
            future.result()
        pids = processes.members(namespace) if namespace else []
        if not pids:
            return {}
        return {
            "container": sum(processes.share(pid) for pid in pids),
            "init": max(processes.memory("VmRSS", pid) for pid in pids if processes.is_init(pid)),
        }


class _Tree:
    """A command with children, running in a thread of its own: they all are there once this is made."""

    def __init__(self, run: Callable[[list[str]], object]) -> None:
        mark = f"1{random.randrange(10**8):08}"
        self._run = run
        self._argv = ["sh", "-c", TREE.format(mark)]
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()
        self._pids: list[int] = []
        while len(self._pids) < TREE_SIZE and self._thread.is_alive():
            self._pids = [pid for pid in processes.with_argument(mark) if processes.is_program(pid, "sleep")]

    def finish(self, samples: Samples, start: float) -> None:
        """Wait for the call, then for the processes. Those that a competitor leaves have no time, but are counted."""
        self._thread.join()
        alive = processes.wait_dead(self._pids, time.perf_counter() + PATIENCE)
        if not alive:
            samples["seconds"].append(time.perf_counter() - start)
        samples["survivors"].append(len(alive))
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._failed is not None:
            raise self._failed
        assert len(self._pids) == TREE_SIZE, f"{len(self._pids)} of {TREE_SIZE} processes were seen"

    def _call(self) -> None:
        try:
            self._run(self._argv)
        except BaseException as error:  # noqa: BLE001 - raised again by finish()
            self._failed = error
