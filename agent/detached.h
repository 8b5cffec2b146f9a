/*
 * A session without an owner's stream: PID 1 listens on an abstract unix socket, and the agent's program in its connect
 * mode, run by the engine's exec, bridges one host at a time to it. PROTOCOL.md section 7.
 */
#ifndef SANDBOXKIT_DETACHED_H
#define SANDBOXKIT_DETACHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DETACHED_NAME "sandboxkit-agent" /* abstract: behind a NUL, in the container's network namespace */
#define TOKEN_VARIABLE "SANDBOXKIT_TOKEN"
#define TOKEN_MAX 64u
#define GREETING_SIZE (8u + TOKEN_MAX) /* magic, flags, three zero bytes, the token filled up with zero bytes */
#define GREETING_MAGIC 0x43584253u     /* "SBXC" */
#define GREETING_TAKEOVER 1u

struct detached {
    bool on;
    bool attached;  /* a host is on descriptors 0 and 1; always in a session that is not detached */
    bool takeover;
    bool untrusted; /* descriptors can come from who connects: untrusted.c */
    bool active;    /* the host sent something since the last look */
    int listener;
    int waiting;    /* a connection that has not been greeted, or waits for the one before it to be wound up; or -1 */
    uint32_t got;
    int64_t patience_us; /* until when */
    int64_t ttl_us;      /* 0: none */
    int64_t idle_us;
    int64_t ends_us;
    int64_t active_us;   /* when the session was last seen active */
    unsigned char greeting[GREETING_SIZE];
    char token[TOKEN_MAX];
};

struct agent;

/* Takes the token out of the environment, where every command would find it. */
void detached_take_token(struct agent *agent);

/* False with errno: no listener. */
bool detached_open(struct agent *agent);

/* The host is gone: the end of a session that is owned. A detached one ends what the host had running, and waits. */
void detached_host_gone(struct agent *agent);

/* Moves `fd` to descriptors 0 and 1, which are always open: on the host, or with -1 on nothing. */
void detached_put_host(int fd);

/* What to poll for; -1 for nothing. */
int detached_listener(const struct agent *agent);
int detached_waiting(const struct agent *agent);
void detached_serve(struct agent *agent, bool listener, bool waiting);

/* Time to live and idle timeout, of detached sessions and others. */
void lifetime_configure(struct agent *agent, const char *settings, size_t size);
void lifetime_begin(struct agent *agent, int64_t now);
void lifetime_check(struct agent *agent, int64_t now);
int64_t lifetime_next(const struct agent *agent);

/* connect.c: the program's other mode. */
_Noreturn void connect_run(int argc, char **argv);

#endif
