"""From inside, each way out that one would try first, and some more. Run as root and as an ordinary user."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Session

from .conftest import Inside
from .probes import CONNECT, ERRNO_OF, WRITABLE

HOSTS = [
    *(
        "/root",
        "/home",
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/fstab",
        "/etc/resolv.conf",
    ),
    *("/var", "/var/log", "/var/lib", "/run", "/boot", "/mnt", "/media", "/opt", "/srv", "/lost+found"),
    *(
        "/sys/kernel",
        "/sys/class",
        "/dev/kmsg",
        "/dev/mem",
        "/dev/sda",
        "/dev/vda",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
    ),
]
SOCKETS = [
    *("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"),
    *("/run/systemd/private", "/run/dbus/system_bus_socket", f"/run/user/{os.geteuid()}"),
]


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host, of the user that the sandbox was made by."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("path", [*HOSTS, *SOCKETS])
def test_the_hosts_files_are_not_there(session: Session, path: str) -> None:
    result = session.exec("ls", ["-d", path])
    assert result.exit_code == 2
    assert "No such file" in result.stderr


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp", "/dev/shm"])
def test_a_hosts_file_that_all_may_read_can_not_be_read(session: Session, folder: str) -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as secret:
        os.chmod(secret.name, 0o644)
        assert not session.exec("cat", [secret.name]).ok


def test_the_users_of_the_host_are_not_told(session: Session) -> None:
    for file, names in (("passwd", {"root", "nobody", "sandbox"}), ("group", {"root", "nogroup", "sandbox"})):
        lines = session.exec("cat", [f"/etc/{file}"]).check().stdout.splitlines()
        assert {line.split(":")[0] for line in lines} == names
    assert session.exec("id", ["-un"]).stdout == "sandbox\n"
    assert session.exec("hostname").stdout == "sandbox\n"


def test_nothing_can_be_written_but_the_workspace_and_memory(inside: Inside) -> None:
    found = inside(WRITABLE).splitlines()
    assert sorted(found) == ["/dev/shm", "/tmp", "/workspace"]


@pytest.mark.parametrize("path", ["/usr/bin/env", "/etc/passwd", "/.sandboxkit/agent", "/proc/self/oom_score_adj"])
def test_no_file_outside_can_be_changed(inside: Inside, path: str) -> None:
    program = "import sys\ntry:\n    open(sys.argv[1], 'r+b').write(b'0')\nexcept OSError as e:\n    print(e.errno)"
    assert inside(program, path) in {"13", "30"}  # EACCES, EROFS


def test_devices_can_be_written_and_none_be_made(session: Session, inside: Inside) -> None:
    assert session.shell("echo x >/dev/null && echo x >/dev/zero && echo x >/dev/stdout").stdout == "x\n"
    found = inside("import os; print(*sorted(os.listdir('/dev')))").split()
    links = {"core", "fd", "ptmx", "stderr", "stdin", "stdout"}
    assert set(found) - links == {"full", "null", "pts", "random", "shm", "tty", "urandom", "zero"}
    made = "try:\n    os.mknod('/tmp/null', 0o20666, os.makedev(1, 3))\nexcept OSError as e:\n    print(e.errno)"
    assert inside(f"import os\n{made}") in {"1", "13"}


def test_only_the_sandboxs_own_processes_are_seen(inside: Inside, victim: subprocess.Popen[bytes]) -> None:
    listed = "import os; print(*[open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()])"
    commands = inside(listed)
    assert "sleep" not in commands
    assert "pytest" not in commands
    assert inside("import os, sys; print(os.path.exists('/proc/' + sys.argv[1]))", victim.pid) == "False"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_process_of_the_host_cannot_be_signalled(
    session: Session, victim: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    result = session.shell(f"kill -{number.value} {victim.pid}")
    assert not result.ok
    session.shell(f"kill -{number.value} -1")  # whatever it reaches is inside
    assert victim.poll() is None
    state = Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state in "SR"
    assert session.exec("echo", ["next"]).stdout == "next\n"


@pytest.mark.parametrize("file", ["environ", "mem", "maps", "fd", "cwd", "root", "exe", "task/1/mem"])
def test_the_agent_cannot_be_looked_into(inside: Inside, file: str) -> None:
    program = """
import os, sys
path = '/proc/1/' + sys.argv[1]
try:
    print(os.listdir(path) if path.endswith('fd') else os.open(path, os.O_RDONLY))
except PermissionError:
    print('refused')
