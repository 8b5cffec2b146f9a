"""Programs that run inside and print what they found, as one word or one line each."""

from __future__ import annotations

ERRNO_OF = """
import ctypes, errno, mmap, os, platform, sys

X86, ARM = ({
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "swapon": 167,
    "swapoff": 168, "quotactl": 179, "acct": 163, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "fanotify_init": 300, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "keyctl": 250,
    "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "kexec_load": 246, "syslog": 103, "clock_settime": 227,
    "settimeofday": 164, "adjtimex": 159, "clock_adjtime": 305, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "clone": 56, "personality": 135,
}, {
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "swapon": 224,
    "swapoff": 225, "quotactl": 60, "acct": 89, "open_by_handle_at": 265, "name_to_handle_at": 264,
    "fanotify_init": 262, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "keyctl": 219,
    "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "init_module": 105,
    "finit_module": 273, "delete_module": 106, "kexec_load": 104, "syslog": 116, "clock_settime": 112,
    "settimeofday": 170, "adjtimex": 171, "clock_adjtime": 266, "reboot": 142, "sethostname": 161,
    "setdomainname": 162, "clone": 220, "personality": 92,
})
NUMBERS = {
    **(X86 if platform.machine() == "x86_64" else ARM), "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438, "mount_setattr": 442,
    "beyond the last": 9999, "x32 getpid": 0x40000000 + 39,
}
FLAGS = {
    "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000, "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000, "NEWNET": 0x40000000, "ADDR_NO_RANDOMIZE": 0x40000, "ASK": 0xffffffff,
}

def i386_getpid():
    # mov eax, 20; int 0x80; ret: the other door into the kernel.
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()

name, flag = sys.argv[1], FLAGS[sys.argv[2]] if len(sys.argv) > 2 else 0
if name.startswith(("x32", "i386")) and platform.machine() != "x86_64":
    sys.exit(print("no such ABI"))
if name.startswith("i386"):
    pid = os.fork()
    if pid == 0:
        os._exit(-i386_getpid() & 0xff)
    status = os.waitpid(pid, 0)[1]
    sys.exit(print("no such ABI" if os.WIFSIGNALED(status) else errno.errorcode[os.WEXITSTATUS(status)]))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
first = ctypes.c_ulong(flag | (17 if name == "clone" else 0))  # SIGCHLD
result = libc.syscall(ctypes.c_long(NUMBERS[name]), first, 0, 0, 0, 0, 0)
if name == "clone" and result == 0:
    os._exit(0)
print(errno.errorcode[ctypes.get_errno()] if result == -1 else 0)
"""
"""Of the system call argv[1], with the flag argv[2]: `EPERM` and the like, or 0."""

CONNECT = """
import errno, socket, sys

how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    if how == "family":
        number = {"AF_ALG": 38, "AF_VSOCK": 40, "AF_PACKET": 17, "AF_BLUETOOTH": 31, "AF_CAN": 29, "AF_TIPC": 30,
                  "AF_QIPCRTR": 42}[address]
        socket.socket(number, socket.SOCK_STREAM if address != "AF_ALG" else socket.SOCK_SEQPACKET)
    elif how == "abstract":
        socket.socket(socket.AF_UNIX).connect("\\0" + address)
    else:
        family = socket.AF_INET6 if how == "tcp6" else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM if how == "udp" else socket.SOCK_STREAM) as made:
            made.settimeout(3)
            made.connect((address, port))
    print("connected")
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""
"""`tcp`, `tcp6`, `udp` or `abstract` to an address, or a socket of a `family`: the error, or `connected`."""

WRITABLE = """
import os, tempfile

for folder, names, _ in os.walk("/"):
    names[:] = [name for name in names if not os.path.islink(os.path.join(folder, name))]
    if folder.startswith("/proc/") and folder.count("/") > 2:
        names.clear()
    try:
        descriptor, path = tempfile.mkstemp(dir=folder)
    except OSError:
        continue
    os.close(descriptor)
    os.unlink(path)
    print(folder)
"""
"""Every folder in which a file can be made."""
