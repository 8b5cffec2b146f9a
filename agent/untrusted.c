#include "untrusted.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "agent.h"

/*
 * Unix sockets at whose other end the sandbox is. A command can send descriptors through them, and the last close of a
 * descriptor sleeps for as long as the command likes: a TCP connection with SO_LINGER that nobody reads will do. That
 * close is done by whoever drops the message: by a read that does not ask for its descriptors, or by closing the socket
 * while the message is unread. It must never be the agent.
 *
 * Since Linux 6.16 a socket can refuse descriptors, and the sender gets EPERM. On a kernel before that:
 *
 * - Before anything is read it is looked at with MSG_PEEK, which drops nothing and tells by MSG_CTRUNC that descriptors
 *   are with it. That connection is over. (To receive them is no way: when the table of descriptors is full, they are
 *   dropped.)
 * - A socket with something unread is closed by another process, the closer, which shares the table of descriptors. So
 *   the agent never closes it at all. A process with a copy would not do: a command may kill it, which makes the agent's
 *   close the last one after all.
 * - A supervisor begins with copies of everything. It closes them as the closer does: any may be the last.
 */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define LEFT_MAX (2u * TUNNELS + 1u) /* below half of it when a socket is made, so that there is room for every one */
#define PAUSE_US 50000 /* before a closer, and after it: for many at a time */
#define TICK_US 200

struct unread {
    int fd;
    ino_t inode;
};

static struct {
    bool possible; /* the kernel is too old */
    unsigned count;
    unsigned given; /* the first of them are the closer's */
    pid_t closer;   /* or 0 */
    int64_t next_us;
    struct unread files[LEFT_MAX];
} left;

bool untrusted_guard(int fd) {
    const int off = 0;
    const int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0)
        return false;
    left.possible = true;
    /* Else a read skips a byte sent with MSG_OOB, and drops it with its descriptors; MSG_PEEK would not show them. */
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
    return true;
}

/* What was looked at is what is read, since nobody else reads here; so much and no more. */
ssize_t untrusted_read(int fd, void *bytes, size_t size, bool open) {
    if (!open)
        return read(fd, bytes, size);
    struct iovec whole = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &whole, .msg_iovlen = 1};
    ssize_t seen = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
    if (seen <= 0)
        return seen;
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        errno = EPROTO;
        return -1;
    }
    return read(fd, bytes, (size_t)seen);
}

void untrusted_close(int *fd, bool open) {
    int unread = 0;
    struct stat facts = {0};
    if (*fd >= 0 && open) {
        shutdown(*fd, SHUT_RDWR); /* first, so that nothing arrives behind the look */
        if (ioctl(*fd, FIONREAD, &unread) != 0)
            unread = 1;
    }
    if (unread == 0) {
        fd_close(fd);
        return;
    }
    fstat(*fd, &facts);
    if (left.count == 0)
        left.next_us = now_us() + PAUSE_US;
    left.files[left.count++] = (struct unread){.fd = *fd, .inode = facts.st_ino};
    *fd = -1;
}

bool untrusted_full(void) {
    return left.count >= LEFT_MAX / 2;
}

static void tick(int number) {
    (void)number;
}

/* A signal ends the sleep of a close. They come again and again, since one may come before the sleep begins. */
void untrusted_hurry(bool on) {
    const suseconds_t every = on ? TICK_US : 0;
    const struct itimerval timer = {.it_interval = {.tv_usec = every}, .it_value = {.tv_usec = every}};
    const struct sigaction action = {.sa_handler = on ? tick : SIG_DFL};
    sigset_t alarm;
    if (!left.possible)
        return;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (!on) {
        setitimer(ITIMER_REAL, &timer, NULL);
        sigprocmask(SIG_BLOCK, &alarm, NULL); /* the last one was handled before this returned */
    }
    sigaction(SIGALRM, &action, NULL);
    if (on) {
        sigprocmask(SIG_UNBLOCK, &alarm, NULL);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
}

static _Noreturn void close_given(void) {
    untrusted_hurry(true);
    for (unsigned i = 0; i < left.count; i++)
        close(left.files[i].fd);
    _exit(0);
}

/* One at a time: so a flood of such connections costs no more than one process. */
void untrusted_serve(int64_t now) {
    if (left.count == 0 || left.closer != 0 || left.next_us > now)
        return;
    long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        close_given();
    left.next_us = now + PAUSE_US;
    if (pid < 0)
        return;
    left.closer = (pid_t)pid;
    left.given = left.count;
}

int64_t untrusted_next(void) {
    return left.count > 0 && left.closer == 0 ? left.next_us : NEVER;
}

/* A closer that was killed closed some of them. The number of such a one may be that of something else by now. */
static bool is_open(const struct unread *file) {
    struct stat facts;
    return fstat(file->fd, &facts) == 0 && S_ISSOCK(facts.st_mode) && facts.st_ino == file->inode;
}

bool untrusted_is_closer(pid_t pid) {
    return left.closer == pid;
}

void untrusted_closer_gone(int status) {
    unsigned kept = 0;
    for (unsigned i = 0; i < left.count; i++)
        if (i >= left.given || (status != 0 && is_open(&left.files[i])))
            left.files[kept++] = left.files[i];
    left.count = kept;
    left.closer = 0;
    left.next_us = now_us() + PAUSE_US;
}
