"""A `podman system service` of this process's own, for hosts where Podman is installed and no service runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO

from sandboxkit.engines.discovery import Address
from sandboxkit.engines.sockets import unix_problem
from sandboxkit.errors import EngineUnavailableError

__all__ = ["PodmanService"]

_HYBRID_MOUNT = "/sys/fs/cgroup/unified"
_IDLE_TIME = 5  # seconds without any connection after which the service ends by itself
_START_TIME = 30.0
_STOP_TIME = 10.0
# The shell waits for the service, whoever ended it, and clears the folder away: also when this process is gone by
# then. The trap lets it outlive the signal that ends the service.
_SCRIPT = 'folder=$1; shift; trap : TERM; "$@"; code=$?; rm -rf -- "$folder"; exit $code'
# crun refuses cgroup v1 where a v2 tree is mounted beside it ("cgroups in hybrid mode not supported"): the service gets
# a mount namespace of its own, without that one mount.
_HYBRID_SCRIPT = f"umount {_HYBRID_MOUNT} || exit; {_SCRIPT}"


class PodmanService:
    """Lives as long as this process, and a few seconds more when this process is killed.

    How that is: a service with `--time` ends when it has had no open request for so many seconds. One request, for
    events that never come, is open as long as this process lives (`keep_open`); the kernel closes it in any case.
    """

    def __init__(self, program: str) -> None:
        """Start it and wait until it listens; else EngineUnavailableError with the end of what it said."""
        self._pid = os.getpid()
        self._request: Callable[[], object] | None = None
        self._folder = tempfile.mkdtemp(prefix="sandboxkit-podman-")  # 0700: whoever reaches the socket is the user
        self.address = Address(f"unix://{self._folder}/podman.sock", "started by sandboxkit")
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        try:
            with open(f"{self._folder}/log", "w+b") as log:
                self._process = subprocess.Popen(
                    self._command(program),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                    cwd="/",
                    # Ctrl-C at the terminal is for this process alone; and the group can be signalled as a whole.
                    start_new_session=True,
                )
                self._wait_for_socket(self._process, log)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def program() -> str | None:
        """Where podman is, or None."""
        return shutil.which("podman", path=_environment()["PATH"])

    def keep_open(self, close_request: Callable[[], object]) -> None:
        """Hand over the open request that keeps the service alive; `close_request` ends it."""
        self._request = close_request

    def stop(self) -> None:
        """End the service. Idempotent; in a forked child it ends nothing."""
        request, self._request = self._request, None
        if request is not None:
            request()
        process, self._process = self._process, None
        if self._pid != os.getpid():
            if process is not None:
                process.returncode = 0  # not this process's child: keeps Popen from warning that it still runs
            return
        atexit.unregister(self.stop)
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_TIME)
                    break
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, program: str) -> list[str]:
        options = []
        hybrid = os.path.ismount(_HYBRID_MOUNT)
        unshare = shutil.which("unshare", path=_environment()["PATH"])
        may_unmount = hybrid and os.geteuid() == 0 and unshare is not None
        if hybrid and not may_unmount and shutil.which("runc", path=_environment()["PATH"]):
            options = ["--runtime", "runc"]
        service = [program, *options, "system", "service", f"--time={_IDLE_TIME}", self.address.url]
        shell = ["sh", "-c", _HYBRID_SCRIPT if may_unmount else _SCRIPT, "sh", self._folder, *service]
        return [unshare, "--mount", *shell] if may_unmount and unshare else shell

    def _wait_for_socket(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        path = self.address.socket_path
        assert path is not None
        end = time.monotonic() + _START_TIME
        while True:
            # Looked at before the socket: a service that dies after this look is seen on the next turn.
            code = process.poll()
            if unix_problem(path, 1.0) is None:
                return
            if code is not None or time.monotonic() > end:
                log.seek(0)
                said = log.read().decode("utf-8", "replace").strip()[-1000:]
                what = f"it ended with {code}" if code is not None else f"it did not listen within {_START_TIME:g} s"
                reason = f"`podman system service` could not be started: {what}: {said or 'it said nothing'}"
                raise EngineUnavailableError(reason, details={"reason": reason})
            time.sleep(0.01)


def _environment() -> dict[str, str]:
    """This process's, without what would send podman to another engine, or to sockets that are not its own."""
    ours = ("CONTAINER_HOST", "CONTAINER_CONNECTION", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    # Debian keeps some of Podman's helpers off a user's PATH.
    environment["PATH"] = os.pathsep.join(
        [environment.get("PATH") or os.defpath, "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"]
    )
    return environment
