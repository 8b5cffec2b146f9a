#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hardening.h"

struct found hardening_found(void) {
    return (struct found){
        .no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        .seccomp = prctl(PR_GET_SECCOMP, 0, 0, 0, 0),
    };
}

bool hardening_close_inherited(void) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0)
        return true;
#endif
    long most = sysconf(_SC_OPEN_MAX);
    for (long fd = 3; fd < most; fd++)
        close((int)fd);
    return true;
}

static bool drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0}, {0}};
    return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 && syscall(SYS_capset, &header, none) == 0;
}

/* The bounding set first: it takes a capability to empty it. One beyond the last is EINVAL. */
static bool drop_bounding_set(void) {
    for (unsigned long capability = 0; capability < 64; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
            return errno == EINVAL && capability > 0;
    return true;
}

bool hardening_become(uid_t uid, gid_t gid, const char *workspace) {
    int parent_death = 0;
    if (chown(workspace, uid, gid) != 0 || !drop_bounding_set() || prctl(PR_GET_PDEATHSIG, &parent_death) != 0)
        return false;
    if (setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        return false;
    /*
     * A change of user clears the signal for the parent's death, and leaves the process non-dumpable, its files in /proc
     * root's: main still has to open one.
     */
    return drop_capabilities() && prctl(PR_SET_PDEATHSIG, parent_death) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

/* landlock(7). Defined here because headers that lack the later ones are about. */
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#define CREATE_RULESET_VERSION 1u
#define RULE_PATH_BENEATH 1
#define FS_WRITE_FILE (UINT64_C(1) << 1)
#define FS_WRITES_V1 (FS_WRITE_FILE | UINT64_C(0x1ff0)) /* removing and making every kind of file */
#define FS_REFER (UINT64_C(1) << 13)                    /* version 2: links and renames between folders */
#define FS_TRUNCATE (UINT64_C(1) << 14)                 /* version 3 */
#define SCOPE_ALL UINT64_C(3)                           /* version 6: abstract sockets and signals stay inside */

struct ruleset {
    uint64_t files;
    uint64_t network;
    uint64_t scoped;
};

struct beneath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

static bool allow_below(int ruleset, const char *path, uint64_t allowed) {
    struct beneath rule = {.allowed = allowed, .parent = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (rule.parent < 0)
        return errno == ENOENT; /* what is not there cannot be written to */
    long result = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0u);
    close(rule.parent);
    return result == 0;
}

static uint64_t writes_of(long version) {
    uint64_t writes = FS_WRITES_V1;
    if (version >= 2)
        writes |= FS_REFER;
    if (version >= 3)
        writes |= FS_TRUNCATE;
    return writes;
}

static int make_ruleset(long version, const char *workspace) {
    const uint64_t writes = writes_of(version);
    const struct ruleset handled = {.files = writes, .scoped = version >= 6 ? SCOPE_ALL : 0};
    const size_t size = version >= 6 ? sizeof handled : sizeof handled.files;
    long ruleset = syscall(SYS_landlock_create_ruleset, &handled, size, 0u);
    if (ruleset < 0)
        return -1;
    const char *const free_folders[] = {workspace, "/tmp", "/dev/shm"};
    bool made = allow_below((int)ruleset, "/dev", writes & (FS_WRITE_FILE | FS_TRUNCATE));
    for (size_t i = 0; i < sizeof free_folders / sizeof free_folders[0]; i++)
        made = made && allow_below((int)ruleset, free_folders[i], writes);
    if (made)
        return (int)ruleset;
    close((int)ruleset);
    return -1;
}

bool hardening_confine(const char *workspace, int *version) {
    *version = 0;
    long known = syscall(SYS_landlock_create_ruleset, NULL, 0u, CREATE_RULESET_VERSION);
    if (known < 0)
        return errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM; /* not there, switched off, or filtered */
    int ruleset = make_ruleset(known, workspace);
    if (ruleset < 0)
        return false;
    bool confined = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0u) == 0;
    close(ruleset);
    if (confined)
        *version = (int)known;
    return confined;
}
