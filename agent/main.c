#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

#define EXIT_USAGE 64
#define EXIT_SETUP 71

static struct agent the_agent;

static _Noreturn void setup_failed(const char *what) {
    complain(what, strerror(errno));
    _exit(EXIT_SETUP);
}

struct options {
    const char *workspace;
    bool confine;
    bool detached;
    int64_t ttl_us;
    int64_t idle_us;
    bool become;
    uid_t uid;
    gid_t gid;
};

static _Noreturn void usage(void) {
    complain("usage: agent [--workspace FOLDER] [--detached] [--ttl MS] [--idle MS] [--confine [--user UID:GID]], the host on standard input and output", NULL);
    _exit(EXIT_USAGE);
}

static int64_t parse_ms(const char *text) {
    uint64_t ms = parse_u64(text, 0);
    if (ms == 0 || ms > UINT32_MAX * 1000ull)
        usage();
    return (int64_t)ms * 1000;
}

static void parse_user(const char *text, struct options *options) {
    const char *colon = strchr(text, ':');
    uint64_t uid = colon == NULL ? UINT64_MAX : parse_u64(text, UINT64_MAX);
    uint64_t gid = colon == NULL ? UINT64_MAX : parse_u64(colon + 1, UINT64_MAX);
    if (uid >= UINT32_MAX || gid >= UINT32_MAX)
        usage();
    options->become = true;
    options->uid = (uid_t)uid;
    options->gid = (gid_t)gid;
}

static struct options parse_arguments(int argc, char **argv) {
    struct options options = {.workspace = "/workspace"};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--confine") == 0) {
            options.confine = true;
            continue;
        }
        if (strcmp(argv[i], "--detached") == 0) {
            options.detached = true;
            continue;
        }
        if (strcmp(argv[i], "--workspace") == 0 && value != NULL)
            options.workspace = value;
        else if (strcmp(argv[i], "--user") == 0 && value != NULL)
            parse_user(value, &options);
        else if (strcmp(argv[i], "--ttl") == 0 && value != NULL)
            options.ttl_us = parse_ms(value);
        else if (strcmp(argv[i], "--idle") == 0 && value != NULL)
            options.idle_us = parse_ms(value);
        else
            usage();
        i++;
    }
    return options;
}

/* Moves `fd` to the number `place`. */
static void put_at(int fd, int place) {
    if (fd < 0)
        setup_failed("open");
    if (fd == place)
        return;
    if (dup3(fd, place, O_CLOEXEC) < 0)
        setup_failed("dup3");
    close(fd);
}

/* The protocol needs 0 and 1. Without 2, the numbers would shift. */
static void check_standard_descriptors(void) {
    if (fcntl(FD_INPUT, F_GETFL) < 0 || fcntl(FD_OUTPUT, F_GETFL) < 0)
        setup_failed("standard input and output must be open");
    if (fcntl(FD_DIAGNOSTICS, F_GETFL) < 0)
        put_at(open("/dev/null", O_WRONLY | O_CLOEXEC), FD_DIAGNOSTICS);
    for (int fd = FD_INPUT; fd <= FD_OUTPUT; fd++)
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
            setup_failed("fcntl");
    /* What the engine copies from and to. Larger pipes are fewer turns for it; sockets and the kernel may say no. */
    for (int fd = FD_INPUT; fd <= FD_OUTPUT; fd++)
        if (fcntl(fd, F_SETPIPE_SZ, 1048576) < 0)
            fcntl(fd, F_SETPIPE_SZ, 262144);
}

static void open_workspace(struct agent *agent, const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    agent->workspace_errno = fd < 0 ? errno : 0;
    put_at(fd >= 0 ? fd : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), FD_WORKSPACE);
}

/*
 * Every signal is blocked for good, so nothing that a command sends does anything, and all actions are the default
 * ones, so that a command needs only an empty mask. The library keeps a few signals for itself: hence the raw calls.
 */
static void take_signals(void) {
    const uint64_t all = UINT64_MAX;
    const unsigned long default_action[4] = {0}; /* struct sigaction as the kernel has it: SIG_DFL, no flags */
    if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all) != 0)
        setup_failed("rt_sigprocmask");
    for (int signal = 1; signal <= 64; signal++)
        if (signal != SIGKILL && signal != SIGSTOP)
            syscall(SYS_rt_sigaction, signal, default_action, NULL, sizeof all);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    put_at(signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC), FD_SIGNALS);
}

