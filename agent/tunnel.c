#include "tunnel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"

#define READ_LEAST 4096u    /* do not read less for want of room: wait for a flush */
#define GRANT_LEAST 65536u
#define FRAMES_A_TURN 3u    /* each write to the host wakes it: rather fewer and larger ones */
#define KEPT 65536u         /* of a buffer; what more of it was used is given back */

void tunnels_open(struct agent *agent) {
    struct tunnels *tunnels = &agent->tunnels;
    for (unsigned i = 0; i < TUNNELS; i++)
        tunnels->free_list[i] = (uint16_t)(TUNNELS - 1 - i);
    tunnels->free_count = TUNNELS;
    tunnels->next_accepted = ACCEPTED_FIRST;
}

struct tunnel *tunnel_take(struct agent *agent, uint32_t id) {
    struct tunnels *tunnels = &agent->tunnels;
    if (tunnels->free_count == 0)
        return NULL;
    uint16_t index = tunnels->free_list[--tunnels->free_count];
    struct tunnel *tunnel = &tunnels->table[index];
    *tunnel = (struct tunnel){
        .index = index,
        .active_at = tunnels->active_count,
        .poll_at = -1,
        .fd = -1,
        .id = id,
        .retry_us = NEVER,
    };
    tunnels->active[tunnels->active_count++] = tunnel;
    return tunnel;
}

struct tunnel *tunnel_find(struct agent *agent, uint32_t id) {
    for (unsigned i = 0; i < agent->tunnels.active_count; i++) {
        struct tunnel *tunnel = agent->tunnels.active[i];
        if (tunnel->id == id)
            return tunnel->state == TUNNEL_CLOSING ? NULL : tunnel;
    }
    return NULL;
}

static unsigned char *buffer_of(const struct agent *agent, const struct tunnel *tunnel) {
    return agent->tunnels.buffers + (size_t)tunnel->index * TUNNEL_INPUT;
}

static void untake(struct agent *agent, struct tunnel *tunnel) {
    struct tunnels *tunnels = &agent->tunnels;
    if (tunnel->touched > KEPT)
        madvise(buffer_of(agent, tunnel), TUNNEL_INPUT, MADV_REMOVE);
    if (tunnel->accepted)
        tunnels->accepted--;
    if (tunnel->waiting)
        tunnels->waiting--;
    struct tunnel *last = tunnels->active[--tunnels->active_count];
    tunnels->active[tunnel->active_at] = last;
    last->active_at = tunnel->active_at;
    tunnel->state = TUNNEL_FREE;
    tunnels->free_list[tunnels->free_count++] = tunnel->index;
}

/* With an error the peer sees a reset, not what looks like an end in order. */
void tunnel_end(struct tunnel *tunnel, int error) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    if (error != 0 && tunnel->fd >= 0)
        setsockopt(tunnel->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    untrusted_close(&tunnel->fd, tunnel->untrusted);
    tunnel->state = TUNNEL_CLOSING;
    tunnel->error = error;
    tunnel->length = 0;
    tunnel->grant = false;
    tunnel->retry_us = NEVER;
}

static void end_if_over(struct tunnel *tunnel) {
    if (tunnel->state == TUNNEL_OPEN && tunnel->read_all && tunnel->shut)
        tunnel_end(tunnel, tunnel->error);
}

static void consumed(struct tunnel *tunnel, uint32_t count) {
    tunnel->owed += count;
    tunnel->grant = tunnel->owed >= GRANT_LEAST;
}

/* The peer reads no more. What it has sent may be an answer still: so the other direction goes on. */
static void nobody_reads(struct tunnel *tunnel, int error) {
    tunnel->shut = true;
    tunnel->error = error;
    consumed(tunnel, tunnel->length);
    tunnel->length = 0;
}

static uint32_t write_some(struct tunnel *tunnel, const unsigned char *bytes, uint32_t count) {
    uint32_t done = 0;
    while (done < count && !tunnel->shut) {
        ssize_t wrote = send(tunnel->fd, bytes + done, count - done, MSG_NOSIGNAL);
        if (wrote >= 0)
            done += (uint32_t)wrote;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            nobody_reads(tunnel, errno);
    }
    return tunnel->shut ? count : done;
}

static void finish_writing(struct tunnel *tunnel) {
    if (tunnel->state != TUNNEL_OPEN || !tunnel->ended || tunnel->length > 0 || tunnel->shut)
        return;
    tunnel->shut = true;
    shutdown(tunnel->fd, SHUT_WR);
    end_if_over(tunnel);
}

void tunnel_drain(struct agent *agent, struct tunnel *tunnel) {
    uint32_t waiting = tunnel->length;
    uint32_t done = write_some(tunnel, buffer_of(agent, tunnel) + tunnel->offset, waiting);
    if (!tunnel->shut) {
        tunnel->offset += done;
        tunnel->length -= done;
        consumed(tunnel, done);
    }
    if (tunnel->length == 0)
        tunnel->offset = 0;
    finish_writing(tunnel);
    end_if_over(tunnel);
}

