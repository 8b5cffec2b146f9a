#include "agent.h"

static void act_on_configure(struct agent *agent, const struct frame *frame, const unsigned char *payload) {
    if (frame->channel != 0 || agent->configured || agent->last_channel != 0 || frame->length < 4)
        session_broken(agent, "CONFIGURE in the wrong place");
    if (get_u16(payload) != PROTOCOL_VERSION)
        session_broken(agent, "CONFIGURE with another protocol version");
    agent->configured = true;
    lifetime_configure(agent, (const char *)payload + 4, frame->length - 4);
}

static void act_on_ping(struct agent *agent, const struct frame *frame, const unsigned char *payload) {
    if (frame->channel != 0 || frame->length > sizeof agent->pong)
        session_broken(agent, "a malformed PING");
    agent->pong_length = (uint8_t)frame->length;
    for (unsigned i = 0; i < frame->length; i++)
        agent->pong[i] = payload[i];
    agent->pong_pending = true;
}

/* PROTOCOL.md 4.1: each number once, rising. */
static void open_number(struct agent *agent, uint32_t channel) {
    if (channel == 0 || channel > CHANNEL_MAX)
        session_broken(agent, "a channel number that the host may not open");
    if (channel <= agent->last_channel)
        session_broken(agent, "a channel number used twice, or not rising");
    agent->last_channel = channel;
    shortcut_withdraw(agent);
}

/*
 * A newer host may ask for what this agent cannot do, on channel 0 or on a number of its own. On a number that closed
 * meanwhile the frame merely crossed with the EXIT; on an open channel there is no honest answer.
 */
static void act_on_unknown(struct agent *agent, const struct frame *frame) {
    if (frame->channel != 0) {
        if (table_find(agent, frame->channel) != NULL || tunnel_find(agent, frame->channel) != NULL ||
            call_find(agent, frame->channel) != NULL)
            session_broken(agent, "an unknown frame type on an open channel");
        if (frame->channel <= agent->last_channel)
            return;
        open_number(agent, frame->channel);
    }
    reply_refuse(agent, frame->channel, ERROR_UNSUPPORTED, 0, "This agent does not know that frame type.");
}

static void check_data(struct agent *agent, const struct channel *channel, const struct frame *frame) {
    if (frame->flags != 0)
        session_broken(agent, "input for a stream that is not 0");
    if (frame->type == FRAME_DATA && frame->length > channel->feed.capacity - channel->feed.outstanding)
        session_broken(agent, "more input than was granted");
}

static void act_on_data(struct agent *agent, struct channel *channel, const struct frame *frame,
                        const unsigned char *payload) {
    check_data(agent, channel, frame);
    if (frame->type == FRAME_EOF)
        feed_end(channel);
    else if (channel->feed.ended) /* after EOF, or never announced: dropped like the rest of what nobody reads */
        feed_ignore(channel, frame->length);
    else
        feed_data(channel, payload, frame->length);
}

bool frame_is_bulk(struct agent *agent, const struct frame *frame) {
    if (frame->type != FRAME_DATA || frame->length < BULK_LEAST || frame->channel == 0)
        return false;
    const struct channel *channel = table_find(agent, frame->channel);
    return channel != NULL && !channel->tty && channel->feed.fd >= 0 && !channel->feed.ended;
}

/*
 * A large DATA frame need not be whole to be acted on: what is here goes to the command, and what follows is moved from
 * the stream to the command's pipe by the kernel (input.c). False: it has to be awaited whole.
 */
bool frame_begin(struct agent *agent, const struct frame *frame, const unsigned char *payload, uint32_t here) {
    if (frame->length - here < BULK_LEAST || !frame_is_bulk(agent, frame))
        return false;
    struct channel *channel = table_find(agent, frame->channel);
    if (channel->feed.length > 0)
        return false;
    check_data(agent, channel, frame);
    feed_data(channel, payload, here);
    agent->input.bulk = frame->channel;
    agent->input.bulk_left = frame->length - here;
    return true;
}

