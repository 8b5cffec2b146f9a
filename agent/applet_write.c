#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/*
 * write PATH FLAGS MODE|- LENGTH MOST TOKEN [DEV INO SIZE MTIME CTIME]: LENGTH bytes of standard input and its end
 * become the file, in one step; the end record says that they have. Until then they are in a file without a name, which goes with this process however it
 * ends; where the file system has none of that sort, in one named TOKEN, which `tidy` removes.
 */

enum write_flag { WRITE_APPEND = 1, WRITE_EXCLUSIVE = 2, WRITE_PARENTS = 4, WRITE_UNCHANGED = 8 };

#define LOCK_ATTEMPTS 250u /* a millisecond each */

struct writing {
    const char *path;
    uint64_t flags;
    uint64_t length;
    uint64_t most;
    const char *token;
    char **identity;
    bool has_mode;
    mode_t mode;
    bool exists;
    struct place place;
    struct stat status;
};

int draft_open(int folder, const char *token, struct draft *out) {
    char link[64];
    out->named = false;
    out->fd = openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (out->fd >= 0) {
        fd_link(out->fd, link);
        if (access(link, F_OK) == 0) /* without /proc it could never get a name */
            return 0;
        close(out->fd);
    } else if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) {
        return errno;
    }
    out->named = true;
    unlinkat(folder, token, 0);
    out->fd = openat(folder, token, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    return out->fd < 0 ? errno : 0;
}

void draft_drop(const struct draft *draft, int folder, const char *token) {
    if (draft->named)
        unlinkat(folder, token, 0);
    close(draft->fd);
}

/* Gives the draft a name. Afterwards it is the file, or gone. */
int draft_commit(struct draft *draft, const struct place *place, const char *token, bool exclusive) {
    char link[64];
    int error = 0;
    fd_link(draft->fd, link);
    if (!draft->named && linkat(AT_FDCWD, link, place->folder, place->name, AT_SYMLINK_FOLLOW) == 0) {
        close(draft->fd);
        return 0;
    }
    if (!draft->named && (exclusive || errno != EEXIST)) {
        error = errno;
    } else if (exclusive) {
        error = linkat(place->folder, token, place->folder, place->name, 0) == 0 ? 0 : errno;
        unlinkat(place->folder, token, 0);
    } else {
        /* No call replaces a name by a nameless file; so it has TOKEN for the moment between these two. */
        if (!draft->named && linkat(AT_FDCWD, link, place->folder, token, AT_SYMLINK_FOLLOW) != 0)
            error = errno;
        else if (renameat(place->folder, token, place->folder, place->name) != 0)
            error = errno;
        if (error != 0)
            unlinkat(place->folder, token, 0);
    }
    close(draft->fd);
    return error;
}

static _Noreturn void refuse(int error) {
    applet_fail(error, strerror(error));
}

static void look(struct writing *writing) {
    if ((writing->flags & WRITE_PARENTS) != 0) {
        int error = place_make_parents(writing->path);
        if (error != 0)
            refuse(error);
    }
    int error = place_status(writing->path, true, &writing->place, &writing->status);
    writing->exists = error == 0;
    if (error == ENOENT)
        error = place_find(writing->path, true, &writing->place);
    if (error != 0)
        refuse(error);
    if (!writing->exists)
        return;
    if (S_ISDIR(writing->status.st_mode))
        refuse(EISDIR);
    if (!S_ISREG(writing->status.st_mode))
        refuse(ENXIO);
    if ((writing->flags & WRITE_EXCLUSIVE) != 0)
        refuse(EEXIST);
}

static void check_unchanged(const struct writing *writing) {
    struct stat now;
    if (fstatat(writing->place.folder, writing->place.name, &now, AT_SYMLINK_NOFOLLOW) != 0)
        refuse(ESTALE);
    const uint64_t found[5] = {(uint64_t)now.st_dev, (uint64_t)now.st_ino, (uint64_t)now.st_size,
                               (uint64_t)time_ns(&now.st_mtim), (uint64_t)time_ns(&now.st_ctim)};
    for (unsigned i = 0; i < 5; i++) {
        if (writing->identity[i] == NULL)
            applet_fail(EINVAL, "too few arguments");
        if (applet_number(writing->identity[i]) != found[i])
            applet_fail(ESTALE, "the file changed meanwhile");
    }
}

