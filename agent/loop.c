#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "agent.h"

/* Who is waited for, and who is served in which order. Nothing here ever waits but poll. */

#define POLLED_MAX (7u + 4u * TABLE_SIZE + TUNNELS + PROCESSES)

struct polled {
    nfds_t count;
    struct pollfd fds[POLLED_MAX];
};

int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int16_t watch(struct polled *polled, int fd, short events) {
    if (fd < 0)
        return -1;
    polled->fds[polled->count] = (struct pollfd){.fd = fd, .events = events};
    return (int16_t)polled->count++;
}

static short happened(const struct polled *polled, int16_t at) {
    return at < 0 ? 0 : polled->fds[at].revents;
}

/* A pipe is watched only while its bytes have somewhere to go: that is the whole of the backpressure. */
static bool may_read(struct agent *agent, const struct channel *channel, const struct stream *stream) {
    if (channel->state == CHANNEL_BEHIND || channel->process != NULL) /* to be dropped; to be logged */
        return true;
    if (channel->state != CHANNEL_OPEN || channel->credit == 0 || (channel->measured && stream->left == 0))
        return false;
    return output_room(&agent->output) >= OUTPUT_SIZE / 2;
}

static void watch_channel(struct agent *agent, struct channel *channel, struct polled *polled) {
    channel->poll_at = watch(polled, channel->control, POLLIN);
    channel->proof_at = watch(polled, channel->proof, POLLIN);
    for (unsigned i = 0; i < 2; i++) {
        struct stream *stream = &channel->streams[i];
        stream->poll_at = may_read(agent, channel, stream) ? watch(polled, stream->fd, POLLIN) : (int16_t)-1;
    }
    struct feed *feed = &channel->feed;
    feed->poll_at = feed->length > 0 ? watch(polled, feed_descriptor(channel), POLLOUT) : (int16_t)-1;
}

static void watch_tunnels(struct agent *agent, struct polled *polled) {
    for (unsigned i = 0; i < agent->tunnels.active_count; i++) {
        struct tunnel *tunnel = agent->tunnels.active[i];
        short events = tunnel_events(agent, tunnel);
        tunnel->poll_at = events != 0 ? watch(polled, tunnel->fd, events) : (int16_t)-1;
    }
}

static int64_t earlier(int64_t one, int64_t other) {
    return one < other ? one : other;
}

static int timeout_ms(int64_t next) {
    if (next == NEVER)
        return -1;
    int64_t left = next - now_us();
    if (left <= 0)
        return 0;
    return left / 1000 >= INT_MAX ? INT_MAX : (int)((left + 999) / 1000);
}

static void wait_for_events(struct agent *agent, struct polled *polled) {
    struct output *output = &agent->output;
    polled->count = 0;
    watch(polled, FD_SIGNALS, POLLIN);
    bool hears = agent->detached.attached && !agent->input.stalled;
    polled->fds[polled->count++] = (struct pollfd){.fd = hears ? FD_INPUT : -1, .events = POLLIN};
    polled->fds[polled->count++] =
        (struct pollfd){.fd = output->tail > output->head ? output->fd : -1, .events = POLLOUT};
    polled->fds[polled->count++] = (struct pollfd){.fd = detached_listener(agent), .events = POLLIN};
    polled->fds[polled->count++] = (struct pollfd){.fd = detached_waiting(agent), .events = POLLIN};
    polled->fds[polled->count++] = (struct pollfd){.fd = agent->shortcut.ours, .events = POLLIN};
    int engine = agent->shortcut.ours < 0 ? agent->shortcut.input : -1; /* once it was left for the shortcut */
    polled->fds[polled->count++] = (struct pollfd){.fd = engine, .events = POLLIN};
    for (unsigned i = 0; i < agent->active_count; i++)
        watch_channel(agent, agent->active[i], polled);
    watch_tunnels(agent, polled);
    int64_t next = earlier(end_next(agent), lifetime_next(agent));
    next = earlier(next, earlier(spawn_next(agent), tunnels_next(agent)));
    next = earlier(next, untrusted_next());
    if (agent->input.stalled && agent->refusal_count < REFUSALS)
        next = 0; /* the answers have gone out: on with the frames behind them */
    if (poll(polled->fds, polled->count, timeout_ms(next)) < 0) {
        if (errno != EINTR)
            complain("poll", strerror(errno));
        memset(polled->fds, 0, sizeof polled->fds);
    }
}

