"""A ContainerSpec as the body of Docker's create call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxkit.backend import AGENT_FOLDER, WORKSPACE_FOLDER
from sandboxkit.config import WorkspaceKind
from sandboxkit.engines.api import ContainerRequest
from sandboxkit.engines.backend import AGENT_VOLUME_LABELS, anonymous_labels

__all__ = ["container_body", "helper_body"]

_CPU_PERIOD = 100_000  # microseconds; the kernel's own default
_TEMPORARY = "/tmp"  # noqa: S108 - the folder in the container, not one of this host
_TMPFS = "rw,exec,nosuid,nodev,mode=1777"


def container_body(request: ContainerRequest) -> dict[str, Any]:
    """The body for a session's container."""
    spec = request.spec
    body: dict[str, Any] = {
        "Image": request.image,
        "Entrypoint": [f"{AGENT_FOLDER}/agent"],
        "Cmd": list(spec.agent_args),
        # The image's own may be absent, and Docker would make it: "/" is there in every image.
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(request.labels),
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": not spec.detached,
        "StdinOnce": True,  # the end of the attached stream is the end of the agent's standard input
        "AttachStdin": not spec.detached,
        "AttachStdout": not spec.detached,
        "AttachStderr": not spec.detached,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "HostConfig": _host_config(request),
    }
    if spec.security.user is not None:
        body["User"] = spec.security.user
    if spec.network.ports:
        body["ExposedPorts"] = {f"{port}/tcp": {} for port in spec.network.ports}
    return body


def helper_body(image: str, labels: Mapping[str, str], volume: str | None, folder: str) -> dict[str, Any]:
    """The body for a container that is never started; its entrypoint need not exist."""
    return {
        "Image": image,
        "Entrypoint": [f"{folder}/agent"],
        "Cmd": [],
        "User": "0",
        "WorkingDir": "/",
        "Labels": dict(labels),
        "HostConfig": {
            "NetworkMode": "none",
            "LogConfig": {"Type": "none"},
            "Mounts": [] if volume is None else [_agent_mount(volume, folder, read_only=False)],
        },
    }


def _host_config(request: ContainerRequest) -> dict[str, Any]:
    spec, limits = request.spec, request.limits
    security = spec.security
    options = ["no-new-privileges"]
    if security.seccomp is not None:
        options.append(f"seccomp={security.seccomp}")
    mounts = [_agent_mount(spec.agent.volume, AGENT_FOLDER, read_only=True)]
    tmpfs = {_TEMPORARY: _TMPFS} if security.readonly_rootfs else {}
    if spec.workspace.kind is WorkspaceKind.TMPFS:
        tmpfs[WORKSPACE_FOLDER] = f"{_TMPFS},size={spec.workspace.size_mb}m"
    else:
        mounts.append(_workspace_mount(request))
    config: dict[str, Any] = {
        "AutoRemove": not spec.keep,
        "NetworkMode": spec.network.mode.value,
        "LogConfig": {"Type": "none"},
        "Init": False,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": options,
        "ReadonlyRootfs": security.readonly_rootfs,
        "Mounts": mounts,
        "Tmpfs": tmpfs,
        "Ulimits": [{"Name": limit.name, "Soft": limit.soft, "Hard": limit.hard} for limit in request.ulimits],
    }
    if spec.network.ports:
        # Without a host port Docker takes one of its own range that is free, anew with each start.
        config["PortBindings"] = {
            f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}] for port in spec.network.ports
        }
    if limits.memory_mb is not None:
        # Equal: no swap on top. Docker's default would allow as much again.
        config["Memory"] = config["MemorySwap"] = limits.memory_mb * 1024 * 1024
    if limits.pids is not None:
        config["PidsLimit"] = limits.pids
    if limits.cpus is not None:
        config["CpuPeriod"] = _CPU_PERIOD
        config["CpuQuota"] = round(limits.cpus * _CPU_PERIOD)
    if security.runtime is not None:
        config["Runtime"] = security.runtime
    return config


def _workspace_mount(request: ContainerRequest) -> dict[str, Any]:
    workspace = request.spec.workspace
    mount: dict[str, Any] = {"Type": "volume", "Target": WORKSPACE_FOLDER}
    if workspace.kind is WorkspaceKind.BIND:
        mount |= {"Type": "bind", "Source": workspace.host_path, "ReadOnly": workspace.read_only}
    elif workspace.kind is WorkspaceKind.VOLUME:
        mount["Source"] = workspace.name
    else:
        # No source: an anonymous volume, which goes with the container.
        mount["VolumeOptions"] = {"Labels": anonymous_labels(request.labels)}
    return mount


def _agent_mount(volume: str, folder: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": volume,
        "Target": folder,
        "ReadOnly": read_only,
        # The labels are for a volume that was pruned: Docker makes an empty one then, in silence.
        "VolumeOptions": {"NoCopy": True, "Labels": dict(AGENT_VOLUME_LABELS)},
    }
