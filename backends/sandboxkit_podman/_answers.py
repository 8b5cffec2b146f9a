"""Podman's answers as values of sandboxkit."""

from __future__ import annotations

from typing import Any

from sandboxkit.backend import ContainerStatus, Effective, EngineInfo
from sandboxkit.engines.architecture import normalised_arch
from sandboxkit.engines.ports import published_ports

__all__ = ["api_version", "engine_info", "listed_status", "status"]

_RUNNING = ("running", "paused", "stopping")
_NEVER_STARTED = ("created", "configured", "initialized")
_CONTROLLERS = {"memory": "memory", "pids": "pids", "cpus": "cpu"}
_ONE_NETWORK = ("bridge", "default", "private", "slirp4netns", "pasta", "podman")


def api_version(version: Any) -> str | None:
    """The libpod API's version, from /version; None when it is not Podman that answers."""
    for component in version.get("Components") or ():
        if component.get("Name") == "Podman Engine":
            details = component.get("Details") or {}
            return str(details.get("APIVersion") or component.get("Version"))
    return None


def engine_info(url: str, version: Any, info: Any) -> EngineInfo:
    """From /version and libpod's /info."""
    host = info["host"]
    rootless = bool(host["security"]["rootless"])
    cgroup_version = 2 if host.get("cgroupVersion") == "v2" else 1
    return EngineInfo(
        backend="podman",
        url=url,
        version=str(version["Version"]),
        api_version=str(api_version(version)),
        arch=normalised_arch(str(host.get("arch", ""))),
        rootless=rootless,
        cgroup_version=cgroup_version,
        storage_driver=str(info["store"].get("graphDriverName", "")),
        enforceable=_enforceable(host, rootless, cgroup_version),
        # Podman tells the default one alone; others may be there.
        runtimes=(),
    )


def _enforceable(host: Any, rootless: bool, cgroup_version: int) -> frozenset[str]:
    """Never disk: the storage option bounds the container's own layer, not the volume that the workspace is."""
    if rootless and (cgroup_version == 1 or host.get("cgroupManager") == "cgroupfs"):
        # Ignored in silence on v1 ("Resource limits are not supported and ignored on cgroups V1 rootless systems", to
        # the service's log alone), and under the cgroupfs manager on v2 (podman#21575).
        return frozenset()
    controllers = {str(name) for name in host.get("cgroupControllers") or ()}
    return frozenset(limit for limit, controller in _CONTROLLERS.items() if controller in controllers)


def status(found: Any) -> ContainerStatus:
    """From libpod's inspect of a container."""
    state = found["State"]
    return ContainerStatus(
        id=str(found["Id"]),
        name=str(found["Name"]),
        running=str(state["Status"]) in _RUNNING,
        never_started=str(state["Status"]) in _NEVER_STARTED,
        pid=int(state.get("Pid") or 0) or None,
        image=str(found.get("Image", "")),
        exit_code=int(state["ExitCode"]) if state["Status"] in ("exited", "stopped") else None,
        oom_killed=bool(state.get("OOMKilled")),
        labels=dict(found["Config"].get("Labels") or {}),
        effective=_effective(found),
    )


def listed_status(found: Any) -> ContainerStatus:
    """From one row of libpod's list."""
    return ContainerStatus(
        id=str(found["Id"]),
        name=str((found.get("Names") or [""])[0]),
        running=str(found.get("State")) in _RUNNING,
        never_started=str(found.get("State")) in _NEVER_STARTED,
        labels=dict(found.get("Labels") or {}),
    )


def _effective(found: Any) -> Effective:
    host = found["HostConfig"]
    options = [str(option) for option in host.get("SecurityOpt") or ()]
    network = str(host.get("NetworkMode", ""))
    return Effective(
        network="bridge" if network.partition(":")[0] in _ONE_NETWORK else network,
        memory_bytes=int(host.get("Memory") or 0),
        pids=max(0, int(host.get("PidsLimit") or 0)),
        cpus=_cpus(host),
        capabilities_dropped=not found.get("EffectiveCaps") and not found.get("BoundingCaps"),
        no_new_privileges="no-new-privileges" in options,
        readonly_rootfs=bool(host.get("ReadonlyRootfs")),
        privileged=bool(host.get("Privileged")),
        runtime=str(found.get("OCIRuntime") or ""),
        published=published_ports(found),
    )


def _cpus(host: Any) -> float:
    quota = int(host.get("CpuQuota") or 0)
    period = int(host.get("CpuPeriod") or 0) or 100_000
    if quota > 0:
        return quota / period
    return int(host.get("NanoCpus") or 0) / 1e9
