#include "detached.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"

#define PATIENCE_US 5000000 /* for a greeting; for the commands of the host before to be dead there is no bound */

extern char **environ;

static socklen_t address(struct sockaddr_un *out) {
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path + 1, DETACHED_NAME, sizeof DETACHED_NAME - 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof DETACHED_NAME);
}

void detached_take_token(struct agent *agent) {
    const size_t length = sizeof TOKEN_VARIABLE - 1;
    char **kept = environ;
    for (char **at = environ; *at != NULL; at++) {
        if (strncmp(*at, TOKEN_VARIABLE "=", length + 1) != 0) {
            *kept++ = *at;
            continue;
        }
        char *value = *at + length + 1;
        size_t size = strlen(value);
        memcpy(agent->detached.token, value, size < TOKEN_MAX ? size : TOKEN_MAX);
        memset(value, 0, size);
    }
    *kept = NULL;
}

bool detached_open(struct agent *agent) {
    struct detached *detached = &agent->detached;
    struct sockaddr_un name;
    socklen_t size = address(&name);
    detached->waiting = -1;
    detached->listener = -1;
    detached->attached = !detached->on;
    if (!detached->on)
        return true;
    if (detached->token[0] == '\0') {
        errno = EINVAL;
        return false;
    }
    detached->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (detached->listener < 0)
        return false;
    detached->untrusted = untrusted_guard(detached->listener);
    return bind(detached->listener, (struct sockaddr *)&name, size) == 0 && listen(detached->listener, 8) == 0;
}

void detached_put_host(int fd) {
    int host = fd >= 0 ? fd : open("/dev/null", O_RDWR | O_CLOEXEC);
    if (host < 0 || dup3(host, FD_INPUT, O_CLOEXEC) < 0 || dup3(host, FD_OUTPUT, O_CLOEXEC) < 0)
        complain("the host's descriptors", strerror(errno));
    if (host >= 0)
        close(host);
}

static void forget_host(struct agent *agent) {
    agent->input = (struct input){.bytes = agent->input.bytes};
    agent->output.head = 0;
    agent->output.tail = 0;
    agent->output.broken = false;
    shortcut_forget(agent);
    agent->hello_pending = false;
    agent->pong_pending = false;
    agent->refusal_count = 0;
    calls_forget(agent);
    agent->configured = false;
    agent->last_channel = 0;
}

void detached_host_gone(struct agent *agent) {
    if (!agent->detached.on)
        session_end(agent, 0);
    agent->detached.attached = false;
    detached_put_host(-1);
    forget_host(agent);
    tunnels_drop(agent);
    /* Its commands were its own: nobody else can hear of their ends. What they left in the background lives on. */
    for (unsigned i = 0; i < agent->active_count; i++) {
        struct channel *channel = agent->active[i];
        if (channel->state != CHANNEL_OPEN || channel->process != NULL)
            continue;
        channel->credit = CREDIT_MAX; /* their output goes to nothing, so that they can end */
        end_begin(agent, channel, REASON_KILL, 0);
    }
}

int detached_listener(const struct agent *agent) {
    return agent->detached.on && agent->detached.waiting < 0 && !untrusted_full() ? agent->detached.listener : -1;
}

int detached_waiting(const struct agent *agent) {
    return agent->detached.got < GREETING_SIZE ? agent->detached.waiting : -1;
}

/*
 * Run by the engine: as this user, and with a parent that cannot be seen from inside. A command of the sandbox has one that
 * can, and is turned away before it could keep others waiting. The token is asked for all the same.
 */
static bool is_from_outside(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    char path[32];
    char status[4096];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != getuid() || peer.pid <= 0)
        return false;
    struct text text = text_over(path, sizeof path);
    text_add(&text, "/proc/");
    text_add_u64(&text, (uint64_t)peer.pid);
    text_add(&text, "/status");
    if (file_read(path, status, sizeof status) < 0)
        return false;
    return strstr(status, "\nPPid:\t0\n") != NULL && strstr(status, "\nTracerPid:\t0\n") != NULL;
}

static void turn_away(struct detached *detached) {
    untrusted_close(&detached->waiting, detached->untrusted);
    detached->got = 0;
    memset(detached->greeting, 0, sizeof detached->greeting);
}

/* A HELLO that says why not. The socket is new, so that it takes this much at once. */
static void refuse(struct detached *detached, const char *why) {
    unsigned char frame[256];
    unsigned char *facts = put_u16(put_u16(put_u32(frame + FRAME_HEADER, HELLO_MAGIC), PROTOCOL_VERSION), 0);
    size_t head = (size_t)(facts - frame);
    struct text text = text_over((char *)facts, sizeof frame - head);
    text_add(&text, "build=" AGENT_BUILD "\nrefused=");
    text_add(&text, why);
    text_add(&text, "\n");
    frame_head(frame, (uint32_t)(head - FRAME_HEADER + text.length), 0, FRAME_HELLO, 0);
    ssize_t ignored = send(detached->waiting, frame, head + text.length, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)ignored;
    turn_away(detached);
}

