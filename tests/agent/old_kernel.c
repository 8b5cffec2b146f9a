/* Runs a program as on a kernel of 2018: a seccomp filter says ENOSYS to openat2 and close_range, to access, by
 * which the agent looks for the "children" files of /proc, and to the socket option SO_PASSRIGHTS. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SYS_access
#define ACCESS SYS_access
#else
#define ACCESS SYS_faccessat
#endif

#define PASSRIGHTS 83

int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ACCESS, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])), /* its lower half */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PASSRIGHTS, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("old_kernel");
        return 1;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}
