"""What a ContainerSpec asks for is in force: by the engine's word, and inside."""

from __future__ import annotations

import json
import resource

import pytest

from sandboxkit.backend import Backend
from sandboxkit.config import Limits, Network, Security, Workspace
from sandboxkit.errors import ConfigError, UnsupportedError

from .lab import BUSYBOX, EMPTY, NONROOT, Lab

STATUS = "cat /proc/self/status"
# One of /sys/fs/cgroup's two layouts, as far as the container sees it.
MEMORY_MAX = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null"


def fields(text: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def test_isolation_is_in_force_by_default(lab: Lab) -> None:
    with lab.running("/bin/sh", "-c", f"{STATUS}; cat") as running:
        effective = lab.backend.inspect(running.id).effective
        running.stream.shutdown()
    assert effective.capabilities_dropped is True
    assert effective.no_new_privileges is True
    assert effective.privileged is False
    assert effective.readonly_rootfs is False
    assert effective.network == "none"
    inside = fields(lab.run(STATUS).stdout)
    assert {inside[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (inside["NoNewPrivs"], inside["Seccomp"]) == ("1", "2")


def test_what_the_engine_says_it_enforces_is_enforced(lab: Lab) -> None:
    enforceable = lab.backend.info().enforceable
    limits = Limits(memory_mb=64, pids=40, cpus=0.5, allow_unenforced=True)
    with lab.running("/bin/cat", limits=limits) as running:
        effective = lab.backend.inspect(running.id).effective
    # A limit that is not enforceable is left out, and read back as none.
    assert effective.memory_bytes == (64 * 1024 * 1024 if "memory" in enforceable else 0)
    assert effective.pids == (40 if "pids" in enforceable else 0)
    assert effective.cpus == (0.5 if "cpus" in enforceable else 0)
    if "memory" in enforceable:
        assert lab.run(MEMORY_MAX, limits=limits).stdout.split() == [str(64 * 1024 * 1024)]
    if "pids" in enforceable:
        script = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo all"
        assert "all" not in lab.run(script, limits=limits).stdout


def test_a_disk_limit_is_never_said_to_be_enforceable(backend: Backend) -> None:
    assert "disk" not in backend.info().enforceable


def test_no_limits_are_read_back_as_none(lab: Lab) -> None:
    with lab.running("/bin/cat", limits=Limits(memory_mb=None, pids=None)) as running:
        effective = lab.backend.inspect(running.id).effective
    assert effective.memory_bytes == 0
    assert effective.cpus == 0


def test_ulimits_are_set_and_within_the_hosts(lab: Lab) -> None:
    # What busybox has no letter for in `ulimit` is in /proc.
    limits = {line[:25].strip(): line[25:].split()[:2] for line in lab.run("cat /proc/self/limits").stdout.splitlines()}
    soft, hard = (int(value) for value in limits["Max open files"])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert 256 <= soft <= hard
    assert hard <= (most if most != resource.RLIM_INFINITY else 1 << 20)
    assert int(limits["Max processes"][1]) >= 256
    assert limits["Max core file size"] == ["0", "0"]


def test_a_seccomp_profile_replaces_the_engines(lab: Lab) -> None:
    denied = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 78}  # ENOMSG + 36: "ENOTNAM"-like
    profile = json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [denied]})
    script = "mkdir /workspace/x || echo no; touch /workspace/y && echo yes"
    for _ in range(2):  # the second time a profile may be known already
        assert lab.run(script, security=Security(seccomp=profile)).stdout == "no\nyes\n"
    assert lab.run(script).stdout == "yes\n"


def test_a_seccomp_profile_that_the_engine_refuses_is_an_engine_error(lab: Lab) -> None:
    profile = json.dumps({"defaultAction": "SCMP_ACT_NO_SUCH_THING"})
    error = lab.fails("/bin/cat", security=Security(seccomp=profile))
    assert "SCMP_ACT_NO_SUCH_THING" in str(error.details["reason"])