static void serve_channel(struct agent *agent, struct channel *channel, const struct polled *polled) {
    if (happened(polled, channel->poll_at) != 0)
        control_serve(agent, channel);
    if (happened(polled, channel->proof_at) != 0 && channel->proof >= 0)
        process_prove(channel);
    if (happened(polled, channel->feed.poll_at) != 0)
        feed_drain(channel);
    for (unsigned i = 0; i < 2; i++) {
        struct stream *stream = &channel->streams[i];
        if (happened(polled, stream->poll_at) == 0 || stream->fd < 0)
            continue;
        if (channel->state == CHANNEL_BEHIND)
            stream_read(agent, stream, SCRATCH_SIZE); /* and dropped */
        else if (channel->process != NULL)
            process_log(agent, channel, i);
        else
            stream_forward(agent, channel, i);
    }
    channel_advance(agent, channel);
    if (agent->output.tail - agent->output.head >= OUTPUT_FLUSH)
        output_flush(&agent->output);
}

/* One turn each, beginning with another one each time, so that a flood does not keep the others waiting. */
static void serve_channels(struct agent *agent, const struct polled *polled) {
    unsigned count = agent->active_count;
    struct channel *round[TABLE_SIZE];
    memcpy(round, agent->active, count * sizeof round[0]);
    for (unsigned i = 0; i < count; i++)
        serve_channel(agent, round[(i + agent->turn) % count], polled);
    agent->turn++;
}

/* The same. What it accepts is behind the others and has its first turn in the next round. */
static void serve_tunnels(struct agent *agent, const struct polled *polled) {
    struct tunnels *tunnels = &agent->tunnels;
    unsigned count = tunnels->active_count;
    for (unsigned i = 0; i < count; i++) {
        struct tunnel *tunnel = tunnels->active[(i + tunnels->turn) % count];
        tunnel_serve(agent, tunnel, happened(polled, tunnel->poll_at));
        if (agent->output.tail - agent->output.head >= OUTPUT_FLUSH)
            output_flush(&agent->output);
    }
    tunnels->turn++;
}

/* Tunnels and commands go first by turns: whoever comes second may find no room left in the output buffer. */
static void serve_all(struct agent *agent, const struct polled *polled) {
    bool tunnels_first = agent->turn % 2 == 1;
    if (tunnels_first)
        serve_tunnels(agent, polled);
    serve_channels(agent, polled);
    if (!tunnels_first)
        serve_tunnels(agent, polled);
}

/*
 * Renders what is owed and writes it, until nothing is left or the host takes no more. In the second case poll reports
 * when it does, and the next round comes back here.
 */
static void reply_all(struct agent *agent) {
    struct output *output = &agent->output;
    do {
        reply_session(agent);
        for (unsigned i = 0; i < agent->active_count; i++)
            reply_channel(agent, agent->active[i]);
        tunnels_reply(agent);
        calls_reply(agent);
        if (output->tail == output->head)
            return;
        output_flush(output);
    } while (output->tail == output->head && !output->broken);
}

/* Descriptors of closed channels whose tree is gone; after the flush, so that the host does not wait for it. */
static void tidy(struct agent *agent) {
    for (unsigned i = agent->active_count; i-- > 0;) {
        struct channel *channel = agent->active[i];
        if (channel->state != CHANNEL_BEHIND || !channel->tree_gone || channel->orphaned)
            continue;
        if (!spawn_keep(agent, channel))
            spawn_dismiss(agent, channel);
    }
}

_Noreturn void loop_run(struct agent *agent) {
    static struct polled polled;
    agent->hello_pending = agent->detached.attached;
    for (;;) {
        reply_all(agent);
        if (agent->output.broken)
            detached_host_gone(agent);
        tidy(agent);
        spawn_prepare(agent);
        wait_for_events(agent, &polled);
        if (polled.fds[0].revents != 0)
            reap_children(agent);
        if (polled.fds[5].revents != 0 && agent->shortcut.ours >= 0)
            shortcut_take(agent);
        else if (polled.fds[1].revents != 0 || agent->input.stalled)
            input_serve(agent);
        if (polled.fds[6].revents != 0 && agent->shortcut.input >= 0)
            shortcut_hear_engine(agent);
        int64_t now = now_us();
        end_timers(agent, now);
        lifetime_check(agent, now);
        untrusted_serve(now);
        serve_all(agent, &polled);
        detached_serve(agent, polled.fds[3].revents != 0, polled.fds[4].revents != 0);
    }
}
