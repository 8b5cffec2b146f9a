"""Docker's answers as values of sandboxkit."""

from __future__ import annotations

from typing import Any

from sandboxkit.backend import ContainerStatus, Effective, EngineInfo
from sandboxkit.engines.architecture import normalised_arch
from sandboxkit.engines.ports import published_ports

__all__ = ["engine_info", "listed_status", "status"]


def engine_info(url: str, version: Any, info: Any) -> EngineInfo:
    """From /version and /info."""
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    return EngineInfo(
        backend="docker",
        url=url,
        version=str(version["Version"]),
        api_version=str(version["ApiVersion"]),
        arch=normalised_arch(str(info.get("Architecture", ""))),
        rootless=any(option.startswith("name=rootless") for option in options),
        cgroup_version=2 if str(info.get("CgroupVersion")) == "2" else 1,
        storage_driver=str(info.get("Driver", "")),
        enforceable=_enforceable(info),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
    )


def _enforceable(info: Any) -> frozenset[str]:
    """Never disk: Docker's storage option bounds the container's own layer, not the volume that the workspace is."""
    if info.get("CgroupDriver") == "none":  # rootless without systemd: every limit is ignored
        return frozenset()
    flags = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpus": "CpuCfsQuota"}
    return frozenset(limit for limit, flag in flags.items() if info.get(flag))


def status(found: Any) -> ContainerStatus:
    """From an inspect of a container."""
    state = found["State"]
    running = bool(state["Running"])
    return ContainerStatus(
        id=str(found["Id"]),
        name=str(found["Name"]).lstrip("/"),
        running=running,
        never_started=state["Status"] == "created",
        pid=int(state.get("Pid") or 0) or None,
        image=str(found.get("Image", "")),
        exit_code=int(state["ExitCode"]) if state["Status"] in ("exited", "dead") else None,
        oom_killed=bool(state.get("OOMKilled")),
        labels=dict(found["Config"].get("Labels") or {}),
        effective=_effective(found),
    )


def listed_status(found: Any) -> ContainerStatus:
    """From one row of the list."""
    return ContainerStatus(
        id=str(found["Id"]),
        name=str((found.get("Names") or [""])[0]).lstrip("/"),
        running=found.get("State") in ("running", "paused", "restarting"),
        never_started=found.get("State") == "created",
        labels=dict(found.get("Labels") or {}),
    )


def _effective(found: Any) -> Effective:
    host = found["HostConfig"]
    options = [str(option) for option in host.get("SecurityOpt") or ()]
    dropped = {str(name).upper().removeprefix("CAP_") for name in host.get("CapDrop") or ()}
    network = str(host.get("NetworkMode", ""))
    return Effective(
        network="bridge" if network in ("bridge", "default") else network,
        memory_bytes=int(host.get("Memory") or 0),
        # None or -1 mean no limit, too.
        pids=max(0, int(host.get("PidsLimit") or 0)),
        cpus=_cpus(host),
        capabilities_dropped="ALL" in dropped and not host.get("CapAdd"),
        no_new_privileges=any(
            option in ("no-new-privileges", "no-new-privileges=true", "no-new-privileges:true") for option in options
        ),
        readonly_rootfs=bool(host.get("ReadonlyRootfs")),
        privileged=bool(host.get("Privileged")),
        runtime=str(host.get("Runtime") or ""),
        published=published_ports(found),
    )


def _cpus(host: Any) -> float:
    nano = int(host.get("NanoCpus") or 0)
    if nano:
        return nano / 1e9
    quota = int(host.get("CpuQuota") or 0)
    period = int(host.get("CpuPeriod") or 0) or 100_000
    return quota / period if quota > 0 else 0.0
