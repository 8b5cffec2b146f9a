#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

/*
 * page PATH OFFSET SKIP LINES MOST: from OFFSET on leaves SKIP lines out, then gives LINES lines, MOST bytes at most. A
 * page ends with a whole line if one fits, else within the line, between characters. Before the bytes: u64 size of the
 * file, u64 where the page begins, u64 lines left out, u64 line ends in the page, u64 bytes, u8 whether the page
 * reaches the end, 7 zero.
 */

static ssize_t read_at(int fd, unsigned char *bytes, size_t count, uint64_t offset) {
    ssize_t got;
    do
        got = pread(fd, bytes, count, (off_t)offset);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        applet_fail(errno, strerror(errno));
    return got;
}

/* Returns how many lines were left out: fewer than asked at the end of the file. */
static uint64_t skip_lines(int fd, uint64_t *offset, uint64_t lines) {
    static unsigned char block[BLOCK];
    uint64_t skipped = 0;
    while (skipped < lines) {
        size_t got = (size_t)read_at(fd, block, sizeof block, *offset);
        if (got == 0)
            break;
        size_t at = 0;
        while (at < got && skipped < lines) {
            const unsigned char *end = memchr(block + at, '\n', got - at);
            at = end == NULL ? got : (size_t)(end + 1 - block);
            skipped += end != NULL;
        }
        *offset += at;
    }
    return skipped;
}

/* How many bytes at the end begin a UTF-8 character that is not whole. */
static size_t split_character(const unsigned char *bytes, size_t count) {
    for (size_t back = 1; back <= 3 && back <= count; back++) {
        unsigned char byte = bytes[count - back];
        if (byte < 0x80)
            return 0;
        if (byte < 0xc0)
            continue;
        size_t need = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf8 ? 4 : 1;
        return back < need ? back : 0;
    }
    return 0;
}

/* Cuts behind the last of `lines` lines; returns how many line ends are left. */
static uint64_t cut_lines(const unsigned char *bytes, size_t *count, uint64_t lines, bool more) {
    size_t at = 0;
    uint64_t ends = 0;
    while (at < *count && ends < lines) {
        const unsigned char *end = memchr(bytes + at, '\n', *count - at);
        if (end == NULL)
            break;
        at = (size_t)(end + 1 - bytes);
        ends++;
    }
    if (ends == lines || (more && ends > 0))
        *count = at;
    else if (more && *count > split_character(bytes, *count))
        *count -= split_character(bytes, *count);
    return ends;
}

void applet_page(char **argv) {
    struct stat status;
    int fd = -1;
    uint64_t offset = applet_number(argv[2]);
    uint64_t lines = applet_number(argv[4]);
    uint64_t most = applet_number(argv[5]);
    int error = place_open_file(argv[1], O_RDONLY, &fd, &status);
    if (error != 0)
        applet_fail(error, strerror(error));
    if (offset > INT64_MAX || most > 1u << 30)
        applet_fail(EINVAL, "the offset or the bound is out of range");
    uint64_t skipped = skip_lines(fd, &offset, applet_number(argv[3]));
    unsigned char *page = malloc((size_t)most + 1);
    if (page == NULL)
        applet_fail(ENOMEM, strerror(ENOMEM));
    size_t got = 0;
    for (ssize_t part = 1; part > 0 && got < most + 1; got += (size_t)part)
        part = read_at(fd, page + got, (size_t)most + 1 - got, offset + got);
    size_t count = got > most ? (size_t)most : got;
    uint64_t ends = cut_lines(page, &count, lines, got > most);
    unsigned char head[48] = {0};
    unsigned char *at = put_u64(head, (uint64_t)status.st_size);
    at = put_u64(at, offset);
    at = put_u64(at, skipped);
    at = put_u64(at, ends);
    at = put_u64(at, count);
    put_u8(at, count == got && got <= most);
    out_add(head, sizeof head);
    out_add(page, count);
}