/* All that waits fits, since the host's credit is the buffer's size; only the free part may be at the front. */
static void keep(const struct agent *agent, struct tunnel *tunnel, const unsigned char *bytes, uint32_t count) {
    unsigned char *buffer = buffer_of(agent, tunnel);
    if (tunnel->offset + tunnel->length + count > TUNNEL_INPUT) {
        memmove(buffer, buffer + tunnel->offset, tunnel->length);
        tunnel->offset = 0;
    }
    memcpy(buffer + tunnel->offset + tunnel->length, bytes, count);
    tunnel->length += count;
    if (tunnel->offset + tunnel->length > tunnel->touched)
        tunnel->touched = tunnel->offset + tunnel->length;
}

static void take_data(struct agent *agent, struct tunnel *tunnel, const unsigned char *bytes, uint32_t count) {
    if (count > TUNNEL_INPUT - tunnel->outstanding)
        session_broken(agent, "more input than was granted");
    tunnel->outstanding += count;
    if (tunnel->ended || tunnel->shut) {
        consumed(tunnel, count);
        return;
    }
    uint32_t done = 0;
    if (tunnel->length == 0 && tunnel->state == TUNNEL_OPEN)
        done = write_some(tunnel, bytes, count);
    consumed(tunnel, done);
    if (done < count)
        keep(agent, tunnel, bytes + done, count - done);
    end_if_over(tunnel);
}

static void take_window(struct agent *agent, struct tunnel *tunnel, uint32_t credit) {
    if (credit > CREDIT_MAX - tunnel->credit)
        session_broken(agent, "a malformed WINDOW");
    tunnel->credit += credit;
    if (tunnel->waiting)
        agent->tunnels.waiting--;
    tunnel->waiting = false;
}

void tunnel_act(struct agent *agent, struct tunnel *tunnel, const struct frame *frame, const unsigned char *payload) {
    bool number = frame->type == FRAME_WINDOW || frame->type == FRAME_KILL;
    if (frame->type == FRAME_RESIZE || (number && frame->length != 4) || frame->flags != 0)
        session_broken(agent, "a malformed frame for a tunnel");
    if (frame->type == FRAME_KILL) {
        tunnel_end(tunnel, tunnel->state == TUNNEL_LISTENING ? 0 : ECONNABORTED);
        return;
    }
    if (tunnel->state == TUNNEL_LISTENING)
        session_broken(agent, "a frame that a listener has no use for");
    if (frame->type == FRAME_WINDOW) {
        take_window(agent, tunnel, get_u32(payload));
    } else if (frame->type == FRAME_DATA) {
        take_data(agent, tunnel, payload, frame->length);
    } else {
        tunnel->ended = true;
        finish_writing(tunnel);
    }
}

/* PROTOCOL.md 9.6: the host has the connection. Nothing of it went through here, and nothing of it ends here. */
void tunnel_taken(struct agent *agent, const struct frame *frame) {
    struct tunnel *tunnel = tunnel_find(agent, frame->channel);
    if (tunnel == NULL || !tunnel->target.lend || !tunnel->opened || tunnel->credit != 0 || tunnel->outstanding != 0 ||
        tunnel->ended || frame->length != 0 || frame->flags != 0)
        session_broken(agent, "a connection taken that was not lent");
    tunnel_end(tunnel, 0);
}

/* Moves up to one DATA frame to the output buffer. True when that was full: there may be more. */
static bool forward(struct agent *agent, struct tunnel *tunnel) {
    struct output *output = &agent->output;
    size_t want = tunnel->credit < DATA_MAX ? tunnel->credit : DATA_MAX;
    size_t room = output_room(output);
    if (want == 0 || room < READ_LEAST + FRAME_HEADER)
        return false;
    if (want > room - FRAME_HEADER)
        want = room - FRAME_HEADER;
    unsigned char *frame = output_tail(output);
    ssize_t got = untrusted_read(tunnel->fd, frame + FRAME_HEADER, want, tunnel->untrusted);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    if (got < 0) {
        tunnel_end(tunnel, errno);
    } else if (got == 0) {
        tunnel->read_all = true;
        tunnel->say_eof = true;
        end_if_over(tunnel);
    } else {
        frame_head(frame, (uint32_t)got, tunnel->id, FRAME_DATA, 1);
        output_add(output, FRAME_HEADER + (size_t)got);
        tunnel->credit -= (uint32_t)got;
    }
    return got == (ssize_t)DATA_MAX;
}

static bool may_read(struct agent *agent, const struct tunnel *tunnel) {
    return tunnel->opened && !tunnel->read_all && tunnel->credit > 0 && output_room(&agent->output) >= OUTPUT_SIZE / 2;
}

