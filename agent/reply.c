#include <string.h>

#include "agent.h"

/*
 * What the agent owes the host beside command output. It is state, not a queue: one of each for a channel, rendered
 * when the output buffer has room, so a host that does not read costs no memory.
 */

#define ERROR_MAX 512u
#define EXIT_MAX (38u + 4u * PIDS_SHOWN)

bool reply_room(struct agent *agent, size_t payload) {
    return output_room(&agent->output) >= FRAME_HEADER + payload;
}

void reply_frame(struct agent *agent, uint32_t channel, uint8_t type, uint8_t flags, const void *payload, size_t size) {
    unsigned char *at = frame_head(output_tail(&agent->output), (uint32_t)size, channel, type, flags);
    memcpy(at, payload, size);
    output_add(&agent->output, FRAME_HEADER + size);
}

void reply_error(struct agent *agent, uint32_t channel, uint16_t code, uint16_t error, const char *text) {
    unsigned char payload[ERROR_MAX];
    size_t length = strlen(text);
    if (length > ERROR_MAX - 4)
        length = ERROR_MAX - 4;
    put_u16(put_u16(payload, code), error);
    memcpy(payload + 4, text, length);
    reply_frame(agent, channel, FRAME_ERROR, 0, payload, 4 + length);
}

/* `text` must live for ever: the frame may be written much later. */
void reply_refuse(struct agent *agent, uint32_t channel, uint16_t code, int error, const char *text) {
    unsigned at = (agent->refusal_head + (unsigned)agent->refusal_count) % REFUSALS;
    agent->refusals[at] = (struct refusal){channel, code, (uint16_t)error, text};
    agent->refusal_count++;
}

void reply_session(struct agent *agent) {
    if (agent->hello_pending && reply_room(agent, HELLO_MAX)) {
        unsigned char *at = output_tail(&agent->output);
        size_t size = hello_write(agent, at + FRAME_HEADER, HELLO_MAX);
        frame_head(at, (uint32_t)size, 0, FRAME_HELLO, 0);
        output_add(&agent->output, FRAME_HEADER + size);
        agent->hello_pending = false;
    }
    if (agent->pong_pending && reply_room(agent, agent->pong_length)) {
        reply_frame(agent, 0, FRAME_PONG, 0, agent->pong, agent->pong_length);
        agent->pong_pending = false;
    }
    if (agent->shortcut.offer_pending && reply_room(agent, OFFER_SIZE)) {
        unsigned char offer[OFFER_SIZE];
        offer_put(offer, agent->shortcut.theirs);
        agent->shortcut.offer_pending = false;
        reply_frame(agent, 0, FRAME_OFFER, 0, offer, sizeof offer);
    }
    while (agent->refusal_count > 0 && reply_room(agent, ERROR_MAX)) {
        const struct refusal *refusal = &agent->refusals[agent->refusal_head];
        reply_error(agent, refusal->channel, refusal->code, refusal->error, refusal->text);
        agent->refusal_head = (uint16_t)((agent->refusal_head + 1u) % REFUSALS);
        agent->refusal_count--;
    }
}

static bool oom_struck(const struct agent *agent, const struct channel *channel, uint8_t how, uint32_t code) {
    bool killed = how == 1 ? code == 9 : code == 137;
    return killed && cgroup_oom_kills(agent) > channel->oom_before;
}

/* The first ENDING_SIZE bytes of EXIT. */
unsigned char *reply_ending(struct agent *agent, const struct channel *channel, unsigned char *at) {
    uint8_t how = (channel->status & 0x7f) != 0;
    uint32_t code = how ? (uint32_t)channel->status & 0x7f : (uint32_t)channel->status >> 8 & 0xff;
    unsigned flags = oom_struck(agent, channel, how, code) ? EXIT_OOM : 0;
    if (channel->slot->verdict == VERDICT_NOT_RUN)
        flags |= EXIT_NOT_RUN;
    uint64_t started = (uint64_t)channel->started_us;
    at = put_u8(at, how);
    at = put_u8(at, channel->reason);
    at = put_u8(at, (uint8_t)flags);
    at = put_u8(at, 0);
    at = put_u32(at, code);
    at = put_u64(at, channel->ended_us > started ? channel->ended_us - started : 0);
    at = put_u64(at, channel->cpu_us);
    return put_u64(at, channel->max_rss);
}

static void add_exit(struct agent *agent, struct channel *channel) {
    unsigned char payload[EXIT_MAX];
    uint32_t pids[PIDS_SHOWN];
    size_t alive = 0;
    if (channel->reason == REASON_ITSELF && channel->others && !channel->tree_gone)
        alive = tree_list(agent, channel->supervisor, pids, PIDS_SHOWN);
    uint16_t shown = (uint16_t)(alive > PIDS_SHOWN ? PIDS_SHOWN : alive);
    unsigned char *at = reply_ending(agent, channel, payload);
    if (alive > PIDS_SHOWN)
        payload[2] |= EXIT_PIDS_CUT;
    at = put_u16(at, shown);
    for (unsigned i = 0; i < shown; i++)
        at = put_u32(at, pids[i]);
    reply_frame(agent, channel->id, FRAME_EXIT, 0, payload, (size_t)(at - payload));
}

/* The last frame of the channel; its supervisor, and processes in the background, may be there for longer. */
static void close_channel(struct agent *agent, struct channel *channel) {
    channel->state = CHANNEL_BEHIND;
    channel->deadline_us = NEVER;
    channel->next_pass_us = NEVER;
    agent->open_count--;
}

void reply_channel(struct agent *agent, struct channel *channel) {
    if (channel->state != CHANNEL_OPEN || channel->process != NULL)
        return;
    if (channel->started_pending && reply_room(agent, 4)) {
        unsigned char pid[4];
        put_u32(pid, channel->slot->pid);
        reply_frame(agent, channel->id, FRAME_STARTED, 0, pid, sizeof pid);
        channel->started_pending = false;
    }
    struct feed *feed = &channel->feed;
    if (feed->grant && reply_room(agent, 4)) {
        unsigned char credit[4];
        put_u32(credit, feed->owed);
        reply_frame(agent, channel->id, FRAME_WINDOW, 0, credit, sizeof credit);
        feed->outstanding -= feed->owed;
        feed->owed = 0;
        feed->grant = false;
    }
    if (!channel->finished || channel->started_pending || !reply_room(agent, EXIT_MAX > ERROR_MAX ? EXIT_MAX : ERROR_MAX))
        return;
    if (channel->error_code != ERROR_NONE)
        reply_error(agent, channel->id, channel->error_code, channel->error_errno, channel->error_text);
    else
        add_exit(agent, channel);
    close_channel(agent, channel);
}
