"""A ContainerSpec as the body of Podman's create call: a SpecGenerator of the libpod API (pkg/specgen/specgen.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxkit.backend import AGENT_FOLDER, WORKSPACE_FOLDER
from sandboxkit.config import NetworkMode, WorkspaceKind
from sandboxkit.engines.api import ContainerRequest

__all__ = ["container_body", "helper_body"]

_CPU_PERIOD = 100_000  # microseconds; the kernel's own default
_SIGKILL = 9
_TEMPORARY = "/tmp"  # noqa: S108 - the folder in the container, not one of this host
# notmpcopyup: a tmpfs starts empty, as Docker's do.
_TMPFS = ("rw", "exec", "nosuid", "nodev", "mode=1777", "notmpcopyup")


def container_body(request: ContainerRequest, seccomp_path: str | None) -> dict[str, Any]:
    """The body for a session's container. `seccomp_path` is a file on the engine's host."""
    spec = request.spec
    security = spec.security
    volumes = [_agent_volume(spec.agent.volume, AGENT_FOLDER, "ro")]
    mounts = [_tmpfs(_TEMPORARY)] if security.readonly_rootfs else []
    if spec.workspace.kind is WorkspaceKind.TMPFS:
        mounts.append(_tmpfs(WORKSPACE_FOLDER, f"size={spec.workspace.size_mb}m"))
    elif spec.workspace.kind is WorkspaceKind.BIND:
        mounts.append(_bind(WORKSPACE_FOLDER, str(spec.workspace.host_path), read_only=spec.workspace.read_only))
    else:
        # Without a name: an anonymous volume, which goes with the container.
        name = spec.workspace.name or ""
        volumes.append({"Name": name, "Dest": WORKSPACE_FOLDER, "Options": ["rw", "nosuid", "nodev", "exec"]})
    body: dict[str, Any] = {
        "name": spec.name,
        "image": request.image,
        "entrypoint": [f"{AGENT_FOLDER}/agent"],
        "command": list(spec.agent_args),
        # The image's own may be absent, and Podman would make it: "/" is there in every image.
        "work_dir": "/",
        "env": dict(spec.env),
        "httpproxy": False,  # else the service's own proxy variables are set inside
        "labels": dict(request.labels),
        "healthconfig": {"Test": ["NONE"]},
        "stdin": not spec.detached,
        "terminal": False,
        "remove": not spec.keep,
        "init": False,
        "systemd": "false",
        "sdnotifyMode": "ignore",
        "stop_signal": _SIGKILL,
        "stop_timeout": 0,
        "log_configuration": {"driver": "none"},
        "privileged": False,
        "cap_drop": ["ALL"],
        # podman-py's security_opt=["no-new-privileges"] has no effect (podman-py#502).
        "no_new_privileges": True,
        "read_only_filesystem": security.readonly_rootfs,
        "read_write_tmpfs": False,  # newer ones would add writable /run and /var/tmp to a read-only root
        "volumes": volumes,
        "mounts": mounts,
        "r_limits": [{"type": limit.name, "soft": limit.soft, "hard": limit.hard} for limit in request.ulimits],
        "resource_limits": _resources(request),
    }
    if spec.network.mode is NetworkMode.NONE:
        body["netns"] = {"nsmode": "none"}  # else none is named: the engine's default
    if spec.network.ports:
        # Host port 0: Podman takes one that is free, once, when it makes the container.
        body["portmappings"] = [
            {"container_port": port, "host_ip": "127.0.0.1", "host_port": 0, "protocol": "tcp"}
            for port in spec.network.ports
        ]
    if security.user is not None:
        body["user"] = security.user
    if security.runtime is not None:
        body["oci_runtime"] = security.runtime
    if seccomp_path is not None:
        body["seccomp_profile_path"] = seccomp_path
    return body


def helper_body(name: str, image: str, labels: Mapping[str, str], volume: str | None, folder: str) -> dict[str, Any]:
    """The body for a container that is never started; its entrypoint need not exist."""
    return {
        "name": name,
        "image": image,
        "entrypoint": [f"{folder}/agent"],
        "command": [],
        "user": "0",
        "work_dir": "/",
        "labels": dict(labels),
        "log_configuration": {"driver": "none"},
        "netns": {"nsmode": "none"},
        # The image's own volumes would be made for nothing.
        "image_volume_mode": "ignore",
        "volumes": [] if volume is None else [_agent_volume(volume, folder, "rw")],
    }


def _resources(request: ContainerRequest) -> dict[str, Any]:
    limits = request.limits
    resources: dict[str, Any] = {}
    if limits.memory_mb is not None:
        size = limits.memory_mb * 1024 * 1024
        resources["memory"] = {"limit": size, "swap": size}  # equal: no swap on top
    if limits.pids is not None:
        resources["pids"] = {"limit": limits.pids}
    if limits.cpus is not None:
        # podman-py drops nano_cpus in silence, and the API has none.
        resources["cpu"] = {"period": _CPU_PERIOD, "quota": round(limits.cpus * _CPU_PERIOD)}
    return resources


def _agent_volume(volume: str, folder: str, access: str) -> dict[str, Any]:
    return {"Name": volume, "Dest": folder, "Options": [access, "nosuid", "nodev", "exec", "nocopy"]}


def _bind(folder: str, source: str, *, read_only: bool) -> dict[str, Any]:
    options = ["rbind", "ro" if read_only else "rw", "nosuid", "nodev"]
    return {"destination": folder, "type": "bind", "source": source, "options": options}


def _tmpfs(folder: str, *options: str) -> dict[str, Any]:
    return {"destination": folder, "type": "tmpfs", "source": "tmpfs", "options": [*_TMPFS, *options]}
