#include <errno.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "agent.h"

#define RETRY_US 2000
#define PATIENCE_US 10000000
#define BACKLOG 128
#define ACCEPT_TURN 16u
#define SCARCE_US 100000

static void set_nodelay(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a unix socket has none */
}

/* -1 with errno. */
static int connect_to(int fd, const struct tunnel *tunnel) {
    const struct target *target = &tunnel->target;
    if (target->port == 0)
        return connect(fd, (const struct sockaddr *)&target->name, target->size);
    if (tunnel->second) {
        struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(target->port)};
        at.sin6_addr = in6addr_loopback;
        return connect(fd, (const struct sockaddr *)&at, sizeof at);
    }
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(target->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return connect(fd, (const struct sockaddr *)&at, sizeof at);
}

static void connected(struct agent *agent, struct tunnel *tunnel) {
    tunnel->state = TUNNEL_OPEN;
    tunnel->opening = true;
    tunnel->error = 0;
    tunnel_drain(agent, tunnel);
}

static void not_connected(struct agent *agent, struct tunnel *tunnel, int error);

/* What the address that is tried answers, once it does. */
static void try_address(struct agent *agent, struct tunnel *tunnel) {
    int family = tunnel->target.port == 0 ? AF_UNIX : tunnel->second ? AF_INET6 : AF_INET;
    fd_close(&tunnel->fd);
    tunnel->retry_us = NEVER;
    if (family == AF_UNIX && untrusted_full())
        errno = EMFILE;
    else
        tunnel->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (tunnel->fd < 0) {
        not_connected(agent, tunnel, errno);
        return;
    }
    note_highest(agent, tunnel->fd);
    tunnel->untrusted = family == AF_UNIX && untrusted_guard(tunnel->fd);
    set_nodelay(tunnel->fd);
    if (connect_to(tunnel->fd, tunnel) == 0)
        connected(agent, tunnel);
    else if (errno == EAGAIN && now_us() < tunnel->patience_us)
        tunnel->retry_us = now_us() + RETRY_US;
    else if (errno != EINPROGRESS)
        not_connected(agent, tunnel, errno);
}

/* Servers listen on 127.0.0.1, on ::1 or on both. When neither answers, the first one's reason counts. */
static void not_connected(struct agent *agent, struct tunnel *tunnel, int error) {
    if (tunnel->target.port == 0 || tunnel->second) {
        tunnel_end(tunnel, tunnel->second ? tunnel->error : error);
        return;
    }
    tunnel->error = error;
    tunnel->second = true;
    try_address(agent, tunnel);
}

void tunnel_connecting(struct agent *agent, struct tunnel *tunnel) {
    int error = 0;
    socklen_t size = sizeof error;
    if (tunnel->retry_us != NEVER) {
        if (tunnel->retry_us <= now_us())
            try_address(agent, tunnel);
        return;
    }
    if (getsockopt(tunnel->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error == 0)
        connected(agent, tunnel);
    else
        not_connected(agent, tunnel, error);
}

static struct tunnel *take_or_refuse(struct agent *agent, uint32_t id) {
    struct tunnel *tunnel = tunnel_take(agent, id);
    if (tunnel == NULL)
        reply_refuse(agent, id, ERROR_BUSY, 0, "The agent's table of tunnels is full.");
    return tunnel;
}

void tunnel_connect(struct agent *agent, uint32_t id, const unsigned char *payload, size_t size) {
    struct target target;
    const char *why = NULL;
    if (!target_parse(payload, size, &target, &why)) {
        reply_refuse(agent, id, ERROR_INVALID, 0, why);
        return;
    }
    struct tunnel *tunnel = take_or_refuse(agent, id);
    if (tunnel == NULL)
        return;
    tunnel->state = TUNNEL_CONNECTING;
    tunnel->target = target;
    tunnel->credit = target.window;
    tunnel->patience_us = now_us() + PATIENCE_US;
    try_address(agent, tunnel);
}

/* -1 with errno, and nothing open. */
static int listener(struct agent *agent, uint16_t *port) {
    const int on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    note_highest(agent, fd);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(at.sin_port);
    return fd;
}

void tunnel_listen(struct agent *agent, uint32_t id, const unsigned char *payload, size_t size) {
    uint16_t port = 0;
    const char *why = NULL;
    if (!listen_parse(payload, size, &port, &why)) {
        reply_refuse(agent, id, ERROR_INVALID, 0, why);
        return;
    }
    struct tunnel *tunnel = take_or_refuse(agent, id);
    if (tunnel == NULL)
        return;
    tunnel->fd = listener(agent, &port);
    if (tunnel->fd < 0) {
        tunnel_end(tunnel, errno);
        return;
    }
    tunnel->state = TUNNEL_LISTENING;
    tunnel->opening = true;
    tunnel->port = port;
}

/*
 * Connections that a command makes cost the session a bounded amount: so many at a time, and each waits for the host's
 * word before the agent reads from it. The others wait in the kernel's backlog.
 */
bool tunnel_may_accept(const struct agent *agent) {
    const struct tunnels *tunnels = &agent->tunnels;
    return tunnels->accepted < ACCEPTED_MAX && tunnels->waiting < ACCEPTED_WAITING && tunnels->free_count > 0 &&
           tunnels->next_accepted < UINT32_MAX - ACCEPTED_MAX && (tunnels->accept_us == 0 || tunnels->accept_us <= now_us());
}

void tunnel_accept(struct agent *agent, const struct tunnel *listener) {
    struct tunnels *tunnels = &agent->tunnels;
    for (unsigned i = 0; i < ACCEPT_TURN && tunnel_may_accept(agent); i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                tunnels->accept_us = now_us() + SCARCE_US;
            return;
        }
        note_highest(agent, fd);
        set_nodelay(fd);
        struct tunnel *tunnel = tunnel_take(agent, 0);
        tunnel->state = TUNNEL_OPEN;
        tunnel->fd = fd;
        tunnel->accepted = true;
        tunnel->waiting = true;
        tunnel->opening = true;
        tunnel->listener = listener->id;
        tunnels->accepted++;
        tunnels->waiting++;
        tunnels->accept_us = 0;
    }
}
