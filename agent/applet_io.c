#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

/* Standard input and output of an applet, and the records that several of them write. */

#define OUT_SIZE 65536u

static unsigned char out_bytes[OUT_SIZE];
static size_t out_length;

/* Fewer turns between the processes. The kernel may refuse: a user has only so many pages for pipes. */
void pipe_enlarge(int fd) {
    if (fcntl(fd, F_SETPIPE_SZ, 1048576) < 0)
        fcntl(fd, F_SETPIPE_SZ, 262144);
}

static void write_whole(const unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t wrote = write(STDOUT_FILENO, bytes, count);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            _exit(1); /* the agent is gone: nobody is left to tell */
        bytes += wrote;
        count -= (size_t)wrote;
    }
}

void out_flush(void) {
    write_whole(out_bytes, out_length);
    out_length = 0;
}

void out_add(const void *bytes, size_t count) {
    if (out_length + count > OUT_SIZE)
        out_flush();
    if (count > OUT_SIZE) {
        write_whole(bytes, count);
        return;
    }
    memcpy(out_bytes + out_length, bytes, count);
    out_length += count;
}

int64_t time_ns(const struct timespec *time) {
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static char type_letter(mode_t mode) {
    if (S_ISREG(mode))
        return 'f';
    if (S_ISDIR(mode))
        return 'd';
    if (S_ISLNK(mode))
        return 'l';
    if (S_ISFIFO(mode))
        return 'p';
    if (S_ISSOCK(mode))
        return 's';
    return S_ISCHR(mode) ? 'c' : 'b';
}

/* A `status` of NULL is something that is there and cannot be opened. */
void out_entry(const struct stat *status, const char *path, const char *link) {
    const struct stat none = {0};
    unsigned char head[ENTRY_HEAD];
    const struct stat *from = status == NULL ? &none : status;
    size_t path_length = strlen(path);
    size_t link_length = strlen(link);
    unsigned char *at = put_u8(head, 'E');
    at = put_u8(at, (uint8_t)(status == NULL ? '?' : type_letter(from->st_mode)));
    at = put_u16(at, 0);
    at = put_u32(at, (uint32_t)(from->st_mode & 07777u));
    at = put_u64(at, (uint64_t)from->st_size);
    at = put_u64(at, (uint64_t)time_ns(&from->st_mtim));
    at = put_u64(at, (uint64_t)from->st_ino);
    at = put_u32(at, (uint32_t)from->st_uid);
    at = put_u32(at, (uint32_t)from->st_gid);
    at = put_u16(at, (uint16_t)path_length);
    put_u16(at, (uint16_t)link_length);
    out_add(head, sizeof head);
    out_add(path, path_length);
    out_add(link, link_length);
}

void out_end(uint8_t cut, uint32_t skipped) {
    unsigned char record[8];
    put_u32(put_u16(put_u8(put_u8(record, 'Z'), cut), 0), skipped);
    out_add(record, sizeof record);
}

void out_identity(const struct stat *status) {
    unsigned char record[IDENTITY_SIZE];
    unsigned char *at = put_u64(record, (uint64_t)status->st_dev);
    at = put_u64(at, (uint64_t)status->st_ino);
    at = put_u64(at, (uint64_t)status->st_size);
    at = put_u64(at, (uint64_t)time_ns(&status->st_mtim));
    at = put_u64(at, (uint64_t)time_ns(&status->st_ctim));
    at = put_u32(at, (uint32_t)(status->st_mode & 07777u));
    put_u32(at, 0);
    out_add(record, sizeof record);
}

/* How much came before end of file. */
size_t in_read(void *bytes, size_t count) {
    size_t done = 0;
    while (done < count) {
        ssize_t got = read(STDIN_FILENO, (unsigned char *)bytes + done, count - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    return done;
}

/* How much was copied, or minus an errno. */
static ssize_t copy_block(int fd, size_t count) {
    static unsigned char block[BLOCK];
    size_t got = in_read(block, count < BLOCK ? count : BLOCK);
    if (got == 0)
        return -EPIPE;
    for (size_t done = 0; done < got;) {
        ssize_t wrote = write(fd, block + done, got - done);
        if (wrote < 0 && errno != EINTR)
            return -errno;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return (ssize_t)got;
}

int in_to_file(int fd, uint64_t count) {
    bool spliced = true; /* until a file system says it cannot */
    while (count > 0) {
        size_t want = count < 1048576u ? (size_t)count : 1048576u;
        ssize_t moved = spliced ? splice(STDIN_FILENO, NULL, fd, NULL, want, 0) : copy_block(fd, want);
        if (spliced && moved < 0 && errno == EINTR)
            continue;
        if (spliced && moved < 0 && errno == EINVAL) {
            spliced = false;
            continue;
        }
        if (moved <= 0)
            return moved == 0 ? EPIPE : spliced ? errno : (int)-moved;
        count -= (uint64_t)moved;
    }
    return 0;
}
