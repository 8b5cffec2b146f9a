"""How each engine's service is started on a bare host, with systemd or without.

An engine that already answers is left alone, whoever started it. One that has died leaves a socket file, a pid file
and Podman's notes behind, and on a host whose /run is no tmpfs they outlive a reboot too: each is cleared where its
owner is seen to be gone, and nothing is ever taken from a living process.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from _http import Engine, Identity, identify, is_listening
from _processes import Process, descendants, end, read_pid, read_record, spawn, with_arguments, write_record
from _system import SEARCH_PATH, ToolError, last_lines, run

DOCKER_SOCKET = Path("/var/run/docker.sock")
PODMAN_SOCKET = Path("/run/podman/podman.sock")

#: The cgroup v2 tree that a cgroup v1 host has beside its own: crun refuses to work where it sees both.
HYBRID_MOUNT = Path("/sys/fs/cgroup/unified")

READY_TIMEOUT = 90.0


@dataclass(frozen=True)
class Service:
    """One engine and how it comes up."""

    name: str
    engine: Engine
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path("/")
    #: Called before a start, when nothing listens on the socket: folders, permissions, what a dead service left.
    prepare: Callable[[], None] = lambda: None
    #: The process that is already bringing this engine up, if any: then it is waited for, not started again.
    starting: Callable[[], Process | None] = lambda: None
    #: Given the service's process: those that it started and that are not its children.
    companions: Callable[[Process], list[Process]] = lambda process: []
    #: The systemd unit that owns this engine where systemd runs the host.
    unit: str | None = None


def docker() -> Service:
    pid_file = Path("/var/run/docker.pid")
    containerd_pid_file = Path("/var/run/docker/containerd/containerd.pid")

    def prepare() -> None:
        # A stale pid that another program has by now stops dockerd from starting; a stale containerd pid is worse,
        # since dockerd kills whatever has it.
        for path, name in ((pid_file, "dockerd"), (containerd_pid_file, "containerd")):
            if read_pid(path, name) is None:
                path.unlink(missing_ok=True)

    return Service(
        name="docker",
        engine=Engine("docker", f"unix://{DOCKER_SOCKET}"),
        command=["dockerd", "--host", f"unix://{DOCKER_SOCKET}"],
        environment=_environment(Path("/root")),
        prepare=prepare,
        starting=lambda: read_pid(pid_file, "dockerd"),
        unit="docker.service",
    )


def podman() -> Service:
    """Rootful Podman."""

    def prepare() -> None:
        PODMAN_SOCKET.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _forget_last_boot(Path("/run/libpod/alive"))

    return Service(
        name="podman",
        engine=Engine("podman", f"unix://{PODMAN_SOCKET}"),
        command=_without_hybrid_mount(_podman_service(PODMAN_SOCKET)),
        environment=_environment(Path("/root")),
        prepare=prepare,
    )


def podman_rootless(user: str) -> Service:
    """Rootless Podman of another user, started by root, who also reaches its socket."""
    account = pwd.getpwnam(user)
    runtime = _runtime_folder(account)
    # Podman's pause process pins the mount namespace that it was born in, and each later service joins it. `migrate`
    # ends it, so that the new one is born where the hybrid mount is gone.
    service = ["sh", "-c", 'podman system migrate && exec "$@"', "sh", *_podman_service(_socket_in(runtime))]
    ids = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--init-groups"]
    command = _without_hybrid_mount(["setpriv", *ids, "--", *service])

    def prepare() -> None:
        _require_subordinate_ids(account)
        _make_private_folder(runtime, account)
        _make_private_folder(_socket_in(runtime).parent, account)
        _open_tun_device()
        _forget_stale_pause(runtime)
        _forget_last_boot(runtime / "libpod/tmp/alive")

    return Service(
        name="podman-rootless",
        engine=Engine("podman", f"unix://{_socket_in(runtime)}", rootless=True),
        command=command,
        environment=_rootless_environment(account, runtime),
        cwd=Path(account.pw_dir),
        prepare=prepare,
        companions=lambda process: _pause_processes(account, process),
    )


def podman_of_this_user() -> Service:
    """Rootless Podman of the user who runs the tool; nothing here needs root."""
    account = pwd.getpwuid(os.geteuid())
    given = os.environ.get("XDG_RUNTIME_DIR")
    runtime = Path(given) if given and os.access(given, os.W_OK) else _runtime_folder(account)

    def prepare() -> None:
        _require_subordinate_ids(account, may_add=False)
        _make_private_folder(runtime, account)
        _make_private_folder(_socket_in(runtime).parent, account)

    return Service(
        name="podman-own",
        engine=Engine("podman", f"unix://{_socket_in(runtime)}", rootless=True),
        # runc works on a hybrid host as it is; taking the mount away from crun would need root.
        command=_podman_service(_socket_in(runtime), *(["--runtime", "runc"] if is_hybrid() else [])),
        environment=_rootless_environment(account, runtime),
        cwd=Path(account.pw_dir),
        prepare=prepare,
        companions=lambda process: _pause_processes(account, process),
    )


class Running(NamedTuple):
    """An engine that answers."""

    identity: Identity
    started_here: bool


def start(service: Service, folder: Path) -> Running:
    """Bring an engine up, unless it is; ToolError with the end of its log if it can't be.

    What was started is on record in `folder`, for `stop`, from the first moment on: also when it never gets ready.
    """
    if is_listening(service.engine.socket):
        return Running(_identify(service), started_here=False)
    log = folder / f"{service.name}.log"
    if service.unit and Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", service.unit], timeout=READY_TIMEOUT)
        return Running(_wait_ready(service, None, log), started_here=False)
    if service.starting() is not None:
        return Running(_wait_ready(service, None, log), started_here=False)
    # What the dead service left behind: helpers of it still live and would be in the new one's way.
    stop(service, folder)
    service.prepare()
    if not is_listening(service.engine.socket):
        service.engine.socket.unlink(missing_ok=True)
    child = spawn(service.command, log, environment=service.environment, cwd=service.cwd)
    process = Process.of(child.pid)
    write_record(_record(service, folder), [process] if process else [])
    try:
        identity = _wait_ready(service, child, log)
    except BaseException:
        stop(service, folder)
        raise
    if process is not None:
        family = [process, *descendants(process), *service.companions(process)]
        write_record(_record(service, folder), family)
    return Running(identity, started_here=True)


def stop(service: Service, folder: Path) -> bool:
    """End what `start` started, if it still lives, and return whether it did."""
    record = _record(service, folder)
    processes = read_record(record)
    # dockerd ends its containers first and gives each ten seconds.
    end(processes, grace=30)
    record.unlink(missing_ok=True)
    return bool(processes)


def is_ours(service: Service, folder: Path) -> bool:
    return bool(read_record(_record(service, folder)))


def is_hybrid() -> bool:
    return HYBRID_MOUNT.is_mount()


def _record(service: Service, folder: Path) -> Path:
    return folder / f"{service.name}.pid"


def _identify(service: Service, *, timeout: float = 15) -> Identity:
    found = identify(service.engine, timeout=timeout)
    if found.backend != service.engine.backend:
        raise ToolError(f"{service.engine.url} belongs to {found.backend} {found.version}, not to {service.name}")
    return found


def _wait_ready(service: Service, child: subprocess.Popen[bytes] | None, log: Path) -> Identity:
    deadline = time.monotonic() + READY_TIMEOUT
    problem = "nothing listens on its socket"
    while time.monotonic() < deadline:
        # Looked at before the socket: a service that dies after this look is seen on the next turn.
        code = None if child is None else child.poll()
        try:
            if is_listening(service.engine.socket):
                return _identify(service, timeout=5)
        except ToolError as error:
            problem = str(error)
        if code is not None:
            problem = f"it ended with {code}"
            break
        time.sleep(0.1)
    message = f"{service.name} did not come up: {problem}"
    if child is not None:
        message += f". The end of {log}:\n{last_lines(log.read_text(errors='replace'))}"
    raise ToolError(message)


def _podman_service(socket: Path, *options: str) -> list[str]:
    return ["podman", *options, "system", "service", "--time=0", f"unix://{socket}"]


def _socket_in(runtime: Path) -> Path:
    return runtime / "podman/podman.sock"


def _without_hybrid_mount(command: list[str]) -> list[str]:
    """The command in a mount namespace of its own where crun sees plain cgroup v1; the host's mounts stay."""
    if not is_hybrid():
        return command
    return ["unshare", "--mount", "sh", "-c", f'umount {HYBRID_MOUNT} && exec "$@"', "sh", *command]