"""
    assert inside(program, file) == "refused"


def test_nothing_is_inherited_from_the_host(session: Session, backend: object) -> None:
    assert session.exec("sh", ["-c", "echo /proc/self/fd/*"]).stdout.split()[:3] == [
        f"/proc/self/fd/{n}" for n in range(3)
    ]
    names = {line.split("=")[0] for line in session.exec("env").stdout.splitlines()}
    assert names <= {"PATH", "LANG", "TERM", "HOME", "PWD"}


@pytest.mark.parametrize(
    "call",
    [
        *("mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsmount", "fspick"),
        *("mount_setattr", "unshare", "setns", "swapon", "swapoff", "quotactl", "acct", "open_by_handle_at"),
        *(
            "name_to_handle_at",
            "fanotify_init",
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "pidfd_getfd",
            "kcmp",
        ),
        *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "init_module"),
        *("finit_module", "delete_module", "kexec_load", "syslog", "clock_settime", "settimeofday", "adjtimex"),
        *("clock_adjtime", "reboot", "sethostname", "setdomainname"),
    ],
)
def test_a_call_on_the_deny_list_is_eperm(inside: Inside, call: str) -> None:
    assert inside(ERRNO_OF, call) == "EPERM"


@pytest.mark.parametrize("flag", ["NEWNS", "NEWCGROUP", "NEWUTS", "NEWIPC", "NEWUSER", "NEWPID", "NEWNET"])
def test_no_namespace_can_be_gained(inside: Inside, flag: str) -> None:
    assert inside(ERRNO_OF, "unshare", flag) == "EPERM"
    assert inside(ERRNO_OF, "clone", flag) == "EPERM"
    assert inside(ERRNO_OF, "clone3", flag) == "ENOSYS"


def test_other_ways_around_the_filter_are_closed(inside: Inside) -> None:
    assert inside(ERRNO_OF, "personality", "ADDR_NO_RANDOMIZE") == "EPERM"
    assert inside(ERRNO_OF, "personality", "ASK") == "0"
    assert inside(ERRNO_OF, "beyond the last") == "ENOSYS"
    assert inside(ERRNO_OF, "x32 getpid") in {"ENOSYS", "no such ABI"}
    assert inside(ERRNO_OF, "i386 getpid") in {"ENOSYS", "no such ABI"}


def test_no_keystroke_can_be_pushed_into_a_terminal(session: Session) -> None:
    push = "try:\n    fcntl.ioctl(0, termios.TIOCSTI, b'x')\nexcept OSError as e:\n    print(e.errno)"
    with session.exec_stream("python3", ["-c", f"import fcntl, termios\n{push}"], tty=True) as stream:
        said = "".join(event.text for event in stream if event.type == "stdout")
    assert said.strip() == "1"


def test_no_network_of_the_host_can_be_reached(inside: Inside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert inside(CONNECT, "tcp", "127.0.0.1", listener.getsockname()[1]) == "ECONNREFUSED"
    for address in ("192.0.2.1", "8.8.8.8", "169.254.169.254"):
        assert inside(CONNECT, "tcp", address, 80) == "ENETUNREACH"
        assert inside(CONNECT, "udp", address, 53) == "ENETUNREACH"
    assert inside(CONNECT, "tcp6", "2001:db8::1", 80) in {"ENETUNREACH", "EADDRNOTAVAIL"}
    assert inside("import socket; print(*[name for _, name in socket.if_nameindex()])") == "lo"


def test_no_other_kind_of_socket_leads_out(inside: Inside) -> None:
    for family in ("AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_BLUETOOTH", "AF_CAN", "AF_TIPC", "AF_QIPCRTR"):
        assert inside(CONNECT, "family", family, 0) == "EPERM"


def test_an_abstract_socket_of_the_host_cannot_be_reached(inside: Inside) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0sandboxkit-test-canary")
        listener.listen()
        assert inside(CONNECT, "abstract", "sandboxkit-test-canary", 0) == "ECONNREFUSED"


def test_no_set_user_id_program_gives_anything(session: Session) -> None:
    found = session.shell("find /usr -xdev -perm -4000 -type f 2>/dev/null").stdout.split()
    mounts = session.exec("cat", ["/proc/self/mounts"]).stdout.splitlines()
    assert all("nosuid" in line.split()[3].split(",") for line in mounts), mounts
    if "/usr/bin/su" in found:
        assert not session.exec("su", ["-c", "true"], input=b"\n").ok


def test_files_that_are_roots_alone_stay_so(session: Session) -> None:
    # The commands are nobody on the host, also when root made the sandbox.
    status = session.exec("cat", ["/proc/self/status"]).stdout
    assert "Groups:\t \n" in status or "Groups:\t65534 \n" in status or os.geteuid() != 0
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/keys"):
        assert not session.exec("head", ["-c1", path]).ok, path
    assert not session.shell("echo 1 >/proc/sys/kernel/sysrq").ok
    assert not session.shell("echo b >/proc/sysrq-trigger").ok
