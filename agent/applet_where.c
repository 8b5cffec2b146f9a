#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "wire.h"

/*
 * which MOST NAME... · resolve PATH: where names lead, for whoever judges them before they are used. `which` looks
 * where launch.c does, with the working folder and the environment of its own EXEC.
 */

#define PROGRAM_HEAD 24u
#define PROGRAM_INSIDE 1u

/* The path of what `fd` is, without links. False when it has none: it was removed, or lies outside the root. */
static bool real_path(int fd, char out[PATH_MAX]) {
    char link[64];
    fd_link(fd, link);
    link_target(AT_FDCWD, link, out);
    return *out == '/';
}

/* What follows `base` in `path`, without a slash before it; NULL when `path` is not at or below it. */
static const char *below(const char *path, const char *base) {
    size_t length = strcmp(base, "/") == 0 ? 0 : strlen(base);
    if (strncmp(path, base, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return NULL;
    return path + length + (path[length] == '/');
}

static bool may_run(int fd, struct stat *status) {
    char link[64];
    fd_link(fd, link);
    return fstat(fd, status) == 0 && S_ISREG(status->st_mode) && faccessat(AT_FDCWD, link, X_OK, AT_EACCESS) == 0;
}

/* A record of the program at `path`; false when none is there that this user may run. */
static bool out_program(const char *path, uint16_t index, const char *workspace) {
    unsigned char head[PROGRAM_HEAD];
    char real[PATH_MAX];
    struct stat status;
    int fd = open(path, O_PATH | O_CLOEXEC);
    bool found = fd >= 0 && may_run(fd, &status) && real_path(fd, real);
    if (fd >= 0)
        close(fd);
    if (!found)
        return false;
    const char *prefix = strchr(path, '/') == NULL ? "./" : ""; /* so that it is not looked for again */
    unsigned char *at = put_u8(head, 'P');
    at = put_u8(at, below(real, workspace) != NULL ? PROGRAM_INSIDE : 0);
    at = put_u16(at, index);
    at = put_u16(at, (uint16_t)(strlen(prefix) + strlen(path)));
    at = put_u16(at, (uint16_t)strlen(real));
    at = put_u64(at, (uint64_t)status.st_dev);
    put_u64(at, (uint64_t)status.st_ino);
    out_add(head, sizeof head);
    out_add(prefix, strlen(prefix));
    out_add(path, strlen(path));
    out_add(real, strlen(real));
    return true;
}

void applet_which(char **argv) {
    char workspace[PATH_MAX];
    char candidate[PATH_MAX];
    uint64_t left = applet_number(argv[1]);
    if (!real_path(FD_WORKSPACE, workspace))
        applet_fail(ENOENT, "the workspace has no path");
    for (size_t i = 2; argv[i] != NULL; i++) {
        if (i - 2 > UINT16_MAX)
            applet_fail(EINVAL, "too many names");
        struct path_search search = path_search(argv[i], environ);
        while (path_search_next(&search, candidate)) {
            if (left == 0) {
                out_end(1, 0);
                return;
            }
            left -= out_program(candidate, (uint16_t)(i - 2), workspace);
        }
    }
    out_end(0, 0);
}

/* Cuts the last component off `path`; what was cut begins at the result. NULL when nothing would be left. */
static char *cut(char *path) {
    char *end = path + strlen(path);
    while (end > path && end[-1] == '/')
        end--;
    while (end > path && end[-1] != '/')
        end--;
    char *name = end;
    while (end > path && end[-1] == '/')
        end--;
    if (end == path)
        return NULL;
    *end = '\0';
    return name;
}

static bool has_dots(const char *path) {
    for (const char *at = path; *at != '\0'; at += strcspn(at, "/")) {
        at += strspn(at, "/");
        if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == '\0'))
            return true;
    }
    return false;
}

static void out_path(const struct place *place, const char *missing) {
    char workspace[PATH_MAX];
    char real[PATH_MAX];
    const char *name = strcmp(place->name, ".") == 0 ? "" : place->name;
    if (!real_path(FD_WORKSPACE, workspace) || !real_path(place->folder, real))
        applet_fail(ENOENT, strerror(ENOENT));
    const char *folder = below(real, workspace);
    if (folder == NULL)
        applet_fail(EXDEV, strerror(EXDEV));
    const char *parts[] = {folder, name, missing};
    for (size_t i = 0, written = 0; i < 3; i++) {
        if (*parts[i] == '\0')
            continue;
        if (written++ > 0)
            out_add("/", 1);
        out_add(parts[i], strlen(parts[i]));
    }
}

/* What is not there yet is as it was passed, behind what is. */
void applet_resolve(char **argv) {
    char path[PATH_MAX];
    struct place place;
    const char *missing = "";
    if (strlen(argv[1]) >= sizeof path)
        applet_fail(ENAMETOOLONG, strerror(ENAMETOOLONG));
    memcpy(path, argv[1], strlen(argv[1]) + 1);
    int error = place_find(path, true, &place);
    while (error == ENOENT) {
        char *name = cut(path);
        if (name == NULL)
            break;
        missing = argv[1] + (name - path);
        error = place_find(path, true, &place);
    }
    /* A folder that is not there has no parent: `..` behind it would lead elsewhere once it is made. */
    if (error == 0 && has_dots(missing))
        error = ENOENT;
    if (error != 0)
        applet_fail(error, strerror(error));
    out_path(&place, missing);
}
