#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

/*
 * The supervisor: child of the agent, parent of one command at a time, and the process that every orphan of that
 * command falls to. It does nothing but reap, until no process of the command is left. The agent does all the killing,
 * because commands have the supervisor's user and may kill or stop it.
 */

#define COMMAND_STACK 8388608u /* as much as a process usually has: applets are written for that */
#define STACK_GUARD 65536u

static uint64_t microseconds(const struct timeval *time) {
    return (uint64_t)time->tv_sec * 1000000u + (uint64_t)time->tv_usec;
}

/* waitid with the usage that the library's function leaves out. */
static int wait_any(idtype_t type, pid_t pid, siginfo_t *info, int options, struct rusage *usage) {
    long result;
    do {
        info->si_pid = 0;
        result = syscall(SYS_waitid, type, pid, info, options | __WALL, usage);
    } while (result < 0 && errno == EINTR);
    return (int)result;
}

static int32_t wait_status(const siginfo_t *info) {
    if (info->si_code == CLD_EXITED)
        return (int32_t)(((unsigned)info->si_status & 0xffu) << 8);
    return (int32_t)((unsigned)info->si_status & 0x7fu);
}

/* Written before the zombie is reaped: whenever this process is killed, the result is here or in the zombie. */
static void record(struct slot *slot, const siginfo_t *info, const struct rusage *usage) {
    slot->status = wait_status(info);
    slot->ended_us = (uint64_t)now_us();
    slot->cpu_us = microseconds(&usage->ru_utime) + microseconds(&usage->ru_stime);
    slot->max_rss = (uint64_t)usage->ru_maxrss * 1024u;
    atomic_store(&slot->ended, 1);
}

static void tell(char what) {
    ssize_t ignored = send(FD_CONTROL, &what, 1, MSG_NOSIGNAL);
    (void)ignored; /* the agent is gone, or has lost interest; there may be processes to reap still */
}

/* Reaps whatever is dead; true when something still lives. */
static bool others_live(void) {
    siginfo_t info;
    struct rusage usage;
    for (;;) {
        if (wait_any(P_ALL, 0, &info, WEXITED | WNOHANG, &usage) != 0)
            return false;
        if (info.si_pid == 0)
            return true;
    }
}

/* Stopped before it took its request: by a sibling, not by its own choice. */
static void continue_stopped(const struct slot *slot, pid_t command, siginfo_t *info) {
    struct rusage usage;
    pid_t pid = info->si_pid;
    if (wait_any(P_PID, pid, info, WSTOPPED | WNOHANG, &usage) == 0 && pid == command && !slot->taken)
        kill(pid, SIGCONT);
}

/* Until no process is left. True when the command was the last. */
static bool supervise(struct slot *slot, pid_t command) {
    siginfo_t info;
    struct rusage usage;
    bool alone = false;
    while (wait_any(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOWAIT, &usage) == 0) {
        if (info.si_code == CLD_STOPPED || info.si_code == CLD_TRAPPED) {
            continue_stopped(slot, command, &info);
            continue;
        }
        pid_t pid = info.si_pid;
        bool is_command = pid == command && !slot->ended;
        if (is_command)
            record(slot, &info, &usage);
        wait_any(P_PID, pid, &info, WEXITED, &usage);
        if (!is_command)
            continue;
        alone = !others_live();
        tell(alone ? CONTROL_ALONE : CONTROL_OTHERS);
    }
    if (errno != ECHILD)
        _exit(4);
    return alone;
}

/* The pipes of all other commands end here too, and must not be held open. */
static void close_from(const struct agent *agent, int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
        return;
#endif
    for (int fd = first; fd <= agent->highest_fd; fd++)
        close(fd);
}