def _environment(home: Path, **more: str) -> dict[str, str]:
    """A service's environment: not the caller's, whose DOCKER_HOST or XDG_RUNTIME_DIR must not steer it."""
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return {"PATH": SEARCH_PATH, "HOME": str(home), "LANG": "C.UTF-8", **proxies, **more}


def _rootless_environment(account: pwd.struct_passwd, runtime: Path) -> dict[str, str]:
    environment = _environment(Path(account.pw_dir), USER=account.pw_name, XDG_RUNTIME_DIR=str(runtime))
    # Left to itself Podman 4.3 takes vfs where /dev/fuse is root's: a full copy of the image for each container.
    # From 5.13 on the kernel mounts overlay in a user namespace. Storage that exists keeps the driver it has.
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    if version and (int(version[1]), int(version[2])) >= (5, 13):
        environment["STORAGE_DRIVER"] = "overlay"
    return environment


def _runtime_folder(account: pwd.struct_passwd) -> Path:
    """The user's XDG_RUNTIME_DIR: the one that a login would bring, or one in /tmp where nothing can make that."""
    usual = Path(f"/run/user/{account.pw_uid}")
    return usual if usual.is_dir() or os.access(usual.parent, os.W_OK) else Path(f"/tmp/sandboxkit-{account.pw_uid}")