/*
 * So that of our own writers each sees what the others did: held from the check to the commit, until this process
 * ends. Someone else may hold it for ever; then it is done without, as against writers that know of no lock.
 */
static void lock_folder(int folder) {
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0; fd >= 0 && i < LOCK_ATTEMPTS && flock(fd, LOCK_EX | LOCK_NB) != 0; i++)
        poll(NULL, 0, 1);
}

static void expect_end(void) {
    char more;
    if (in_read(&more, 1) != 0)
        applet_fail(EINVAL, "more input than was announced");
}

static void replace(struct writing *writing) {
    struct draft draft;
    int error = draft_open(writing->place.folder, writing->token, &draft);
    if (error != 0)
        refuse(error);
    mode_t mode = writing->has_mode ? writing->mode : writing->exists ? writing->status.st_mode & 0777u : 0644u;
    error = in_to_file(draft.fd, writing->length);
    if (error == 0 && fchmod(draft.fd, mode) != 0)
        error = errno;
    if (error != 0) {
        draft_drop(&draft, writing->place.folder, writing->token);
        refuse(error);
    }
    expect_end();
    if (writing->exists)
        lock_folder(writing->place.folder);
    if ((writing->flags & WRITE_UNCHANGED) != 0)
        check_unchanged(writing);
    error = draft_commit(&draft, &writing->place, writing->token, (writing->flags & WRITE_EXCLUSIVE) != 0);
    if (error != 0)
        refuse(error);
}

/* All or nothing, unless the sandbox itself ends in between. */
static void append_whole(int fd, const unsigned char *bytes, size_t count) {
    struct stat before;
    if (fstat(fd, &before) != 0)
        refuse(errno);
    for (size_t done = 0; done < count;) {
        ssize_t wrote = write(fd, bytes + done, count - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            int error = errno;
            if (ftruncate(fd, before.st_size) != 0)
                applet_fail(error, "a part was appended and could not be taken back");
            refuse(error);
        }
        done += (size_t)wrote;
    }
}

/* The same file grows, for whoever has it open. All the input is in memory before the first byte is appended. */
static void append(struct writing *writing) {
    int fd = -1;
    struct stat status;
    int error = place_open_file(writing->path, O_WRONLY | O_APPEND, &fd, &status);
    if (error != 0)
        refuse(error);
    if ((uint64_t)status.st_size > writing->most || writing->length > writing->most - (uint64_t)status.st_size)
        applet_fail(EFBIG, "the file would be larger than the bound");
    if (writing->length > SIZE_MAX - 1)
        refuse(EFBIG);
    unsigned char *bytes = malloc((size_t)writing->length + 1);
    if (bytes == NULL)
        refuse(ENOMEM);
    if (in_read(bytes, (size_t)writing->length) != writing->length)
        refuse(EPIPE);
    expect_end();
    if (writing->has_mode && fchmod(fd, writing->mode) != 0)
        refuse(errno);
    append_whole(fd, bytes, (size_t)writing->length);
}

void applet_write(char **argv) {
    struct writing writing = {
        .path = argv[1],
        .flags = applet_number(argv[2]),
        .length = applet_number(argv[4]),
        .most = applet_number(argv[5]),
        .token = argv[6],
        .identity = argv + 7,
        .has_mode = strcmp(argv[3], "-") != 0,
    };
    if (writing.has_mode)
        writing.mode = (mode_t)(applet_number(argv[3]) & 0777u);
    if (*writing.token == '\0' || strchr(writing.token, '/') != NULL)
        applet_fail(EINVAL, "the token is no name");
    if (writing.length > writing.most)
        applet_fail(EFBIG, "the file would be larger than the bound");
    if (writing.length > 65536)
        pipe_enlarge(STDIN_FILENO);
    look(&writing);
    if ((writing.flags & WRITE_APPEND) != 0 && writing.exists)
        append(&writing);
    else
        replace(&writing);
    out_end(0, 0); /* said at once: a kill from here on comes too late, and the host knows it */
}