/* 0: nothing is to be waited for. */
short tunnel_events(struct agent *agent, const struct tunnel *tunnel) {
    switch (tunnel->state) {
    case TUNNEL_CONNECTING:
        return tunnel->retry_us == NEVER ? POLLOUT : 0;
    case TUNNEL_LISTENING:
        return tunnel->opened && tunnel_may_accept(agent) ? POLLIN : 0;
    case TUNNEL_OPEN:
        return (short)((may_read(agent, tunnel) ? POLLIN : 0) | (tunnel->length > 0 ? POLLOUT : 0));
    default:
        return 0;
    }
}

void tunnel_serve(struct agent *agent, struct tunnel *tunnel, short events) {
    if (tunnel->state == TUNNEL_CONNECTING && (events != 0 || tunnel->retry_us != NEVER))
        tunnel_connecting(agent, tunnel);
    else if (tunnel->state == TUNNEL_LISTENING && events != 0)
        tunnel_accept(agent, tunnel);
    if (tunnel->state == TUNNEL_OPEN && tunnel->length > 0 && (events & ~POLLIN) != 0)
        tunnel_drain(agent, tunnel);
    if (tunnel->state != TUNNEL_OPEN || (events & ~POLLOUT) == 0)
        return;
    for (unsigned i = 0; i < FRAMES_A_TURN && may_read(agent, tunnel) && forward(agent, tunnel); i++)
        ;
}

static bool add_number(struct agent *agent, const struct tunnel *tunnel, uint8_t type, uint32_t value) {
    unsigned char payload[4];
    if (!reply_room(agent, sizeof payload))
        return false;
    put_u32(payload, value);
    reply_frame(agent, tunnel->id, type, 0, payload, sizeof payload);
    return true;
}

static bool add_opened(struct agent *agent, const struct tunnel *tunnel) {
    unsigned char payload[4 + OFFER_SIZE];
    if (!reply_room(agent, sizeof payload))
        return false;
    unsigned char *at = put_u32(payload, tunnel->port);
    if (tunnel->target.lend)
        at = offer_put(at, tunnel->fd);
    reply_frame(agent, tunnel->id, FRAME_OPENED, 0, payload, (size_t)(at - payload));
    return true;
}

static bool add_eof(struct agent *agent, const struct tunnel *tunnel) {
    if (!reply_room(agent, 0))
        return false;
    reply_frame(agent, tunnel->id, FRAME_EOF, 1, "", 0);
    return true;
}

static bool add_error(struct agent *agent, const struct tunnel *tunnel) {
    const char *text = strerror(tunnel->error);
    bool scarce = tunnel->error == EMFILE || tunnel->error == ENFILE || tunnel->error == ENOBUFS;
    if (!reply_room(agent, 4 + strlen(text)))
        return false;
    reply_error(agent, tunnel->id, scarce ? ERROR_BUSY : ERROR_ADDRESS, (uint16_t)tunnel->error, text);
    return true;
}

/* In the order in which the host must hear it. True when its last frame is written. */
static bool reply(struct agent *agent, struct tunnel *tunnel) {
    if (tunnel->opening) {
        if (tunnel->accepted)
            tunnel->id = agent->tunnels.next_accepted;
        bool added = tunnel->accepted ? add_number(agent, tunnel, FRAME_ACCEPTED, tunnel->listener)
                                      : add_opened(agent, tunnel);
        if (!added)
            return false;
        agent->tunnels.next_accepted += tunnel->accepted;
        tunnel->opening = false;
        tunnel->opened = true;
    }
    if (tunnel->grant && tunnel->opened && add_number(agent, tunnel, FRAME_WINDOW, tunnel->owed)) {
        tunnel->outstanding -= tunnel->owed;
        tunnel->owed = 0;
        tunnel->grant = false;
    }
    if (tunnel->say_eof && add_eof(agent, tunnel))
        tunnel->say_eof = false;
    if (tunnel->state != TUNNEL_CLOSING || tunnel->say_eof)
        return false;
    return tunnel->opened ? add_number(agent, tunnel, FRAME_CLOSED, (uint32_t)tunnel->error) : add_error(agent, tunnel);
}

void tunnels_reply(struct agent *agent) {
    struct tunnels *tunnels = &agent->tunnels;
    for (unsigned i = tunnels->active_count; i-- > 0;)
        if (reply(agent, tunnels->active[i]))
            untake(agent, tunnels->active[i]);
}

void tunnels_drop(struct agent *agent) {
    struct tunnels *tunnels = &agent->tunnels;
    while (tunnels->active_count > 0) {
        tunnel_end(tunnels->active[0], ECONNABORTED);
        untake(agent, tunnels->active[0]);
    }
    tunnels->next_accepted = ACCEPTED_FIRST;
}

/* When one is to be served although poll reports nothing. */
int64_t tunnels_next(const struct agent *agent) {
    const struct tunnels *tunnels = &agent->tunnels;
    int64_t next = NEVER;
    for (unsigned i = 0; i < tunnels->active_count; i++)
        if (tunnels->active[i]->retry_us < next)
            next = tunnels->active[i]->retry_us;
    if (tunnels->accept_us != 0 && tunnels->accept_us < next && tunnels->accept_us > now_us())
        next = tunnels->accept_us;
    return next;
}
