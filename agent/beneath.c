#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RESOLVE_NO_MAGICLINKS 0x02u
#define RESOLVE_BENEATH 0x08u
#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define DEPTH_MAX 128u
#define LINKS_MAX 40u
#define RACE_RETRIES 16u

struct open_how {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
};

/*
 * The walk for kernels or seccomp filters without openat2. It holds a descriptor of every folder on the way, so ".."
 * means the folder it came from, wherever that has been moved meanwhile; it never leaves the root.
 */
struct walk {
    int folders[DEPTH_MAX];
    unsigned depth;
    unsigned links;
    char rest[PATH_MAX]; /* what is still to be walked */
};

/* Puts the target of the link `name` before the rest of the path. */
static int follow(struct walk *walk, const char *name) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(walk->folders[walk->depth], name, target, sizeof target - 1);
    if (length < 0)
        return errno;
    target[length] = '\0';
    if (target[0] == '/')
        return EXDEV;
    if (++walk->links > LINKS_MAX)
        return ELOOP;
    size_t rest = strlen(walk->rest);
    if ((size_t)length + 1 + rest >= sizeof walk->rest)
        return ENAMETOOLONG;
    memmove(walk->rest + length + 1, walk->rest, rest + 1);
    memcpy(walk->rest, target, (size_t)length);
    walk->rest[length] = '/';
    return 0;
}

static int enter(struct walk *walk, const char *name) {
    struct stat status;
    if (fstatat(walk->folders[walk->depth], name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    if (S_ISLNK(status.st_mode))
        return follow(walk, name);
    if (walk->depth + 1 == DEPTH_MAX)
        return ENAMETOOLONG;
    int fd = openat(walk->folders[walk->depth], name, FOLDER_FLAGS | O_NOFOLLOW);
    if (fd < 0)
        return errno == ELOOP ? ENOTDIR : errno;
    walk->folders[++walk->depth] = fd;
    return 0;
}

static int leave(struct walk *walk) {
    if (walk->depth == 0)
        return EXDEV;
    close(walk->folders[walk->depth--]);
    return 0;
}

/* Takes the first component off the rest; false when there is none. */
static bool next_component(struct walk *walk, char name[NAME_MAX + 1], int *error) {
    const char *at = walk->rest + strspn(walk->rest, "/");
    size_t length = strcspn(at, "/");
    if (length == 0)
        return false;
    if (length > NAME_MAX) {
        *error = ENAMETOOLONG;
        return false;
    }
    memcpy(name, at, length);
    name[length] = '\0';
    memmove(walk->rest, at + length, strlen(at + length) + 1);
    return true;
}

static int walk_open(int root, const char *path) {
    struct walk walk = {.folders = {root}};
    char name[NAME_MAX + 1];
    int error = *path == '/' ? EXDEV : 0;
    if (strlen(path) >= sizeof walk.rest)
        error = ENAMETOOLONG;
    if (error == 0)
        memcpy(walk.rest, path, strlen(path) + 1);
    while (error == 0 && next_component(&walk, name, &error)) {
        if (strcmp(name, "..") == 0)
            error = leave(&walk);
        else if (strcmp(name, ".") != 0)
            error = enter(&walk, name);
    }
    int result = -1;
    if (error == 0 && (result = openat(walk.folders[walk.depth], ".", FOLDER_FLAGS)) < 0)
        error = errno;
    while (walk.depth > 0)
        close(walk.folders[walk.depth--]);
    errno = error;
    return result;
}

int beneath_open(int root, const char *path) {
    struct open_how how = {.flags = (uint64_t)FOLDER_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    for (unsigned i = 0; i < RACE_RETRIES; i++) {
        long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM)
            return walk_open(root, path);
        if (errno != EAGAIN) /* EAGAIN: a rename somewhere while ".." was looked up */
            return -1;
    }
    return walk_open(root, path);
}
