#include "applet.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "text.h"
#include "wire.h"

/*
 * listening PORT FLAGS PID: the TCP sockets in LISTEN of this network namespace, as /proc/net/tcp and tcp6 have them,
 * at most 1024. With a PORT that is not 0 those of that port alone, and not before there is one; with a PID that is not
 * 0 also when that process has ended, whatever there is then. Nothing else tells of a LISTEN, so it is polled.
 */

#define LISTENERS 1024u
#define LISTEN_SIZE 28u
#define POLL_MS 5
#define TCP_LISTEN 0x0au

enum listening_flag {
    LISTENING_PIDS = 1,         /* look for the processes that hold the sockets */
    LISTENING_NOT_LOOPBACK = 2, /* one on a loopback address does not count */
};

struct listener {
    unsigned char address[16]; /* in network order; IPv4 in the first four */
    uint64_t inode;
    uint32_t uid;
    uint32_t pid;
    uint16_t port;
    uint8_t family; /* 4 or 6 */
};

struct looking {
    struct listener found[LISTENERS];
    unsigned count;
    bool cut;
    uint16_t port;
    uint64_t flags;
};

static bool is_loopback(const struct listener *one) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const unsigned char loopback6[16] = {[15] = 1};
    if (one->family == 4)
        return one->address[0] == 127;
    if (memcmp(one->address, mapped, sizeof mapped) == 0)
        return one->address[12] == 127;
    return memcmp(one->address, loopback6, sizeof loopback6) == 0;
}

/* `count` hexadecimal digits, upper case as the kernel writes them. */
static bool hex(const char *at, size_t count, uint32_t *out) {
    *out = 0;
    for (size_t i = 0; i < count; i++) {
        char c = at[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F')))
            return false;
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'A' + 10);
    }
    return true;
}

/* Behind `count` more fields, or at the end of the line. */
static const char *field(const char *at, unsigned count) {
    at += strspn(at, " ");
    while (count-- > 0) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return at;
}

/* "sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode ..." */
static bool parse_line(const char *line, uint8_t family, struct listener *out) {
    const char *local = field(line, 1);
    const char *state = field(local, 2);
    const char *uid = field(state, 4);
    size_t digits = family == 4 ? 8 : 32;
    uint32_t word = 0;
    *out = (struct listener){.family = family};
    if (strcspn(local, " ") != digits + 5 || !hex(state, 2, &word) || word != TCP_LISTEN)
        return false;
    for (size_t i = 0; i < digits / 8; i++) {
        if (!hex(local + 8 * i, 8, &word))
            return false;
        memcpy(out->address + 4 * i, &word, 4); /* the kernel prints words of its own order */
    }
    if (!hex(local + digits + 1, 4, &word))
        return false;
    out->port = (uint16_t)word;
    out->uid = (uint32_t)parse_u64(uid, 0);
    out->inode = parse_u64(field(uid, 2), 0);
    return true;
}

static void take_line(struct looking *looking, const char *line, uint8_t family) {
    struct listener one;
    if (!parse_line(line, family, &one))
        return;
    if (looking->port != 0 && one.port != looking->port)
        return;
    if ((looking->flags & LISTENING_NOT_LOOPBACK) != 0 && is_loopback(&one))
        return;
    if (looking->count == LISTENERS)
        looking->cut = true;
    else
        looking->found[looking->count++] = one;
}

static void read_table(struct looking *looking, const char *path, uint8_t family) {
    static char bytes[32768];
    size_t held = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* a kernel without IPv6 */
    for (;;) {
        ssize_t got = read(fd, bytes + held, sizeof bytes - 1 - held);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        held += (size_t)got;
        size_t done = 0;
        char *end;
        while ((end = memchr(bytes + done, '\n', held - done)) != NULL) {
            *end = '\0';
            take_line(looking, bytes + done, family);
            done = (size_t)(end + 1 - bytes);
        }
        held -= done;
        memmove(bytes, bytes + done, held);
        if (held == sizeof bytes - 1)
            held = 0; /* no line is so long */
    }
    close(fd);
}

static void look(struct looking *looking) {
    looking->count = 0;
    looking->cut = false;
    read_table(looking, "/proc/net/tcp", 4);
    read_table(looking, "/proc/net/tcp6", 6);
}

/* Descriptors of a process that are sockets; those of other users cannot be seen. */
static void find_sockets(struct looking *looking, int proc, const char *pid) {
    char path[64];
    struct text text = text_over(path, sizeof path);
    text_add(&text, pid);
    text_add(&text, "/fd");
    int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char target[64];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        if (length < 9 || memcmp(target, "socket:[", 8) != 0)
            continue;
        target[length] = '\0';
        uint64_t inode = parse_u64(target + 8, 0);
        for (unsigned i = 0; i < looking->count; i++)
            if (looking->found[i].inode == inode && looking->found[i].pid == 0)
                looking->found[i].pid = (uint32_t)parse_u64(pid, 0);
    }
    closedir(folder);
}

static void find_processes(struct looking *looking) {
    DIR *proc = looking->count == 0 ? NULL : opendir("/proc");
    if (proc == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            find_sockets(looking, dirfd(proc), entry->d_name);
    closedir(proc);
}

static void answer(struct looking *looking, bool ended) {
    if ((looking->flags & LISTENING_PIDS) != 0)
        find_processes(looking);
    for (unsigned i = 0; i < looking->count; i++) {
        const struct listener *one = &looking->found[i];
        unsigned char record[LISTEN_SIZE];
        unsigned char *at = put_u8(record, 'L');
        at = put_u8(at, one->family);
        at = put_u16(at, one->port);
        at = put_u32(at, one->uid);
        at = put_u32(at, one->pid);
        memcpy(at, one->address, sizeof one->address);
        out_add(record, sizeof record);
    }
    out_end((uint8_t)((looking->cut ? 1 : 0) | (ended ? 2 : 0)), 0);
}

/* Waits a moment; true when the process has ended. Without a pidfd (no PID, or an old kernel) by its number. */
static bool ended_meanwhile(int pidfd, pid_t pid) {
    struct pollfd one = {.fd = pidfd, .events = POLLIN};
    bool ended = poll(&one, 1, POLL_MS) > 0;
    return pidfd >= 0 ? ended : pid != 0 && kill(pid, 0) < 0 && errno == ESRCH;
}

void applet_listening(char **argv) {
    static struct looking looking;
    uint64_t port = applet_number(argv[1]);
    uint64_t pid = applet_number(argv[3]);
    looking.flags = applet_number(argv[2]);
    if (port > 65535 || pid > 0x7fffffff)
        applet_fail(EINVAL, "a port or process is out of range");
    looking.port = (uint16_t)port;
    int pidfd = pid == 0 ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    bool ended = pid != 0 && pidfd < 0 && errno == ESRCH;
    for (;;) {
        look(&looking); /* after the process was looked at: what it did before its end is seen */
        if (port == 0 || looking.count > 0 || ended)
            break;
        ended = ended_meanwhile(pidfd, (pid_t)pid);
    }
    answer(&looking, ended);
}
