#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"

/*
 * `agent connect [--takeover]`: run by the engine in a detached session's container. It greets PID 1 and then carries bytes
 * both ways and knows nothing of them. Its end, by whatever cause, is the end of that connection and of nothing else.
 */

#define EXIT_UNAVAILABLE 69
#define PIPE_SIZE 65536u

struct lane {
    int from;
    int to;
    bool ended;
    size_t head;
    size_t tail;
    unsigned char bytes[PIPE_SIZE];
};

static _Noreturn void fail(const char *what) {
    complain(what, strerror(errno));
    _exit(EXIT_UNAVAILABLE);
}

static int reach_agent(void) {
    struct sockaddr_un name;
    struct ucred peer;
    socklen_t size = sizeof peer;
    memset(&name, 0, sizeof name);
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path + 1, DETACHED_NAME, sizeof DETACHED_NAME - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof DETACHED_NAME);
    if (fd < 0 || connect(fd, (struct sockaddr *)&name, length) != 0)
        fail("this session is not detached, or it has not started yet");
    /* Not somebody's who took the name: the token is for PID 1 alone. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != 1) {
        errno = EPERM;
        fail("not the agent");
    }
    return fd;
}

static void greet(int fd, bool takeover) {
    unsigned char greeting[GREETING_SIZE] = {0};
    const char *token = getenv(TOKEN_VARIABLE);
    put_u32(greeting, GREETING_MAGIC);
    greeting[4] = takeover ? GREETING_TAKEOVER : 0;
    if (token != NULL)
        memcpy(greeting + 8, token, strlen(token) < TOKEN_MAX ? strlen(token) : TOKEN_MAX);
    if (send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) != (ssize_t)sizeof greeting)
        fail("greeting the agent");
}

static bool is_passing(int error) {
    return error == EAGAIN || error == EINTR;
}

static void lane_read(struct lane *lane) {
    ssize_t got = read(lane->from, lane->bytes, PIPE_SIZE);
    if (got > 0) {
        lane->head = 0;
        lane->tail = (size_t)got;
    } else if (got == 0 || !is_passing(errno)) {
        lane->ended = true;
    }
}

static void lane_write(struct lane *lane) {
    ssize_t wrote = write(lane->to, lane->bytes + lane->head, lane->tail - lane->head);
    if (wrote > 0)
        lane->head += (size_t)wrote;
    else if (wrote < 0 && !is_passing(errno))
        lane->ended = true;
}

static bool lane_full(const struct lane *lane) {
    return lane->head < lane->tail;
}

/* One buffer a lane: it is read when it is empty, and written until it is. */
static void bridge(int agent) {
    static struct lane to_agent, to_host;
    to_agent = (struct lane){.from = STDIN_FILENO, .to = agent};
    to_host = (struct lane){.from = agent, .to = STDOUT_FILENO};
    while (!to_agent.ended && !(to_host.ended && !lane_full(&to_host))) {
        struct pollfd fds[4] = {
            {.fd = lane_full(&to_agent) ? -1 : to_agent.from, .events = POLLIN},
            {.fd = lane_full(&to_agent) ? to_agent.to : -1, .events = POLLOUT},
            {.fd = lane_full(&to_host) || to_host.ended ? -1 : to_host.from, .events = POLLIN},
            {.fd = lane_full(&to_host) ? to_host.to : -1, .events = POLLOUT},
        };
        if (poll(fds, 4, -1) < 0 && errno != EINTR)
            fail("poll");
        if (fds[0].revents != 0)
            lane_read(&to_agent);
        if (fds[1].revents != 0 || (fds[0].revents != 0 && lane_full(&to_agent)))
            lane_write(&to_agent);
        if (fds[2].revents != 0)
            lane_read(&to_host);
        if (fds[3].revents != 0 || (fds[2].revents != 0 && lane_full(&to_host)))
            lane_write(&to_host);
        if (fds[3].fd >= 0 && (fds[3].revents & (POLLERR | POLLHUP)) != 0)
            return;
    }
}

_Noreturn void connect_run(int argc, char **argv) {
    bool takeover = argc == 3 && strcmp(argv[2], "--takeover") == 0;
    if (argc != 2 && !takeover) {
        complain("usage: agent connect [--takeover]", NULL);
        _exit(64);
    }
    /* First of all: no command may look at the token, or put words into this process's mouth. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        fail("prctl");
    int agent = reach_agent();
    greet(agent, takeover);
    int all[] = {STDIN_FILENO, STDOUT_FILENO, agent};
    for (unsigned i = 0; i < 3; i++)
        if (fcntl(all[i], F_SETFL, fcntl(all[i], F_GETFL) | O_NONBLOCK) < 0)
            fail("fcntl");
    bridge(agent);
    _exit(0);
}
