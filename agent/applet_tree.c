#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * A visit of everything below a folder: depth first, names in the order of their bytes. No link is followed. Folders
 * may be nested deeper than descriptors or paths allow: only the lowest levels are held open, and the way back up is "..",
 * which must be the very folder that we came from.
 */

#define HELD_OPEN 64u
#define NAMES_MAX 268435456u /* bytes of names in one folder */

struct level {
    struct level *above;
    struct level *below;
    int fd; /* -1: closed meanwhile */
    dev_t device;
    ino_t inode;
    char *bytes;
    const char **names;
    size_t size;
    size_t room;
    size_t count;
    size_t at;
    size_t path_length; /* of the path of this folder with a "/" behind it; 0 for the first */
    bool nameless;      /* too deep for a path */
};

struct visit {
    struct tree_visitor *visitor;
    struct level *level;
    struct level *oldest; /* the highest level that is still open */
    unsigned open_count;
    char path[PATH_MAX];
};

struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int add_name(struct level *level, const char *name) {
    size_t length = strlen(name) + 1;
    if (level->size + length > NAMES_MAX)
        return ENOMEM;
    if (level->size + length > level->room) {
        level->room = level->room * 2 + 4096;
        char *larger = realloc(level->bytes, level->room);
        if (larger == NULL)
            return ENOMEM;
        level->bytes = larger;
    }
    memcpy(level->bytes + level->size, name, length);
    level->size += length;
    level->count++;
    return 0;
}

/* Heap sort: its time has a bound whatever the names are, and it needs no memory. */
static void sift_down(const char **names, size_t at, size_t count) {
    const char *name = names[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && strcmp(names[child], names[child + 1]) < 0)
            child++;
        if (strcmp(name, names[child]) >= 0)
            break;
        names[at] = names[child];
    }
    names[at] = name;
}

static void sort_names(const char **names, size_t count) {
    for (size_t at = count / 2; at-- > 0;)
        sift_down(names, at, count);
    while (count > 1) {
        const char *largest = names[0];
        names[0] = names[--count];
        names[count] = largest;
        sift_down(names, 0, count);
    }
}

static int read_names(struct level *level) {
    static union {
        struct directory_entry entry;
        char bytes[65536];
    } block;
    for (;;) {
        long got = syscall(SYS_getdents64, level->fd, block.bytes, sizeof block);
        if (got < 0)
            return errno;
        if (got == 0)
            break;
        for (long at = 0; at < got;) {
            const struct directory_entry *entry = (const struct directory_entry *)(const void *)(block.bytes + at);
            at += entry->length;
            if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
                continue;
            int error = add_name(level, entry->name);
            if (error != 0)
                return error;
        }
    }
    level->names = malloc((level->count + 1) * sizeof level->names[0]);
    if (level->names == NULL)
        return ENOMEM;
    const char *name = level->bytes;
    for (size_t i = 0; i < level->count; i++, name += strlen(name) + 1)
        level->names[i] = name;
    sort_names(level->names, level->count);
    return 0;
}

static void free_level(struct level *level) {
    if (level->fd >= 0)
        close(level->fd);
    free(level->bytes);
    free(level->names);
    free(level);
}

/* `fd` is consumed. */
static int push(struct visit *visit, int fd, size_t path_length, bool nameless) {
    struct stat status;
    struct level *level = calloc(1, sizeof *level);
    if (level == NULL || fstat(fd, &status) != 0) {
        free(level);
        close(fd);
        return level == NULL ? ENOMEM : errno;
    }
    *level = (struct level){.above = visit->level, .fd = fd, .device = status.st_dev, .inode = status.st_ino,
                            .path_length = path_length, .nameless = nameless};
    int error = read_names(level);
    if (error != 0) {
        free_level(level);
        return error;
    }
    if (visit->level != NULL)
        visit->level->below = level;
    else
        visit->oldest = level;
    visit->level = level;
    if (++visit->open_count > HELD_OPEN) {
        close(visit->oldest->fd);
        visit->oldest->fd = -1;
        visit->oldest = visit->oldest->below;
        visit->open_count--;
    }
    return 0;
}

/* Back to the folder above, which may have to be opened again. */
static int pop(struct visit *visit) {
    struct level *done = visit->level;
    struct level *above = done->above;
    int error = 0;
    if (above != NULL && above->fd < 0) {
        struct stat status;
        above->fd = openat(done->fd, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (above->fd < 0 || fstat(above->fd, &status) != 0)
            error = errno;
        else if (status.st_dev != above->device || status.st_ino != above->inode)
            error = ESTALE; /* moved away meanwhile, perhaps to somewhere outside */
        visit->oldest = above;
        visit->open_count++;
    }
    if (above != NULL)
        above->below = NULL;
    visit->level = above;
    visit->open_count--;
    free_level(done);
    return error;
}

static int enter(struct visit *visit, const char *name, size_t path_length, bool nameless) {
    int fd = openat(visit->level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = fd < 0 ? errno : push(visit, fd, path_length, nameless);
    if (error == 0 || visit->visitor->strict)
        return error;
    visit->visitor->skipped++;
    return 0;
}

/* Puts the name behind the folder's path; returns the whole length, or 0 when there is no room. */
static size_t name_path(struct visit *visit, const char *name) {
    size_t length = strlen(name);
    size_t before = visit->level->path_length;
    if (visit->level->nameless || before + length + 1 >= PATH_MAX)
        return 0;
    memcpy(visit->path + before, name, length + 1);
    return before + length;
}

/* One name. Positive: an errno; negative: the visitor has had enough. */
static int visit_one(struct visit *visit, const char *name) {
    struct tree_visitor *visitor = visit->visitor;
    struct stat status;
    if (fstatat(visit->level->fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 0 : errno; /* gone since the folder was read */
    size_t length = name_path(visit, name);
    if (length == 0 && !visitor->deep) {
        visitor->skipped++;
        return 0;
    }
    struct tree_entry entry = {visit->level->fd, name, length == 0 ? NULL : visit->path, &status};
    enum tree_step step = visitor->visit(visitor->context, &entry);
    if (step == TREE_STOP)
        return -1;
    if (step != TREE_ENTER || !S_ISDIR(status.st_mode))
        return 0;
    if (length != 0)
        memcpy(visit->path + length, "/", 2);
    return enter(visit, name, length + 1, length == 0);
}

int tree_visit(int fd, struct tree_visitor *visitor) {
    static struct visit visit;
    visit = (struct visit){.visitor = visitor};
    int result = push(&visit, fd, 0, false);
    while (result == 0 && visit.level != NULL) {
        struct level *level = visit.level;
        if (level->at < level->count) {
            result = visit_one(&visit, level->names[level->at++]);
            continue;
        }
        result = pop(&visit);
        struct level *above = visit.level;
        if (result == 0 && above != NULL && visitor->leave != NULL &&
            visitor->leave(visitor->context, above->fd, above->names[above->at - 1]) == TREE_STOP)
            result = -1;
    }
    while (visit.level != NULL) {
        struct level *level = visit.level;
        visit.level = level->above;
        free_level(level);
    }
    return result > 0 ? result : 0;
}
