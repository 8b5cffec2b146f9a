/* Unix sockets through which a command may send descriptors, whose last close could sleep: untrusted.c. */
#ifndef SANDBOXKIT_UNTRUSTED_H
#define SANDBOXKIT_UNTRUSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Before the socket is connected or listened on; what a listener accepts inherits it. True when the kernel is too old: the
 * socket is open to descriptors, and the following need to know.
 */
bool untrusted_guard(int fd);

/* As read; EPROTO when there are descriptors, which stay where they are. */
ssize_t untrusted_read(int fd, void *bytes, size_t size, bool open);

/* As fd_close, sooner or later; for the other end at once. */
void untrusted_close(int *fd, bool open);

/* No such socket is to be made for now: too many wait for being closed. */
bool untrusted_full(void);

void untrusted_serve(int64_t now);
int64_t untrusted_next(void);

/* In a child, around closing what may be the last copy of such a socket. */
void untrusted_hurry(bool on);

/* Of a child that the agent has reaped, or found stopped. */
bool untrusted_is_closer(pid_t pid);
void untrusted_closer_gone(int status);

#endif
