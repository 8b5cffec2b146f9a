#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"

#define SLOTS_KEPT 16u /* their memory stays; that of higher ones is given back after use */

void fd_close(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void note_highest(struct agent *agent, int fd) {
    if (fd > agent->highest_fd)
        agent->highest_fd = fd;
}

void table_open(struct agent *agent) {
    for (unsigned i = 0; i < TABLE_SIZE; i++)
        agent->free_list[i] = (uint16_t)(TABLE_SIZE - 1 - i);
    agent->free_count = TABLE_SIZE;
}

static struct slot *slot_at(const struct agent *agent, unsigned index) {
    return (struct slot *)(void *)(agent->slots + (size_t)index * SLOT_SIZE);
}

static struct channel blank(const struct agent *agent, uint16_t index, uint16_t active_at) {
    return (struct channel){
        .index = index,
        .active_at = active_at,
        .poll_at = -1,
        .control = -1,
        .proof = -1,
        .proof_at = -1,
        .streams = {{.fd = -1, .poll_at = -1}, {.fd = -1, .poll_at = -1}},
        .feed = {.fd = -1, .poll_at = -1},
        .deadline_us = NEVER,
        .next_pass_us = NEVER,
        .slot = slot_at(agent, index),
    };
}

struct channel *table_take(struct agent *agent) {
    if (agent->free_count == 0)
        return NULL;
    uint16_t index = agent->free_list[--agent->free_count];
    struct channel *channel = &agent->table[index];
    *channel = blank(agent, index, agent->active_count);
    agent->active[agent->active_count++] = channel;
    return channel;
}

void channel_close_descriptors(struct agent *agent, struct channel *channel) {
    feed_close(channel);
    stream_close(agent, &channel->streams[0]);
    stream_close(agent, &channel->streams[1]);
    fd_close(&channel->control);
    fd_close(&channel->proof);
}

/* Requests carry secrets: what is not unmapped or given back is cleared. */
static void slot_clear(const struct channel *channel) {
    struct slot *slot = channel->slot;
    uint32_t used = slot->size < SLOT_REQUEST_MAX ? slot->size : SLOT_REQUEST_MAX;
    bool give_back = channel->index >= SLOTS_KEPT || used > 4096;
    if (!give_back || madvise(slot, SLOT_SIZE, MADV_REMOVE) != 0)
        memset(slot, 0, sizeof *slot + used);
}

/* The entry as new, but for its supervisor. */
void table_reuse(struct agent *agent, struct channel *channel) {
    int control = channel->control;
    pid_t supervisor = channel->supervisor;
    channel->control = -1;
    channel_close_descriptors(agent, channel);
    slot_clear(channel);
    *channel = blank(agent, channel->index, channel->active_at);
    channel->control = control;
    channel->supervisor = supervisor;
}

void table_release(struct agent *agent, struct channel *channel) {
    channel_close_descriptors(agent, channel);
    if (channel->large != NULL)
        munmap(channel->large, channel->large_size);
    slot_clear(channel);
    struct channel *last = agent->active[--agent->active_count];
    agent->active[channel->active_at] = last;
    last->active_at = channel->active_at;
    channel->state = CHANNEL_FREE;
    agent->free_list[agent->free_count++] = channel->index;
}

struct channel *table_find(struct agent *agent, uint32_t id) {
    for (unsigned i = 0; i < agent->active_count; i++)
        if (agent->active[i]->state == CHANNEL_OPEN && agent->active[i]->id == id)
            return agent->active[i];
    return NULL;
}

struct channel *table_find_supervisor(struct agent *agent, pid_t pid) {
    for (unsigned i = 0; i < agent->active_count; i++)
        if (agent->active[i]->supervisor == pid)
            return agent->active[i];
    return NULL;
}
