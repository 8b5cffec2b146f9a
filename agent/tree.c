#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

/*
 * Who descends from whom, from /proc, without an allocation. A number may be reused between reading and signalling
 * only when the whole number space wraps around meanwhile; and then it would hit another command of the same session.
 */

#define PATH_SIZE 64u

struct walk {
    pid_t *pids;
    size_t count;
};

struct directory {
    int fd;
    size_t length;
    size_t at;
    _Alignas(8) char bytes[4096];
};

struct kernel_dirent {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static void proc_path(char *out, pid_t pid, const char *middle, pid_t thread, const char *end) {
    struct text text = text_over(out, PATH_SIZE);
    text_add(&text, "/proc/");
    if (pid > 0)
        text_add_u64(&text, (uint64_t)pid);
    text_add(&text, middle);
    if (thread > 0)
        text_add_u64(&text, (uint64_t)thread);
    text_add(&text, end);
}

/* The next entry of /proc or /proc/PID/task whose name is a number, or 0. */
static pid_t next_number(struct directory *directory) {
    for (;;) {
        if (directory->at == directory->length) {
            long got = syscall(SYS_getdents64, directory->fd, directory->bytes, sizeof directory->bytes);
            if (got <= 0)
                return 0;
            directory->length = (size_t)got;
            directory->at = 0;
        }
        const struct kernel_dirent *entry = (const void *)(directory->bytes + directory->at);
        directory->at += entry->length;
        pid_t number = (pid_t)parse_u64(entry->name, 0);
        if (number > 0)
            return number;
    }
}

static bool directory_open(struct directory *directory, const char *path) {
    directory->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    directory->length = 0;
    directory->at = 0;
    return directory->fd >= 0;
}

static void add_child(struct walk *walk, pid_t pid) {
    if (walk->count < WALK_MAX) /* the rest is found by a later pass */
        walk->pids[walk->count++] = pid;
}

/* Adds the numbers of one "children" file, which may come in several pieces. */
static void add_children_of_thread(struct walk *walk, pid_t pid, pid_t thread) {
    char path[PATH_SIZE];
    char bytes[1024];
    proc_path(path, pid, "/task/", thread, "/children");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* it has ended */
    pid_t number = 0;
    ssize_t got;
    while ((got = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < got; i++) {
            if (bytes[i] >= '0' && bytes[i] <= '9') {
                number = number * 10 + (bytes[i] - '0');
            } else if (number > 0) {
                add_child(walk, number);
                number = 0;
            }
        }
    close(fd);
}

static void add_children(struct walk *walk, pid_t pid) {
    struct directory threads;
    char path[PATH_SIZE];
    proc_path(path, pid, "/task", 0, "");
    if (!directory_open(&threads, path))
        return;
    pid_t thread;
    while ((thread = next_number(&threads)) > 0)
        add_children_of_thread(walk, pid, thread);
    close(threads.fd);
}

/* Behind the parenthesis of /proc/PID/stat: " S 123 ...". NULL when it has ended. */
static const char *stat_tail(pid_t pid, char *bytes, size_t size) {
    char path[PATH_SIZE];
    proc_path(path, pid, "/stat", 0, "");
    if (file_read(path, bytes, size) <= 0)
        return NULL;
    const char *tail = strrchr(bytes, ')');
    return tail != NULL && strlen(tail) > 4 ? tail + 1 : NULL;
}

/* Where the kernel has no "children" files: every process whose parent is `pid`. */
static void add_children_by_scan(struct walk *walk, pid_t pid) {
    struct directory all;
    char bytes[512];
    if (!directory_open(&all, "/proc"))
        return;
    pid_t number;
    while ((number = next_number(&all)) > 0) {
        const char *tail = stat_tail(number, bytes, sizeof bytes);
        if (tail != NULL && (pid_t)parse_u64(tail + 3, 0) == pid)
            add_child(walk, number);
    }
    close(all.fd);
}

static void add_children_any(const struct agent *agent, struct walk *walk, pid_t pid) {
    if (pid <= 0) /* a supervisor that is gone; as a parent, 0 means outside of this namespace */
        return;
    if (agent->children_files)
        add_children(walk, pid);
    else
        add_children_by_scan(walk, pid);
}

/* Kills each process before it looks for that process's children: see end.c. */
static void descend(const struct agent *agent, struct walk *walk, int signal) {
    for (size_t i = 0; i < walk->count; i++) {
        if (signal == SIGKILL)
            kill(walk->pids[i], SIGKILL);
        add_children_any(agent, walk, walk->pids[i]);
    }
}

void tree_open(struct agent *agent) {
    char path[PATH_SIZE];
    proc_path(path, agent->pid, "/task/", agent->pid, "/children");
    agent->children_files = access(path, R_OK) == 0;
}

/*
 * Signals (unless 0) every descendant of `root`; they are in agent->walked afterwards. Returns how many. SIGTERM is sent
 * when all are found: a process may end by it at once, and its children would be nobody's in the midst of the walk.
 */
size_t tree_walk(struct agent *agent, pid_t root, int signal) {
    struct walk walk = {.pids = agent->walked};
    add_children_any(agent, &walk, root);
    descend(agent, &walk, signal);
    for (size_t i = 0; signal == SIGTERM && i < walk.count; i++) {
        kill(walk.pids[i], SIGTERM);
        kill(walk.pids[i], SIGCONT); /* a stopped process would not notice */
    }
    return walk.count;
}

static bool is_alive(pid_t pid) {
    char bytes[512];
    const char *tail = stat_tail(pid, bytes, sizeof bytes);
    return tail != NULL && tail[1] != 'Z' && tail[1] != 'X';
}

/* The descendants of `root` that live, at most `most` + 1 of them counted, at most `most` stored. */
size_t tree_list(struct agent *agent, pid_t root, uint32_t *pids, size_t most) {
    size_t found = tree_walk(agent, root, 0);
    size_t alive = 0;
    for (size_t i = 0; i < found && alive <= most; i++) {
        if (!is_alive(agent->walked[i]))
            continue;
        if (alive < most)
            pids[alive] = (uint32_t)agent->walked[i];
        alive++;
    }
    return alive;
}

/* Kills the agent's children that are no supervisors, with all below them. Returns how many there were. */
size_t tree_kill_unknown(struct agent *agent) {
    struct walk walk = {.pids = agent->walked};
    add_children_any(agent, &walk, agent->pid);
    size_t unknown = 0;
    for (size_t i = 0; i < walk.count; i++)
        if (table_find_supervisor(agent, walk.pids[i]) == NULL)
            walk.pids[unknown++] = walk.pids[i];
    walk.count = unknown;
    descend(agent, &walk, SIGKILL);
    return unknown;
}
