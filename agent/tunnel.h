/*
 * Tunnels: connections of the sandbox whose other end is the host, and listeners for them. PROTOCOL.md section 9.
 *
 *   tunnel.c       the table, bytes both ways, ends      tunnel_open.c  connecting, listening, accepting
 *   tunnel_wire.c  what the host asks for, parsed
 */
#ifndef SANDBOXKIT_TUNNEL_H
#define SANDBOXKIT_TUNNEL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define TUNNELS 512u           /* listeners included */
#define ACCEPTED_MAX 224u      /* of them connections from inside, so that those cannot keep the host from opening any */
#define ACCEPTED_WAITING 64u   /* of those, ones that the host has not taken yet */
#define ACCEPTED_FIRST 0x80000000u
#define TUNNEL_INPUT 524288u   /* PROTOCOL.md 9.3: the host's first credit, so the most that can wait for a reader */

enum tunnel_state {
    TUNNEL_FREE,
    TUNNEL_CONNECTING,
    TUNNEL_OPEN,
    TUNNEL_LISTENING,
    TUNNEL_CLOSING, /* its last frame waits to be written */
};

/* Where to connect to. */
struct target {
    uint32_t window;
    uint16_t port; /* 0: a unix socket */
    bool lend;     /* the host would rather have the connection itself */
    socklen_t size;
    struct sockaddr_un name;
};

struct tunnel {
    uint8_t state;
    bool accepted; /* from a listener: the number is the agent's */
    bool waiting;  /* then: the host has not taken it yet */
    bool opening;  /* OPENED or ACCEPTED is to be sent */
    bool opened;   /* and was */
    bool second;   /* the address that is tried is ::1 */
    bool ended;    /* the host sent EOF */
    bool shut;     /* nothing more will be written: it was all, or nobody reads it */
    bool read_all; /* the peer sends no more */
    bool say_eof;  /* which is to be sent */
    bool grant;    /* send a WINDOW at the next chance */
    bool untrusted; /* descriptors can come through it: untrusted.c */
    uint16_t index;
    uint16_t active_at;
    int16_t poll_at;
    uint16_t port;
    int error; /* of the last frame */
    int fd;
    uint32_t id;
    uint32_t listener;
    uint32_t credit;
    uint32_t offset;
    uint32_t length;      /* of what waits to be written */
    uint32_t touched;     /* of the buffer: so much of it is memory */
    uint32_t outstanding; /* sent by the host and not granted back */
    uint32_t owed;        /* of that, consumed */
    int64_t retry_us;     /* a unix socket whose backlog is full is tried again then; or NEVER */
    int64_t patience_us;  /* but not after that */
    struct target target;
};

struct tunnels {
    unsigned char *buffers; /* TUNNEL_INPUT for each */
    uint16_t active_count;
    uint16_t free_count;
    uint16_t accepted;
    uint16_t waiting;
    uint16_t turn;
    uint32_t next_accepted; /* number: given as it is told, so that the numbers are told in rising order */
    int64_t accept_us;      /* no descriptor was left: not before then */
    uint16_t free_list[TUNNELS];
    struct tunnel *active[TUNNELS];
    struct tunnel table[TUNNELS];
};

struct agent;
struct frame;

/* tunnel_wire.c: pure. False with the reason when the payload is none. */
bool target_parse(const unsigned char *payload, size_t size, struct target *out, const char **why);
bool listen_parse(const unsigned char *payload, size_t size, uint16_t *port, const char **why);

/* tunnel_open.c */
void tunnel_connect(struct agent *agent, uint32_t id, const unsigned char *payload, size_t size);
void tunnel_listen(struct agent *agent, uint32_t id, const unsigned char *payload, size_t size);
void tunnel_connecting(struct agent *agent, struct tunnel *tunnel);
void tunnel_accept(struct agent *agent, const struct tunnel *listener);
bool tunnel_may_accept(const struct agent *agent);

/* tunnel.c */
void tunnels_open(struct agent *agent);
struct tunnel *tunnel_take(struct agent *agent, uint32_t id);
struct tunnel *tunnel_find(struct agent *agent, uint32_t id);
void tunnel_end(struct tunnel *tunnel, int error);
/* Writes what waits in its buffer, as far as that goes. */
void tunnel_drain(struct agent *agent, struct tunnel *tunnel);
void tunnel_taken(struct agent *agent, const struct frame *frame);
void tunnel_act(struct agent *agent, struct tunnel *tunnel, const struct frame *frame, const unsigned char *payload);
short tunnel_events(struct agent *agent, const struct tunnel *tunnel);
void tunnel_serve(struct agent *agent, struct tunnel *tunnel, short events);
void tunnels_reply(struct agent *agent);
void tunnels_drop(struct agent *agent);
int64_t tunnels_next(const struct agent *agent);

#endif
