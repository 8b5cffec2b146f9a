#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

/*
 * From a path to a name in a folder beneath the workspace. The folder is resolved by beneath_open, which cannot be led
 * outside; the last component is never followed by the kernel: a link there is read and its target resolved the same
 * way from the start. So whatever is swapped meanwhile, what is opened lies beneath.
 */

#define LINKS_MAX 40u

void link_target(int folder, const char *name, char target[PATH_MAX]) {
    ssize_t length = readlinkat(folder, name, target, PATH_MAX - 1);
    target[length > 0 ? length : 0] = '\0';
}

/* Splits `path` into folder and name; a path that ends in "/", "." or ".." names a folder itself. */
static int split(const char *path, struct place *out) {
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    size_t length = strlen(name);
    out->folder = -1;
    if (*path == '/')
        return EXDEV;
    if (*path == '\0')
        return ENOENT;
    if (length == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        memcpy(out->name, ".", 2);
        out->folder = beneath_open(FD_WORKSPACE, path);
    } else if (length > NAME_MAX) {
        return ENAMETOOLONG;
    } else {
        char folder[PATH_MAX] = ".";
        if (slash != NULL) {
            memcpy(folder, path, (size_t)(slash - path));
            folder[slash - path] = '\0';
        }
        memcpy(out->name, name, length + 1);
        out->folder = beneath_open(FD_WORKSPACE, folder);
    }
    return out->folder < 0 ? errno : 0;
}

/* Puts `target` in the place of the last component of `path`. */
static int redirect(char path[PATH_MAX], const char *target) {
    char *slash = strrchr(path, '/');
    size_t kept = slash == NULL ? 0 : (size_t)(slash + 1 - path);
    size_t length = strlen(target);
    if (*target == '/')
        return EXDEV;
    if (kept + length >= PATH_MAX)
        return ENAMETOOLONG;
    memcpy(path + kept, target, length + 1);
    return 0;
}

int place_find(const char *path, bool follow, struct place *out) {
    char current[PATH_MAX];
    char target[PATH_MAX];
    if (strlen(path) >= sizeof current)
        return ENAMETOOLONG;
    memcpy(current, path, strlen(path) + 1);
    for (unsigned links = 0; links <= LINKS_MAX; links++) {
        int error = split(current, out);
        if (error != 0 || !follow)
            return error;
        link_target(out->folder, out->name, target);
        if (*target == '\0')
            return 0;
        close(out->folder);
        error = redirect(current, target);
        if (error != 0)
            return error;
    }
    return ELOOP;
}

int place_status(const char *path, bool follow, struct place *out, struct stat *status) {
    for (unsigned i = 0; i < RACES; i++) {
        int error = place_find(path, follow, out);
        if (error != 0)
            return error;
        if (fstatat(out->folder, out->name, status, AT_SYMLINK_NOFOLLOW) != 0)
            return errno;
        if (!follow || !S_ISLNK(status->st_mode))
            return 0;
        close(out->folder); /* it became a link behind our back */
    }
    return ELOOP;
}

/* Something else than a file is not even opened: that alone would wake who waits at a FIFO. */
int place_open_file(const char *path, int flags, int *fd, struct stat *status) {
    struct place place;
    for (unsigned i = 0; i < RACES; i++) {
        int error = place_status(path, true, &place, status);
        if (error != 0)
            return error;
        if (S_ISDIR(status->st_mode))
            return EISDIR;
        if (!S_ISREG(status->st_mode))
            return ENXIO;
        *fd = openat(place.folder, place.name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        error = errno;
        close(place.folder);
        if (*fd >= 0 && fstat(*fd, status) == 0 && S_ISREG(status->st_mode))
            return 0;
        if (*fd < 0 && error != ELOOP && error != ENXIO)
            return error;
        if (*fd >= 0)
            close(*fd);
    }
    return ELOOP;
}

int place_open_folder(const char *path, int *fd) {
    struct place place;
    struct stat status;
    for (unsigned i = 0; i < RACES; i++) {
        int error = place_status(path, true, &place, &status);
        if (error != 0)
            return error;
        if (!S_ISDIR(status.st_mode))
            return ENOTDIR;
        *fd = openat(place.folder, place.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        error = errno;
        close(place.folder);
        if (*fd >= 0)
            return 0;
        if (error != ELOOP && error != ENOTDIR)
            return error;
    }
    return ELOOP;
}

int place_make_folder(const char *path, mode_t mode, bool exist_ok) {
    struct place place;
    int error = place_find(path, false, &place);
    if (error != 0)
        return error;
    error = mkdirat(place.folder, place.name, mode) == 0 ? 0 : errno;
    close(place.folder);
    if (error != EEXIST || !exist_ok)
        return error;
    int folder = beneath_open(FD_WORKSPACE, path);
    if (folder < 0)
        return errno == ENOTDIR || errno == ENOENT ? EEXIST : errno;
    close(folder);
    return 0;
}

/* Every folder before the last component. */
int place_make_parents(const char *path) {
    char prefix[PATH_MAX];
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    if (length >= sizeof prefix)
        return ENAMETOOLONG;
    if (length == 0)
        return 0;
    memcpy(prefix, path, length);
    prefix[length] = '\0';
    int folder = beneath_open(FD_WORKSPACE, prefix);
    if (folder >= 0) {
        close(folder);
        return 0;
    }
    if (errno != ENOENT)
        return errno;
    for (size_t at = 1; at < length; at++) {
        if (prefix[at] != '/' || prefix[at - 1] == '/')
            continue;
        prefix[at] = '\0';
        int error = place_make_folder(prefix, 0755, true);
        if (error != 0)
            return error == EEXIST ? ENOTDIR : error;
        prefix[at] = '/';
    }
    return 0;
}

void fd_link(int fd, char out[64]) {
    struct text text = text_over(out, 64);
    text_add(&text, "/proc/self/fd/");
    text_add_u64(&text, (uint64_t)fd);
}
