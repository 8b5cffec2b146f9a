#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "hardening.h"

/*
 * One seccomp program, constant. From kernel 5.11 on its verdict on a system call whose arguments do not matter is
 * cached as a bit, so that an ordinary call does not run it at all.
 */

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#endif

/* Newer than some of the headers that this is compiled with; the same on every CPU. */
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
#ifndef SYS_open_tree_attr
#define SYS_open_tree_attr 467
#endif

/*
 * The last one known when this was written, Linux 6.17. What comes later is unknown to it and "not implemented", as under
 * the engines' profiles: libraries then do without. The x32 calls have bit 30 set and so are beyond it too.
 */
#define NEWEST 469u

#define NEW_NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))
#define SKIP(count) BPF_JUMP(BPF_JMP | BPF_JA, (count), 0, 0)
#define IF_EQUAL(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (then), (otherwise))
#define IF_ABOVE(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, (value), (then), (otherwise))
#define IF_BITS(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (value), (then), (otherwise))

#define ALLOW RETURN(SECCOMP_RET_ALLOW)
#define REFUSE RETURN(SECCOMP_RET_ERRNO | EPERM)
#define UNKNOWN RETURN(SECCOMP_RET_ERRNO | ENOSYS)

#define NUMBER offsetof(struct seccomp_data, nr)
/* The low half: these arguments are 32 bits wide for the kernel, whatever the register's upper half holds. */
#define ARGUMENT(index) (offsetof(struct seccomp_data, args) + 8 * (index))

#define DENY(name) IF_EQUAL(SYS_##name, 0, 1), REFUSE

static const struct sock_filter deny_list[] = {
    LOAD(offsetof(struct seccomp_data, arch)),
    IF_EQUAL(NATIVE, 1, 0),
    UNKNOWN,
    LOAD(NUMBER),

    /* Threads and processes, but no namespace. clone3 hides its flags in memory; libraries fall back to clone. */
    IF_EQUAL(SYS_clone, 0, 4),
    LOAD(ARGUMENT(0)),
    IF_BITS(NEW_NAMESPACES, 0, 1),
    REFUSE,
    ALLOW,
    IF_EQUAL(SYS_clone3, 0, 1),
    UNKNOWN,
    DENY(unshare),
    DENY(setns),

    /* Keystrokes for a terminal of someone else. */
    IF_EQUAL(SYS_ioctl, 0, 5),
    LOAD(ARGUMENT(1)),
    IF_EQUAL(TIOCSTI, 1, 0),
    IF_EQUAL(0x541c /* TIOCLINUX */, 0, 1),
    REFUSE,
    ALLOW,

    /* Families that a network namespace holds. Others (AF_VSOCK to the hypervisor) are not, or are but attack surface. */
    IF_EQUAL(SYS_socket, 0, 7),
    LOAD(ARGUMENT(0)),
    IF_EQUAL(AF_UNIX, 4, 0),
    IF_EQUAL(AF_INET, 3, 0),
    IF_EQUAL(AF_INET6, 2, 0),
    IF_EQUAL(AF_NETLINK, 1, 0),
    REFUSE,
    ALLOW,

    /* The ordinary values, and the one that asks. */
    IF_EQUAL(SYS_personality, 0, 8),
    LOAD(ARGUMENT(0)),
    IF_EQUAL(0x0, 5, 0),
    IF_EQUAL(0x8, 4, 0),
    IF_EQUAL(0x20000, 3, 0),
    IF_EQUAL(0x20008, 2, 0),
    IF_EQUAL(0xffffffff, 1, 0),
    REFUSE,
    ALLOW,

    /* Mounts. */
    DENY(mount), DENY(umount2), DENY(pivot_root), DENY(chroot), DENY(move_mount), DENY(open_tree),
    DENY(open_tree_attr), DENY(fsopen), DENY(fsmount), DENY(fsconfig), DENY(fspick), DENY(mount_setattr),
    DENY(swapon), DENY(swapoff), DENY(quotactl), DENY(quotactl_fd), DENY(acct),
    /* Files by handle, past every folder's permissions. */
    DENY(open_by_handle_at), DENY(name_to_handle_at), DENY(fanotify_init),
    /* Other processes. */
    DENY(ptrace), DENY(process_vm_readv), DENY(process_vm_writev), DENY(pidfd_getfd), DENY(kcmp), DENY(move_pages),
    DENY(migrate_pages),
    /* The kernel's keys, code and inner life. */
    DENY(keyctl), DENY(add_key), DENY(request_key), DENY(bpf), DENY(perf_event_open), DENY(userfaultfd),
    DENY(io_uring_setup), DENY(io_uring_enter), DENY(io_uring_register), DENY(init_module), DENY(finit_module),
    DENY(delete_module), DENY(kexec_load), DENY(kexec_file_load), DENY(syslog), DENY(lookup_dcookie),
    DENY(nfsservctl),
    /* The machine. */
    DENY(clock_settime), DENY(settimeofday), DENY(adjtimex), DENY(clock_adjtime), DENY(reboot), DENY(sethostname),
    DENY(setdomainname), DENY(vhangup),
#if defined(__x86_64__)
    DENY(iopl), DENY(ioperm), DENY(uselib),
#endif
    IF_ABOVE(NEWEST, 0, 1),
    UNKNOWN,
    ALLOW,
};

/* prctl and not seccomp(2): profiles that know the former alone are about. */
bool hardening_deny(void) {
    const struct sock_fprog program = {
        .len = sizeof deny_list / sizeof deny_list[0],
        .filter = (struct sock_filter *)(void *)(size_t)deny_list,
    };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