/* Puts the descriptors of the next task at 0, 1, 2 and FD_PROOF, which are free. Its kind, or 0 when there will be none. */
static char receive_task(void) {
    char what = 0;
    int fds[4] = {-1, -1, -1, -1};
    struct iovec byte = {.iov_base = &what, .iov_len = 1};
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fds)];
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t got;
    do
        got = recvmsg(FD_CONTROL, &message, 0);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (got != 1 || header == NULL || header->cmsg_type != SCM_RIGHTS)
        return 0;
    memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    if (what == CONTROL_TERMINAL)
        return fds[0] == 0 && dup2(0, 1) == 1 && dup2(0, 2) == 2 ? what : 0;
    if (what == CONTROL_MANAGED && (fds[3] != FD_PROOF || fcntl(FD_PROOF, F_SETFD, FD_CLOEXEC) != 0))
        return 0;
    return fds[0] == 0 && fds[1] == 1 && fds[2] == 2 ? what : 0;
}

struct task {
    const struct agent *agent;
    const struct channel *channel;
    bool tty;
    bool managed;
};

static int run_task(void *memory) {
    const struct task *task = memory;
    command_run(task->agent, task->channel, task->tty);
}

/*
 * The command's process shares this one's memory until execve, as vfork's does but without stopping this one: no page
 * is copied, which makes it several times as cheap as a fork. That is sound because meanwhile the supervisor touches
 * nothing that the other does: it has a stack of its own, and the supervisor waits in the kernel, where it fails, and
 * so writes errno, only when there is no child any more. What an applet leaves in the memory is why spawn_keep
 * refuses a supervisor that ran one. AddressSanitizer knows no second stack, and qemu's user mode no such clone: there it
 * is a fork.
 */
static pid_t make_command(struct task *task, unsigned char *stack_end) {
#ifdef __SANITIZE_ADDRESS__
    pid_t pid = -1;
    (void)stack_end;
#else
    pid_t pid = clone(run_task, stack_end, CLONE_VM | SIGCHLD, task);
    if (pid >= 0 || errno != EINVAL)
        return pid;
#endif
    pid = fork();
    if (pid == 0)
        run_task(task);
    return pid;
}

/* One command, from its process to the end of the last of its descendants. False: no further task. */
static bool do_task(struct task *task, unsigned char *stack_end) {
    struct slot *slot = task->channel->slot;
    bool tty = task->tty;
    pid_t command = make_command(task, stack_end);
    int error = errno;
    if (command > 0)
        slot->pid = (uint32_t)command;
    if (!tty || command < 0)
        close(FD_INPUT); /* that of a terminal stays open: see terminal_open */
    close(FD_OUTPUT);
    close(FD_DIAGNOSTICS);
    if (task->managed)
        close(FD_PROOF);
    if (command < 0) {
        slot->verdict_errno = error;
        slot->verdict = VERDICT_BUSY;
        tell(CONTROL_ALONE);
        return false;
    }
    bool alone = supervise(slot, command);
    if (tty)
        close(FD_INPUT);
    return alone;
}

_Noreturn void supervisor_run(struct agent *agent, struct channel *channel, int control) {
    if (dup3(control, FD_CONTROL, O_CLOEXEC) != FD_CONTROL)
        _exit(5);
    /* gVisor had none of this before 2023: orphans fall to the agent there, and live on until the session ends. */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    close(FD_INPUT);
    close(FD_OUTPUT);
    close(FD_DIAGNOSTICS);
    untrusted_hurry(true);
    close_from(agent, FD_FIRST_FREE);
    untrusted_hurry(false);
    unsigned char *stack = mmap(NULL, COMMAND_STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, STACK_GUARD, PROT_NONE) != 0)
        _exit(6);
    struct task task = {.agent = agent, .channel = channel};
    char what;
    while ((what = receive_task()) != 0) {
        task.tty = what == CONTROL_TERMINAL;
        task.managed = what == CONTROL_MANAGED;
        if (!do_task(&task, stack + COMMAND_STACK))
            break;
    }
    _exit(0);
}
