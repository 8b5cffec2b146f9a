#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

/*
 * pack PATH FILE TOTAL ENTRIES EXCLUDE...: everything below the folder. First 'H', 7 zero bytes, u64 bytes of all files, u64
 * entries; then each entry, behind a regular file's its content in blocks of u32 length and bytes, ended by a length of
 * 0; at last the end record. Larger files than FILE, more bytes than TOTAL or more entries than ENTRIES: EFBIG before the
 * first byte, or on the way when they come to be.
 */

struct packing {
    uint64_t file_max;
    uint64_t bytes_left;
    uint64_t entries_left;
    char **excludes;
    int error;
    uint64_t bytes;
    uint64_t entries;
};

static enum tree_step count_one(void *context, const struct tree_entry *entry) {
    struct packing *packing = context;
    if (glob_match_any(packing->excludes, entry->path))
        return TREE_NEXT;
    uint64_t size = S_ISREG(entry->status->st_mode) ? (uint64_t)entry->status->st_size : 0;
    if (size > packing->file_max || size > packing->bytes_left - packing->bytes ||
        packing->entries == packing->entries_left) {
        packing->error = EFBIG;
        return TREE_STOP;
    }
    packing->bytes += size;
    packing->entries++;
    return TREE_ENTER;
}

/* False when there is more than the bounds allow, or the file cannot be read. */
static bool pack_content(struct packing *packing, int fd) {
    static unsigned char block[4 + BLOCK];
    uint64_t size = 0;
    for (;;) {
        ssize_t got = read(fd, block + 4, BLOCK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            packing->error = errno;
            return false;
        }
        size += (uint64_t)got;
        if (size > packing->file_max || (uint64_t)got > packing->bytes_left) {
            packing->error = EFBIG;
            return false;
        }
        packing->bytes_left -= (uint64_t)got;
        put_u32(block, (uint32_t)got);
        out_add(block, 4 + (size_t)got);
        if (got == 0)
            return true;
    }
}

static enum tree_step pack_one(void *context, const struct tree_entry *entry) {
    struct packing *packing = context;
    char link[PATH_MAX] = "";
    struct stat status = *entry->status;
    if (glob_match_any(packing->excludes, entry->path))
        return TREE_NEXT;
    if (packing->entries_left == 0) {
        packing->error = EFBIG;
        return TREE_STOP;
    }
    packing->entries_left--;
    if (!S_ISREG(status.st_mode)) {
        if (S_ISLNK(status.st_mode))
            link_target(entry->folder, entry->name, link);
        out_entry(&status, entry->path, link);
        return TREE_ENTER;
    }
    int fd = openat(entry->folder, entry->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool there = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    out_entry(there ? &status : NULL, entry->path, "");
    bool on = !there || pack_content(packing, fd);
    if (fd >= 0)
        close(fd);
    return on ? TREE_NEXT : TREE_STOP;
}

static void visit(const char *path, struct tree_visitor *visitor, const struct packing *packing) {
    int fd = -1;
    int error = place_open_folder(path, &fd);
    if (error == 0)
        error = tree_visit(fd, visitor);
    if (error == 0)
        error = packing->error;
    if (error == 0)
        return;
    out_flush();
    applet_fail(error, error == EFBIG ? "more than the bounds allow" : strerror(error));
}

void applet_pack(char **argv) {
    struct packing packing = {
        .file_max = applet_number(argv[2]),
        .bytes_left = applet_number(argv[3]),
        .entries_left = applet_number(argv[4]),
        .excludes = argv + 5,
    };
    struct tree_visitor counting = {.context = &packing, .visit = count_one};
    struct tree_visitor visitor = {.context = &packing, .visit = pack_one};
    unsigned char head[24] = {'H'};
    pipe_enlarge(STDOUT_FILENO);
    visit(argv[1], &counting, &packing);
    put_u64(put_u64(head + 8, packing.bytes), packing.entries);
    out_add(head, sizeof head);
    visit(argv[1], &visitor, &packing);
    out_end(0, visitor.skipped);
}