def test_a_readonly_rootfs_leaves_the_workspace_and_tmp_writable(lab: Lab) -> None:
    script = (
        "touch /x 2>/dev/null || echo root no; touch /etc/x 2>/dev/null || echo etc no; "
        "touch /workspace/x && echo workspace; "
        "printf '#!/bin/sh\\necho ran\\n' > /tmp/x && chmod +x /tmp/x && /tmp/x; stat -c %a /tmp"
    )
    wanted = "root no\netc no\nworkspace\nran\n1777\n"
    for user in (None, "1000:1000"):
        security = Security(readonly_rootfs=True, user=user)
        assert lab.run(script, security=security).stdout == wanted
    with lab.running("/bin/cat", security=Security(readonly_rootfs=True)) as running:
        assert lab.backend.inspect(running.id).effective.readonly_rootfs is True


def test_tmp_is_writable_without_a_readonly_rootfs(lab: Lab) -> None:
    assert lab.run("touch /tmp/x && echo yes", security=Security(user="1000")).stdout == "yes\n"


def test_a_tmpfs_workspace_has_its_size_and_mode(lab: Lab) -> None:
    script = (
        "stat -c %a /workspace; df -k /workspace | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2; "
        "dd if=/dev/zero of=/workspace/big bs=1M count=8 2>/dev/null || echo full; ls -la /workspace | grep -c given"
    )
    for security in (Security(), Security(user="1000", readonly_rootfs=True)):
        output = lab.run(script, workspace=Workspace.tmpfs(size_mb=4), security=security)
        assert output.stdout.split() == ["1777", "4096", "full", "0"]


def test_the_images_user_holds_unless_another_is_asked_for(lab: Lab) -> None:
    assert lab.run("id -u; id -g", image=NONROOT).stdout.split() == ["1000", "1000"]
    assert lab.run("id -u; id -g", image=NONROOT, security=Security(user="7:8")).stdout.split() == ["7", "8"]
    assert lab.run("id -u", image=BUSYBOX).stdout.split() == ["0"]


def test_a_user_that_the_image_does_not_know_is_an_engine_error(lab: Lab) -> None:
    error = lab.fails("/bin/cat", security=Security(user="nobody-of-that-name"))
    assert "nobody-of-that-name" in str(error)


def test_env_is_set_over_the_images(lab: Lab) -> None:
    env = {"PATH": "/nowhere:/bin", "EMPTY": "", "ODD": "a=b c\n\"'é"}
    output = lab.run('printf "%s|" "$PATH" "${EMPTY-unset}" "$ODD"', env=env).stdout
    assert output == "/nowhere:/bin||a=b c\n\"'é|"
    assert lab.run("echo $PATH").stdout == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"


def test_the_services_proxy_variables_do_not_reach_the_container(lab: Lab) -> None:
    assert lab.run("env | grep -i proxy | wc -l").stdout.strip() == "0"


def test_without_network_there_is_loopback_alone(lab: Lab) -> None:
    assert lab.run("ls /sys/class/net").stdout.split() == ["lo"]


def test_a_bridge_has_an_interface(lab: Lab) -> None:
    # Waited for: a rootless network comes up a moment after the start.
    script = "i=0; while [ $(ls /sys/class/net | wc -l) -lt 2 ] && [ $i -lt 50 ]; do sleep .1; i=$((i+1)); done; "
    with lab.running("/bin/sh", "-c", script + "ls /sys/class/net | wc -l; cat", network=Network.bridge()) as running:
        assert running.receive_exactly(2) == b"2\n"
        assert lab.backend.inspect(running.id).effective.network == "bridge"


def test_an_image_with_nothing_in_it_runs_the_agent(lab: Lab) -> None:
    # 127 of the runner, which finds no program there: nothing else was needed to get that far.
    with lab.running("/bin/sh", image=EMPTY) as running:
        assert not running.stream.receive()


def test_an_unknown_runtime_is_refused_and_never_replaced(lab: Lab) -> None:
    # UnsupportedError by a Podman that would take its own in silence.
    with pytest.raises((ConfigError, UnsupportedError), match="no-such-runtime"):
        lab.create(lab.spec("/bin/cat", security=Security(runtime="no-such-runtime")))


def test_the_engines_own_runtime_may_be_named(lab: Lab) -> None:
    with lab.running("/bin/cat") as running:
        runtime = lab.backend.inspect(running.id).effective.runtime
    assert runtime
    with lab.running("/bin/cat", security=Security(runtime=runtime)) as running:
        assert lab.backend.inspect(running.id).effective.runtime == runtime
