#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* read PATH OFFSET LENGTH|- MOST: an identity, then the bytes. Without a length the whole file, which may have MOST. */

static ssize_t move_some(int fd, uint64_t left) {
    static unsigned char block[BLOCK];
    static bool copied;
    size_t want = left < 1048576u ? (size_t)left : 1048576u;
    if (!copied) {
        ssize_t sent = sendfile(STDOUT_FILENO, fd, NULL, want);
        if (sent >= 0 || (errno != EINVAL && errno != ENOSYS))
            return sent;
        copied = true; /* this file system cannot: by hand, from where the descriptor stands */
    }
    ssize_t got = read(fd, block, want < BLOCK ? want : BLOCK);
    if (got > 0) {
        out_add(block, (size_t)got);
        out_flush();
    }
    return got;
}

void applet_read(char **argv) {
    struct stat status;
    int fd = -1;
    bool whole = strcmp(argv[3], "-") == 0;
    uint64_t offset = applet_number(argv[2]);
    uint64_t most = applet_number(argv[4]);
    uint64_t left = whole ? most : applet_number(argv[3]);
    int error = place_open_file(argv[1], O_RDONLY, &fd, &status);
    if (error != 0)
        applet_fail(error, strerror(error));
    if (whole && (uint64_t)status.st_size > most)
        applet_fail(EFBIG, "the file is larger than the bound");
    if (offset > INT64_MAX || lseek(fd, (off_t)offset, SEEK_SET) < 0)
        applet_fail(EINVAL, "the offset is out of range");
    if (left > 65536)
        pipe_enlarge(STDOUT_FILENO);
    out_identity(&status);
    out_flush();
    while (left > 0) {
        ssize_t moved = move_some(fd, left);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            applet_fail(errno, strerror(errno));
        if (moved == 0)
            return;
        left -= (uint64_t)moved;
    }
    /* It may have grown since its size was looked at. */
    char more;
    if (whole && read(fd, &more, 1) > 0)
        applet_fail(EFBIG, "the file grew over the bound while it was read");
}
