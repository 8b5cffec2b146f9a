#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

/*
 * The supervisor: child of the agent, parent of one command, and the process that every orphan of that command falls
 * to. It does nothing but reap, and stays until no process of the command is left. The agent does all the killing,
 * because commands have the supervisor's user and may kill or stop it.
 */

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

static _Noreturn void supervise(struct slot *slot, pid_t command) {
    siginfo_t info;
    struct rusage usage;
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
        if (is_command)
            tell(others_live() ? CONTROL_OTHERS : CONTROL_ALONE);
    }
    _exit(errno == ECHILD ? 0 : 4);
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

static bool take_places(const struct ends *ends) {
    int output = ends->output >= 0 ? ends->output : ends->input;
    int error = ends->error >= 0 ? ends->error : ends->input;
    return dup2(ends->input, 0) == 0 && dup2(output, 1) == 1 && dup2(error, 2) == 2 &&
           dup3(ends->control, FD_CONTROL, O_CLOEXEC) == FD_CONTROL;
}

_Noreturn void supervisor_run(struct agent *agent, struct channel *channel, const struct ends *ends) {
    struct slot *slot = channel->slot;
    pid_t command = -1;
    if (take_places(ends) && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0) {
        close_from(agent, FD_FIRST_FREE);
        command = fork();
    }
    if (command == 0)
        command_run(agent, channel);
    if (command < 0) {
        slot->verdict_errno = errno;
        slot->verdict = VERDICT_BUSY;
        tell(CONTROL_ALONE);
        _exit(0);
    }
    slot->pid = (uint32_t)command;
    if (!channel->tty) /* see terminal_open */
        close(FD_INPUT);
    close(FD_OUTPUT);
    close(FD_DIAGNOSTICS);
    close(FD_WORKSPACE);
    supervise(slot, command);
}
