#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "applet.h"

/* The command's process, from the fork to execve. Everything that needs no request is done before one is there. */

#define POINTERS 1024u /* enough for nearly every request, without a system call */

extern char **environ;

static _Noreturn void give_up(struct slot *slot, enum verdict verdict, int error) {
    slot->verdict_errno = error;
    slot->verdict = verdict;
    _exit(125);
}

static void prepare(const struct agent *agent, struct slot *slot, bool tty) {
    slot->pid = (uint32_t)getpid();
    if (setsid() < 0)
        give_up(slot, VERDICT_INTERNAL, errno);
    int error = tty && ioctl(FD_INPUT, TIOCSCTTY, 0) != 0 ? errno : 0;
    if (error == 0 && agent->nofile_raised && setrlimit(RLIMIT_NOFILE, &agent->nofile) != 0)
        error = errno;
    if (error != 0)
        give_up(slot, VERDICT_INTERNAL, error);
}

static void wait_for_go(void) {
    char go;
    ssize_t got;
    do
        got = recv(FD_CONTROL, &go, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        _exit(0); /* the agent does not need this process any more */
}

/*
 * While it waited, others may have sent this process signals, which the command to come has nothing to do with. But one
 * of them may be the agent's own SIGTERM, sent as early as that.
 */
static void drop_pending_signals(const struct slot *slot) {
    const uint64_t all = UINT64_MAX;
    uint64_t pending = 0;
    const struct timespec at_once = {0};
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    if (pending == 0)
        return;
    while (syscall(SYS_rt_sigtimedwait, &all, NULL, &at_once, sizeof all) > 0)
        ;
    if (slot->ending != 0)
        kill(getpid(), SIGTERM);
}

static void enter_folder(struct slot *slot, const char *path) {
    if (strcmp(path, ".") == 0 || *path == '\0') {
        if (fchdir(FD_WORKSPACE) != 0)
            give_up(slot, VERDICT_CWD, errno);
        return;
    }
    int folder = beneath_open(FD_WORKSPACE, path);
    if (folder < 0 || fchdir(folder) != 0)
        give_up(slot, VERDICT_CWD, errno);
    close(folder);
}

static char **pointers(struct slot *slot, size_t count) {
    static char *few[POINTERS];
    if (count <= POINTERS)
        return few;
    void *memory = mmap(NULL, count * sizeof(char *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        give_up(slot, VERDICT_INTERNAL, errno);
    return memory;
}

static void unblock_signals(void) {
    const uint64_t none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

_Noreturn void command_run(const struct agent *agent, const struct channel *channel, bool tty) {
    struct slot *slot = channel->slot;
    struct request request;
    const char *why = "";
    size_t inherited = 0;
    prepare(agent, slot, tty);
    wait_for_go();
    drop_pending_signals(slot);
    if (!request_parse(channel->large != NULL ? channel->large : slot->request, slot->size, &request, &why))
        give_up(slot, VERDICT_INTERNAL, EINVAL);
    if (agent->workspace_errno != 0)
        give_up(slot, VERDICT_CWD, agent->workspace_errno);
    enter_folder(slot, request.cwd);
    while (environ[inherited] != NULL)
        inherited++;
    char **argv = pointers(slot, (size_t)request.argc + request.envc + inherited + 2);
    char **envp = argv + request.argc + 1;
    request_arguments(&request, argv);
    request_environment(&request, environ, envp);
    /* From here on the request counts as run, whatever happens: it must never run twice. */
    atomic_store(&slot->taken, 1);
    const char started = CONTROL_STARTED;
    if ((request.flags & EXEC_STARTED) != 0 && send(FD_CONTROL, &started, 1, MSG_NOSIGNAL) != 1)
        _exit(0);
    unblock_signals();
    if ((request.flags & EXEC_APPLET) != 0)
        applet_run(argv, envp);
    int code = launch(argv, envp);
    slot->verdict = VERDICT_NOT_RUN;
    _exit(code);
}
