#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "agent.h"

/* Killed before execve more often than this: someone kills whatever starts. */
#define ATTEMPTS 5u

static bool is_scarcity(int error) {
    return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOSPC;
}

/*
 * The request goes into the slot, which supervisor and command share with the agent: no socket can be too small for
 * it, and it stays there for a second attempt. A longer one gets memory of its own, mapped before its supervisor forks.
 */
static bool request_store(struct channel *channel, const unsigned char *payload, size_t size) {
    channel->slot->size = (uint32_t)size;
    if (size <= SLOT_REQUEST_MAX) {
        memcpy(channel->slot->request, payload, size);
        return true;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    memcpy(memory, payload, size);
    channel->large = memory;
    channel->large_size = size;
    return true;
}

/*
 * False: nobody is there to take it. Where that process was made for it a moment ago, there is nothing to be done about
 * it here: its supervisor will be reaped, and then it is tried again.
 */
static bool hand_over(const struct channel *channel) {
    const char go = CONTROL_GO;
    return send(channel->control, &go, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

/* What goes beyond the host's first credit is granted at once. Not again for a second attempt. */
static void feed_size(struct feed *feed, uint32_t capacity) {
    if (feed->capacity != 0)
        return;
    feed->capacity = capacity;
    feed->outstanding = feed->owed = capacity - FEED_MAX;
    feed->grant = feed->owed > 0;
}

static void settle(struct agent *agent, struct channel *channel, const struct request *request) {
    channel->tainted = (request->flags & EXEC_APPLET) != 0;
    feed_size(&channel->feed, channel->tainted && (request->flags & EXEC_STDIN) != 0 ? FEED_MAX_APPLET : FEED_MAX);
    if ((request->flags & EXEC_STDIN) == 0 || channel->feed.ended) {
        channel->feed.ended = false;
        feed_end(channel);
    }
    channel->oom_before = cgroup_oom_kills(agent);
}

/* The waiting spare with the request in its hands, or NULL. */
static struct channel *use_spare(struct agent *agent, const unsigned char *payload, size_t size) {
    struct channel *channel = agent->spare;
    if (channel == NULL || size > SLOT_REQUEST_MAX)
        return NULL;
    request_store(channel, payload, size);
    if (!hand_over(channel)) {
        spare_drop(agent, false);
        return NULL;
    }
    agent->spare = NULL;
    return channel;
}

/* A new channel with the request in its hands, or NULL after a refusal. */
static struct channel *use_fresh(struct agent *agent, uint32_t id, const struct request *request,
                                 const unsigned char *payload, size_t size, struct process *process) {
    struct channel *channel = spawn_entry(agent, size > SLOT_REQUEST_MAX);
    if (channel == NULL) {
        reply_refuse(agent, id, ERROR_BUSY, 0, "Too many commands are running or living on in the background.");
        return NULL;
    }
    channel->process = process;
    int error = request_store(channel, payload, size) ? 0 : ENOMEM;
    if (error == 0)
        error = spawn(agent, channel, request);
    if (error == 0) {
        hand_over(channel);
        return channel;
    }
    reply_refuse(agent, id, is_scarcity(error) ? ERROR_BUSY : ERROR_INTERNAL, error,
                 "The process for the command could not be made.");
    channel->process = NULL;
    spawn_dismiss(agent, channel);
    return NULL;
}

/* A running command, or NULL after a refusal on channel `id`. That of a process has no number, and proves its start. */
struct channel *exec_begin(struct agent *agent, uint32_t id, const struct request *request, const unsigned char *payload,
                           size_t size, struct process *process) {
    int64_t now = now_us();
    bool ready = (request->flags & EXEC_TTY) == 0 && process == NULL;
    struct channel *channel = ready ? use_spare(agent, payload, size) : NULL;
    if (channel == NULL)
        channel = use_fresh(agent, id, request, payload, size, process);
    if (channel == NULL)
        return NULL;
    channel->state = CHANNEL_OPEN;
    channel->id = process == NULL ? id : 0;
    channel->started_us = now;
    settle(agent, channel, request);
    return channel;
}

void exec_open(struct agent *agent, uint32_t id, unsigned char *payload, size_t size) {
    struct request request;
    const char *why = "";
    if (!request_parse(payload, size, &request, &why)) {
        reply_refuse(agent, id, ERROR_INVALID, 0, why);
        return;
    }
    if (agent->open_count >= OPEN_CHANNELS) {
        reply_refuse(agent, id, ERROR_BUSY, 0, "As many commands as the agent allows are running.");
        return;
    }
    struct channel *channel = exec_begin(agent, id, &request, payload, size, NULL);
    if (channel == NULL)
        return;
    agent->open_count++;
    channel->credit = request.window;
    channel->grace_ms = request.grace_ms;
    if (request.timeout_ms != 0)
        channel->deadline_us = channel->started_us + (int64_t)request.timeout_ms * 1000;
}

void exec_give_up(struct channel *channel, uint16_t code, int error, const char *text) {
    channel->error_code = code;
    channel->error_errno = (uint16_t)error;
    channel->error_text = text;
    channel->exited = true;
    channel->finished = true;
}

/*
 * The process was killed before it took the request: nothing ran, so it may be started once more, unless input went
 * with it. The caller has made sure that no process of the attempt is left.
 */
void exec_retry(struct agent *agent, struct channel *channel) {
    struct request request;
    const char *why = "";
    struct slot *slot = channel->slot;
    bool large = channel->large != NULL;
    if (++channel->attempts >= ATTEMPTS || channel->feed.touched) {
        exec_give_up(channel, ERROR_INTERNAL, 0, "The process was killed by another one before it could run the command.");
        return;
    }
    channel_close_descriptors(agent, channel);
    memset(slot, 0, offsetof(struct slot, size));
    channel->tree_gone = false;
    channel->orphaned = false;
    channel->exited = false;
    channel->supervisor = 0; /* if it still is there, it goes with its socket, unnoticed */
    int error = 0;
    if (!request_parse(large ? channel->large : slot->request, slot->size, &request, &why))
        error = EIO;
    if (error == 0)
        error = spawn(agent, channel, &request);
    if (error != 0) {
        exec_give_up(channel, is_scarcity(error) ? ERROR_BUSY : ERROR_INTERNAL, error,
                     "The process for the command could not be made.");
        channel->tree_gone = channel->supervisor == 0; /* else when it has been reaped */
        return;
    }
    hand_over(channel);
    settle(agent, channel, &request);
}
