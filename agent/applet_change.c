#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * mkdir PATH FLAGS MODE · remove PATH FLAGS · move FROM TO FLAGS · tidy PATH TOKEN: they write nothing. The last
 * component of a path is never followed: a link is removed or moved itself.
 */

enum change_flag {
    MKDIR_PARENTS = 1,
    MKDIR_EXIST_OK = 2,
    REMOVE_RECURSIVE = 1,
    REMOVE_MISSING_OK = 2,
    MOVE_OVERWRITE = 1,
    MOVE_PARENTS = 2,
};

#define NOREPLACE 1u
#define REMOVE_ROUNDS 3u

static void done_or_fail(int error) {
    if (error != 0)
        applet_fail(error, strerror(error));
}

void applet_mkdir(char **argv) {
    uint64_t flags = applet_number(argv[2]);
    if ((flags & MKDIR_PARENTS) != 0)
        done_or_fail(place_make_parents(argv[1]));
    done_or_fail(place_make_folder(argv[1], (mode_t)(applet_number(argv[3]) & 0777u), (flags & MKDIR_EXIST_OK) != 0));
}

static enum tree_step remove_one(void *context, const struct tree_entry *entry) {
    int *error = context;
    if (S_ISDIR(entry->status->st_mode))
        return TREE_ENTER;
    if (unlinkat(entry->folder, entry->name, 0) == 0 || errno == ENOENT)
        return TREE_NEXT;
    *error = errno;
    return TREE_STOP;
}

static enum tree_step remove_folder(void *context, int folder, const char *name) {
    int *error = context;
    if (unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return TREE_NEXT;
    *error = errno;
    return TREE_STOP;
}

static int remove_tree(const struct place *place) {
    int error = 0;
    /* Something may be made while we remove, or a folder become something else: then once more. */
    for (unsigned i = 0; i < REMOVE_ROUNDS; i++) {
        struct tree_visitor visitor = {
            .context = &error, .visit = remove_one, .leave = remove_folder, .strict = true, .deep = true};
        error = 0;
        int fd = openat(place->folder, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int visited = fd < 0 ? errno : tree_visit(fd, &visitor);
        if (visited != 0 && error == 0)
            error = visited;
        if (error == 0 && unlinkat(place->folder, place->name, AT_REMOVEDIR) == 0)
            return 0;
        if (error == 0)
            error = errno;
        if (error == ENOENT)
            return 0;
        if (error != ENOTEMPTY && error != EEXIST && error != ENOTDIR && error != ELOOP)
            return error;
    }
    return error;
}

void applet_remove(char **argv) {
    struct place place;
    struct stat status;
    uint64_t flags = applet_number(argv[2]);
    int error = place_status(argv[1], false, &place, &status);
    if (error == ENOENT && (flags & REMOVE_MISSING_OK) != 0)
        return;
    done_or_fail(error);
    if (strcmp(place.name, ".") == 0)
        done_or_fail(EBUSY);
    if (S_ISDIR(status.st_mode) && (flags & REMOVE_RECURSIVE) != 0)
        error = remove_tree(&place);
    else
        error = unlinkat(place.folder, place.name, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0) == 0 ? 0 : errno;
    done_or_fail(error);
}

static int rename_new(const struct place *from, const struct place *to) {
    struct stat status;
    if (syscall(SYS_renameat2, from->folder, from->name, to->folder, to->name, NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != EPERM)
        return errno;
    /* A file system or filter without it: looked at first, which is as good as can be had. */
    if (fstatat(to->folder, to->name, &status, AT_SYMLINK_NOFOLLOW) == 0)
        return EEXIST;
    return renameat(from->folder, from->name, to->folder, to->name) == 0 ? 0 : errno;
}

void applet_move(char **argv) {
    struct place from;
    struct place to;
    struct stat status;
    uint64_t flags = applet_number(argv[3]);
    int error = place_status(argv[1], false, &from, &status);
    if (error != 0)
        applet_fail(error, "source");
    if ((flags & MOVE_PARENTS) != 0)
        error = place_make_parents(argv[2]);
    if (error == 0)
        error = place_find(argv[2], false, &to);
    if (error != 0)
        applet_fail(error, "target");
    if (strcmp(from.name, ".") == 0 || strcmp(to.name, ".") == 0)
        applet_fail(EBUSY, strcmp(from.name, ".") == 0 ? "source" : "target");
    if ((flags & MOVE_OVERWRITE) == 0)
        error = rename_new(&from, &to);
    else if (renameat(from.folder, from.name, to.folder, to.name) != 0)
        error = errno;
    /* EXDEV is for paths that lead outside. */
    if (error != 0)
        applet_fail(error == EXDEV ? EOPNOTSUPP : error, "target");
}

static enum tree_step tidy_one(void *context, const struct tree_entry *entry) {
    if (strcmp(entry->name, context) == 0 && !S_ISDIR(entry->status->st_mode))
        unlinkat(entry->folder, entry->name, 0);
    return TREE_ENTER;
}

/* After a write or an upload was killed: what it may have left under its token, at or below the folder. */
void applet_tidy(char **argv) {
    struct tree_visitor visitor = {.context = argv[2], .visit = tidy_one, .deep = true};
    int fd = -1;
    if (place_open_folder(argv[1], &fd) == 0)
        done_or_fail(tree_visit(fd, &visitor));
}
