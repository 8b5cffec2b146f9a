#include "applet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text.h"
#include "wire.h"

/*
 * unpack TOKEN FILE TOTAL: entries from standard input, in the form that `list` writes them, with paths relative to the
 * workspace; behind a regular file's come its `size` bytes. A head of kind 'Z' is the end: without one nothing more is
 * made, and it is an error. Each file and link appears in one step, as with `write`; folders may be there.
 */

struct unpacking {
    const char *token;
    uint64_t file_max;
    uint64_t bytes_left;
    char path[PATH_MAX];
    char link[PATH_MAX];
};

/* The last path is what the failure is about. */
static _Noreturn void refuse(const struct unpacking *unpacking, int error) {
    char line[400];
    struct text text = text_over(line, sizeof line);
    text_add_name(&text, unpacking->path);
    applet_fail(error, text.bytes);
}

static void read_whole(const struct unpacking *unpacking, void *bytes, size_t count) {
    if (in_read(bytes, count) != count)
        refuse(unpacking, EPIPE);
}

static void read_string(const struct unpacking *unpacking, char out[PATH_MAX], size_t length) {
    if (length >= PATH_MAX)
        refuse(unpacking, ENAMETOOLONG);
    read_whole(unpacking, out, length);
    out[length] = '\0';
    if (strlen(out) != length)
        refuse(unpacking, EINVAL);
}

static void make_file(struct unpacking *unpacking, mode_t mode, uint64_t size) {
    struct place place;
    struct stat status;
    struct draft draft;
    if (size > unpacking->file_max || size > unpacking->bytes_left)
        refuse(unpacking, EFBIG);
    unpacking->bytes_left -= size;
    int error = place_status(unpacking->path, true, &place, &status);
    if (error == 0 && !S_ISREG(status.st_mode))
        error = S_ISDIR(status.st_mode) ? EISDIR : ENXIO;
    else if (error == ENOENT)
        error = place_find(unpacking->path, true, &place);
    if (error == 0)
        error = draft_open(place.folder, unpacking->token, &draft);
    if (error != 0)
        refuse(unpacking, error);
    error = in_to_file(draft.fd, size);
    if (error == 0 && fchmod(draft.fd, mode & 0777u) != 0)
        error = errno;
    if (error != 0)
        draft_drop(&draft, place.folder, unpacking->token);
    else
        error = draft_commit(&draft, &place, unpacking->token, false);
    close(place.folder);
    if (error != 0)
        refuse(unpacking, error);
}

static void make_link(const struct unpacking *unpacking) {
    struct place place;
    int error = place_find(unpacking->path, false, &place);
    if (error == 0 && symlinkat(unpacking->link, place.folder, place.name) != 0)
        error = errno;
    if (error == EEXIST) {
        error = symlinkat(unpacking->link, place.folder, unpacking->token) == 0 ? 0 : errno;
        if (error == 0 && renameat(place.folder, unpacking->token, place.folder, place.name) != 0) {
            error = errno;
            unlinkat(place.folder, unpacking->token, 0);
        }
    }
    if (error != 0)
        refuse(unpacking, error);
    close(place.folder);
}

static void make_entry(struct unpacking *unpacking, unsigned char type, mode_t mode, uint64_t size) {
    int error = place_make_parents(unpacking->path);
    if (error == 0 && type == 'd')
        error = place_make_folder(unpacking->path, mode & 0777u, true);
    if (error != 0)
        refuse(unpacking, error);
    if (type == 'f')
        make_file(unpacking, mode, size);
    else if (type == 'l')
        make_link(unpacking);
    else if (type != 'd')
        refuse(unpacking, EINVAL);
}

void applet_unpack(char **argv) {
    static struct unpacking unpacking;
    unsigned char head[ENTRY_HEAD];
    unpacking.token = argv[1];
    unpacking.file_max = applet_number(argv[2]);
    unpacking.bytes_left = applet_number(argv[3]);
    pipe_enlarge(STDIN_FILENO);
    for (;;) {
        read_whole(&unpacking, head, sizeof head);
        if (head[0] == 'Z') {
            out_end(0, 0);
            return;
        }
        if (head[0] != 'E')
            refuse(&unpacking, EINVAL);
        size_t link_length = get_u16(head + 42);
        read_string(&unpacking, unpacking.path, get_u16(head + 40));
        read_string(&unpacking, unpacking.link, link_length);
        uint64_t size = (uint64_t)get_u32(head + 8) | (uint64_t)get_u32(head + 12) << 32;
        make_entry(&unpacking, head[1], (mode_t)get_u32(head + 4), size);
    }
}