static bool same_token(const struct detached *detached) {
    unsigned difference = 0;
    for (size_t i = 0; i < TOKEN_MAX; i++)
        difference |= (unsigned)detached->greeting[8 + i] ^ (unsigned char)detached->token[i];
    return difference == 0;
}

static void accept_one(struct agent *agent) {
    struct detached *detached = &agent->detached;
    detached->waiting = accept4(detached->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (detached->waiting < 0)
        return;
    if (detached->untrusted)
        untrusted_guard(detached->waiting);
    detached->got = 0;
    detached->patience_us = now_us() + PATIENCE_US;
    if (!is_from_outside(detached->waiting))
        turn_away(detached);
}

static void hear_greeting(struct agent *agent) {
    struct detached *detached = &agent->detached;
    ssize_t got = untrusted_read(detached->waiting, detached->greeting + detached->got, GREETING_SIZE - detached->got,
                                 detached->untrusted);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        turn_away(detached);
        return;
    }
    detached->got += (uint32_t)got;
    if (detached->got < GREETING_SIZE)
        return;
    detached->patience_us = NEVER;
    if (get_u32(detached->greeting) != GREETING_MAGIC || !same_token(detached))
        refuse(detached, "token");
    else if (agent->detached.attached && (detached->greeting[4] & GREETING_TAKEOVER) == 0)
        refuse(detached, "busy");
    else if (agent->detached.attached)
        detached_host_gone(agent);
}

static void adopt(struct agent *agent) {
    struct detached *detached = &agent->detached;
    forget_host(agent);
    detached_put_host(detached->waiting);
    detached->waiting = -1;
    detached->got = 0;
    memset(detached->greeting, 0, sizeof detached->greeting);
    detached->attached = true;
    detached->active = true;
    agent->hello_pending = true;
}

/* When the commands of the host before are dead: a frame of theirs would be a riddle to the new one. */
static bool may_adopt(const struct agent *agent) {
    const struct detached *detached = &agent->detached;
    return detached->on && detached->waiting >= 0 && detached->got == GREETING_SIZE && !detached->attached &&
           agent->open_count == 0;
}

void detached_serve(struct agent *agent, bool listener, bool waiting) {
    struct detached *detached = &agent->detached;
    if (!detached->on)
        return;
    if (listener && detached->waiting < 0)
        accept_one(agent);
    else if (waiting && detached->waiting >= 0)
        hear_greeting(agent);
    if (detached->waiting >= 0 && detached->patience_us <= now_us())
        turn_away(detached);
    if (may_adopt(agent))
        adopt(agent);
}

void lifetime_begin(struct agent *agent, int64_t now) {
    struct detached *detached = &agent->detached;
    detached->active_us = now;
    detached->ends_us = detached->ttl_us > 0 ? now + detached->ttl_us : NEVER;
}

/* CONFIGURE, PROTOCOL.md 3.2: lines of key=value, of which unknown ones are ignored. */
void lifetime_configure(struct agent *agent, const char *settings, size_t size) {
    static const char key[] = "ttl=";
    const char *end = settings + size;
    while (settings < end) {
        const char *line_end = memchr(settings, '\n', (size_t)(end - settings));
        size_t length = (size_t)((line_end == NULL ? end : line_end) - settings);
        char value[24];
        if (length > sizeof key - 1 && length < sizeof value + sizeof key - 1 && memcmp(settings, key, sizeof key - 1) == 0) {
            size_t digits = length - (sizeof key - 1);
            memcpy(value, settings + sizeof key - 1, digits);
            value[digits < sizeof value ? digits : sizeof value - 1] = '\0';
            agent->detached.ends_us = now_us() + (int64_t)(parse_u64(value, 0) % UINT32_MAX) * 1000;
        }
        settings += length + 1;
    }
}

void lifetime_check(struct agent *agent, int64_t now) {
    struct detached *detached = &agent->detached;
    if (detached->idle_us > 0 && (detached->active || agent->open_count > 0 || processes_run(agent)))
        detached->active_us = now;
    detached->active = false;
    if (now >= detached->ends_us) {
        complain("the session has ended", "its time to live is over");
        session_end(agent, 0);
    }
    if (detached->idle_us > 0 && now >= detached->active_us + detached->idle_us) {
        complain("the session has ended", "it was idle for as long as it may be");
        session_end(agent, 0);
    }
}

int64_t lifetime_next(const struct agent *agent) {
    const struct detached *detached = &agent->detached;
    int64_t next = detached->ends_us;
    if (may_adopt(agent))
        return 0; /* the last command's end was said after this round had served the socket */
    if (detached->idle_us > 0 && agent->open_count == 0 && !processes_run(agent) &&
        detached->active_us + detached->idle_us < next)
        next = detached->active_us + detached->idle_us;
    if (detached->on && detached->waiting >= 0 && detached->patience_us < next)
        next = detached->patience_us;
    return next;
}
