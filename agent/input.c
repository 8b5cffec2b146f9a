#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"

/*
 * Acts on every whole frame and moves the unfinished one to the front. A frame that is refused needs a place for its
 * ERROR; with none left the rest waits here (`stalled`) until the host has read some.
 */
static void act_on_frames(struct agent *agent) {
    struct input *input = &agent->input;
    size_t at = 0;
    for (;;) {
        input->stalled = agent->refusal_count == REFUSALS;
        if (input->stalled)
            break;
        struct frame frame = {0};
        const char *why = "";
        enum frame_verdict verdict = frame_read(input->bytes + at, input->length - at, &frame, &why);
        if (verdict == FRAME_BROKEN)
            session_broken(agent, why);
        if (verdict == FRAME_PARTIAL) {
            size_t here = input->length - at;
            if (here >= FRAME_HEADER &&
                frame_begin(agent, &frame, input->bytes + at + FRAME_HEADER, (uint32_t)(here - FRAME_HEADER)))
                at = input->length;
            break;
        }
        input->expects_bulk = frame_is_bulk(agent, &frame);
        frame_act(agent, &frame, input->bytes + at + FRAME_HEADER);
        at += FRAME_HEADER + (size_t)frame.length;
    }
    if (at > 0 && at < input->length)
        memmove(input->bytes, input->bytes + at, input->length - at);
    input->length -= at;
}

/* At the end of the input the session is told, and nothing was read. */
static size_t read_some(struct agent *agent, size_t limit) {
    struct input *input = &agent->input;
    ssize_t got = read(FD_INPUT, input->bytes + input->length, limit - input->length);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) {
        detached_host_gone(agent);
        return 0;
    }
    agent->detached.active = true;
    return (size_t)got;
}

/* The rest of a large DATA frame: moved if the pipe has room and the kernel can, else read like any other. */
static void bulk_serve(struct agent *agent) {
    struct input *input = &agent->input;
    struct channel *channel = table_find(agent, input->bulk);
    uint32_t moved = channel == NULL ? 0 : feed_splice(channel, FD_INPUT, input->bulk_left);
    if (moved > 0) {
        agent->detached.active = true;
        input->bulk_left -= moved;
        return;
    }
    size_t got = read_some(agent, input->bulk_left < INPUT_SOFT ? input->bulk_left : INPUT_SOFT);
    if (got > 0)
        frame_go_on(agent, input->bytes, (uint32_t)got);
}

/* How far reading may go: the unfinished frame's header is at the front, and says how long it is. */
static size_t reach(const struct input *input) {
    size_t frame = FRAME_HEADER;
    if (input->length >= FRAME_HEADER)
        frame += get_u32(input->bytes);
    return input->expects_bulk || frame > INPUT_SOFT ? frame : INPUT_SOFT;
}

void input_serve(struct agent *agent) {
    struct input *input = &agent->input;
    if (input->bulk_left > 0) {
        bulk_serve(agent);
        return;
    }
    if (input->stalled) {
        act_on_frames(agent);
        return;
    }
    size_t limit = reach(input);
    size_t got = read_some(agent, limit);
    if (got == 0)
        return;
    input->length += got;
    act_on_frames(agent);
    if (input->bulk_left > 0)
        bulk_serve(agent);
    if (limit > INPUT_SOFT && input->length <= INPUT_SOFT &&
        madvise(input->bytes + INPUT_SOFT, INPUT_SIZE - INPUT_SOFT, MADV_DONTNEED) != 0)
        complain("madvise", strerror(errno));
}