/* Before it becomes non-dumpable: see oom_adjust in spawn.c. */
static void open_oom_adjust(struct agent *agent) {
    char digits[16];
    agent->oom_adjust_fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (agent->oom_adjust_fd < 0 || file_read("/proc/self/oom_score_adj", digits, sizeof digits) <= 0)
        return;
    int sign = digits[0] == '-' ? -1 : 1;
    agent->oom_adjust_own = sign * (int)parse_u64(digits + (sign < 0), 0);
}

/* No core files, of the agent or of commands. Many commands need many descriptors; they themselves get what was. */
static void set_limits(struct agent *agent) {
    if (getrlimit(RLIMIT_NOFILE, &agent->nofile) != 0 || getrlimit(RLIMIT_CORE, &agent->core) != 0)
        setup_failed("getrlimit");
    struct rlimit core = {.rlim_cur = 0, .rlim_max = agent->core.rlim_max};
    if (setrlimit(RLIMIT_CORE, &core) != 0)
        setup_failed("setrlimit");
    struct rlimit nofile = {.rlim_cur = agent->nofile.rlim_max, .rlim_max = agent->nofile.rlim_max};
    agent->nofile_raised = nofile.rlim_cur != agent->nofile.rlim_cur && setrlimit(RLIMIT_NOFILE, &nofile) == 0;
}

/* Where no engine has done it, before anything is opened. */
static void stand_in_for_engine(const struct options *options) {
    if (!hardening_close_inherited())
        setup_failed("close_range");
    if (options->become && !hardening_become(options->uid, options->gid, options->workspace))
        setup_failed("--user");
}

/* The last of the setup. Without an engine its part must be in force; else HELLO says whether it is. */
static void harden(struct agent *agent, const struct options *options) {
    agent->found = hardening_found();
    if (options->confine && !hardening_confine(options->workspace, &agent->landlock))
        setup_failed("landlock");
    agent->deny_list = hardening_deny();
    if (!options->confine)
        return;
    if (!agent->deny_list)
        setup_failed("seccomp");
    agent->found = hardening_found();
}

static void open_detached(struct agent *agent, const struct options *options) {
    agent->detached.on = options->detached;
    agent->detached.ttl_us = options->ttl_us;
    agent->detached.idle_us = options->idle_us;
    detached_take_token(agent);
    if (!detached_open(agent))
        setup_failed("the socket of a detached session");
    lifetime_begin(agent, now_us());
}

static void *map(size_t size, int kind) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        setup_failed("mmap");
    return memory;
}

/* Only what is touched costs anything. The buffers are not for the children: a fork need not copy their pages. */
static void *map_buffer(size_t size, int kind) {
    void *memory = map(size, kind);
    if (madvise(memory, size, MADV_DONTFORK) != 0)
        setup_failed("madvise");
    return memory;
}

static void open_memory(struct agent *agent) {
    agent->slots = map((size_t)TABLE_SIZE * SLOT_SIZE, MAP_SHARED);
    agent->input.bytes = map_buffer(INPUT_SIZE, MAP_PRIVATE);
    agent->output.bytes = map_buffer(OUTPUT_SIZE, MAP_PRIVATE);
    agent->output.fd = FD_OUTPUT;
    agent->scratch = map_buffer(SCRATCH_SIZE, MAP_PRIVATE);
    agent->walked = map_buffer(WALK_MAX * sizeof(pid_t), MAP_PRIVATE);
    /* Shared with nobody; but private memory would count against RLIMIT_DATA before any of it is used. */
    agent->tunnels.buffers = map_buffer((size_t)TUNNELS * TUNNEL_INPUT, MAP_SHARED);
}

int main(int argc, char **argv) {
    struct agent *agent = &the_agent;
    if (argc > 1 && strcmp(argv[1], "connect") == 0)
        connect_run(argc, argv);
    const struct options options = parse_arguments(argc, argv);
    agent->pid = getpid();
    if (options.confine)
        stand_in_for_engine(&options);
    check_standard_descriptors();
    open_workspace(agent, options.workspace);
    take_signals();
    open_oom_adjust(agent);
    cgroup_open(agent);
    set_limits(agent);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        setup_failed("prctl");
    open_memory(agent);
    shortcut_open(agent);
    table_open(agent);
    tunnels_open(agent);
    tree_open(agent);
    open_detached(agent, &options);
    harden(agent, &options);
    /* From here on PID 1 may not exit while the host is there: every failure below is an answer, not an end. */
    loop_run(agent);
}