def _make_private_folder(path: Path, account: pwd.struct_passwd) -> None:
    """A 0700 folder of that user. Its parent may be /tmp: one that somebody else made there is refused."""
    try:
        path.mkdir(mode=0o700)
        os.chown(path, account.pw_uid, account.pw_gid)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.pw_uid:
            raise ToolError(f"{path} is not a folder of {account.pw_name}: remove it, then try again") from None
        path.chmod(0o700)


def _require_subordinate_ids(account: pwd.struct_passwd, *, may_add: bool = True) -> None:
    """See that the user has a range in /etc/subuid and /etc/subgid: without one Podman can't map a second user."""
    for path, option in ((Path("/etc/subuid"), "--add-subuids"), (Path("/etc/subgid"), "--add-subgids")):
        lines = path.read_text().splitlines() if path.exists() else []
        ranges = [line.split(":") for line in lines if line.count(":") == 2]
        if any(owner in (account.pw_name, str(account.pw_uid)) for owner, _, _ in ranges):
            continue
        if not may_add:
            raise ToolError(
                f"{path} has no range for {account.pw_name}. Add one with"
                f" `sudo usermod {option} 100000-165535 {account.pw_name}`, then try again"
            )
        first = max([100_000, *(int(begin) + int(count) for _, begin, count in ranges)])
        run(["usermod", option, f"{first}-{first + 65_535}", account.pw_name], timeout=30)


def _open_tun_device() -> None:
    """slirp4netns opens /dev/net/tun as the user. 0666 is what udev gives it; a host without udev has it 0600."""
    device = Path("/dev/net/tun")
    if not device.exists():
        device.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    device.chmod(0o666)


def _pause_processes(account: pwd.struct_passwd, service: Process) -> list[Process]:
    """Podman's pause process, if this service brought it: it holds the user namespace, is nobody's child and stays."""
    return [
        process for process in with_arguments(["catatonit", "-P"], account.pw_uid) if process.started >= service.started
    ]


def _forget_stale_pause(runtime: Path) -> None:
    """Podman joins the namespaces of whatever has the recorded pid: it must not be a stranger."""
    path = runtime / "libpod/tmp/pause.pid"
    if not any(read_pid(path, name) for name in ("catatonit", "podman")):
        path.unlink(missing_ok=True)


def _forget_last_boot(alive: Path) -> None:
    """Let Podman see a reboot: it knows one by the loss of this file, which only a tmpfs loses by itself."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    with suppress(FileNotFoundError):
        if alive.stat().st_mtime < booted - 1:
            alive.unlink()
