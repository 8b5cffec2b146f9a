#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent.h"

/* The facts of PROTOCOL.md 3.1. A value that cannot be read is left empty, never guessed. */

#if defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#error "the agent knows x86_64 and aarch64"
#endif

static void add(struct text *text, const char *key, const char *value) {
    text_add(text, key);
    text_add(text, "=");
    text_add(text, value);
    text_add(text, "\n");
}

static void add_number(struct text *text, const char *key, uint64_t value) {
    text_add(text, key);
    text_add(text, "=");
    text_add_u64(text, value);
    text_add(text, "\n");
}

/* What was there before the agent's own hardening; a negative one could not be read. */
static void add_found(struct text *text, const char *key, int value) {
    if (value < 0)
        add(text, key, "");
    else
        add_number(text, key, (uint64_t)value);
}

/* The word behind `field` ("\nCapEff:") of /proc/self/status. */
static void add_status(struct text *text, const char *key, const char *status, const char *field) {
    const char *at = strstr(status, field);
    text_add(text, key);
    text_add(text, "=");
    if (at != NULL) {
        at += strlen(field);
        at += strspn(at, "\t ");
        text_add_bytes(text, at, strcspn(at, "\n\t "));
    }
    text_add(text, "\n");
}

static void add_rlimit_value(struct text *text, rlim_t value) {
    if (value == RLIM_INFINITY)
        text_add(text, "unlimited");
    else
        text_add_u64(text, value);
}

static void add_rlimit(struct text *text, const char *key, const struct rlimit *limit) {
    text_add(text, key);
    text_add(text, "=");
    add_rlimit_value(text, limit->rlim_cur);
    text_add(text, ":");
    add_rlimit_value(text, limit->rlim_max);
    text_add(text, "\n");
}

static void add_limits(const struct agent *agent, struct text *text) {
    struct rlimit nproc;
    char value[32];
    add_rlimit(text, "nofile", &agent->nofile);
    if (getrlimit(RLIMIT_NPROC, &nproc) == 0)
        add_rlimit(text, "nproc", &nproc);
    else
        add(text, "nproc", "");
    add_rlimit(text, "core", &agent->core);
    cgroup_limit("memory.max", "memory", "memory.limit_in_bytes", value, sizeof value);
    add(text, "memory_max", value);
    cgroup_limit("pids.max", "pids", "pids.max", value, sizeof value);
    add(text, "pids_max", value);
}

static void add_files(const struct agent *agent, struct text *text) {
    struct statvfs root;
    const char *read_only = "";
    const char *writable = "";
    if (statvfs("/", &root) == 0)
        read_only = (root.f_flag & ST_RDONLY) != 0 ? "1" : "0";
    if (agent->workspace_errno == 0)
        writable = faccessat(FD_WORKSPACE, ".", W_OK, 0) == 0 ? "1" : "0";
    add(text, "rootfs_ro", read_only);
    add(text, "workspace_writable", writable);
}

size_t hello_write(struct agent *agent, unsigned char *at, size_t size) {
    char status[4096];
    unsigned char *facts = put_u16(put_u16(put_u32(at, HELLO_MAGIC), PROTOCOL_VERSION), 0);
    size_t head = (size_t)(facts - at);
    struct text text = text_over((char *)facts, size - head);
    if (file_read("/proc/self/status", status, sizeof status) < 0)
        status[0] = '\0';
    add(&text, "build", AGENT_BUILD);
    add(&text, "arch", ARCH);
    add_number(&text, "pid", (uint64_t)agent->pid);
    add_number(&text, "uid", getuid());
    add_number(&text, "gid", getgid());
    add_status(&text, "cap_eff", status, "\nCapEff:");
    add_status(&text, "cap_bnd", status, "\nCapBnd:");
    add_status(&text, "cap_prm", status, "\nCapPrm:");
    add_found(&text, "no_new_privs", agent->found.no_new_privs);
    add_found(&text, "seccomp", agent->found.seccomp);
    add_number(&text, "deny_list", agent->deny_list);
    add_number(&text, "landlock", (uint64_t)agent->landlock);
    add_number(&text, "shortcut", 1);
    add_number(&text, "lend", 1);
    add_limits(agent, &text);
    add_files(agent, &text);
    return head + text.length;
}