/* More of that frame. A channel that is gone meanwhile: it crossed with the EXIT. */
void frame_go_on(struct agent *agent, const unsigned char *bytes, uint32_t count) {
    struct channel *channel = table_find(agent, agent->input.bulk);
    agent->input.bulk_left -= count;
    if (channel != NULL)
        feed_data(channel, bytes, count);
}

static void act_on_window(struct agent *agent, struct channel *channel, const struct frame *frame,
                          const unsigned char *payload) {
    if (frame->length != 4 || get_u32(payload) > CREDIT_MAX - channel->credit)
        session_broken(agent, "a malformed WINDOW");
    channel->credit += get_u32(payload);
}

static void act_on_channel(struct agent *agent, const struct frame *frame, const unsigned char *payload) {
    if (frame->channel == 0)
        session_broken(agent, "a command's frame on the session's channel");
    struct tunnel *tunnel = tunnel_find(agent, frame->channel);
    if (tunnel != NULL) {
        tunnel_act(agent, tunnel, frame, payload);
        return;
    }
    struct channel *channel = table_find(agent, frame->channel);
    if (channel == NULL) {
        call_act(agent, frame, payload); /* or it crossed with its EXIT */
        return;
    }
    switch (frame->type) {
    case FRAME_DATA:
    case FRAME_EOF:
        act_on_data(agent, channel, frame, payload);
        return;
    case FRAME_WINDOW:
        act_on_window(agent, channel, frame, payload);
        return;
    case FRAME_KILL:
        if (frame->length != 4)
            session_broken(agent, "a malformed KILL");
        end_begin(agent, channel, REASON_KILL, get_u32(payload));
        return;
    default: /* FRAME_RESIZE */
        if (frame->length != 4)
            session_broken(agent, "a malformed RESIZE");
        terminal_resize(channel, get_u16(payload), get_u16(payload + 2));
        return;
    }
}

void frame_act(struct agent *agent, const struct frame *frame, unsigned char *payload) {
    switch (frame->type) {
    case FRAME_CONFIGURE:
        act_on_configure(agent, frame, payload);
        return;
    case FRAME_PING:
        act_on_ping(agent, frame, payload);
        return;
    case FRAME_SHORTCUT:
        if (frame->channel != 0 || frame->length != 0)
            session_broken(agent, "a malformed SHORTCUT");
        shortcut_offer(agent);
        return;
    case FRAME_EXEC:
        open_number(agent, frame->channel);
        exec_open(agent, frame->channel, payload, frame->length);
        return;
    case FRAME_TAKEN:
        tunnel_taken(agent, frame);
        return;
    case FRAME_CONNECT:
    case FRAME_LISTEN:
        open_number(agent, frame->channel);
        (frame->type == FRAME_CONNECT ? tunnel_connect : tunnel_listen)(agent, frame->channel, payload, frame->length);
        return;
    case FRAME_START:
        open_number(agent, frame->channel);
        process_start(agent, frame->channel, payload, frame->length);
        return;
    case FRAME_VIEW:
    case FRAME_INPUT:
    case FRAME_STOP:
    case FRAME_LIST:
        open_number(agent, frame->channel);
        call_open(agent, frame, payload);
        return;
    case FRAME_DATA:
    case FRAME_EOF:
    case FRAME_WINDOW:
    case FRAME_KILL:
    case FRAME_RESIZE:
        act_on_channel(agent, frame, payload);
        return;
    case FRAME_HELLO:
    case FRAME_PONG:
    case FRAME_OFFER:
    case FRAME_STARTED:
    case FRAME_EXIT:
    case FRAME_ERROR:
    case FRAME_OPENED:
    case FRAME_ACCEPTED:
    case FRAME_CLOSED:
    case FRAME_PROCESS:
    case FRAME_CURSOR:
        session_broken(agent, "a frame that only the agent may send");
    default:
        act_on_unknown(agent, frame);
    }
}
