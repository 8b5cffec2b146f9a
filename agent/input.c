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
        if (verdict == FRAME_PARTIAL)
            break;
        frame_act(agent, &frame, input->bytes + at + FRAME_HEADER);
        at += FRAME_HEADER + (size_t)frame.length;
    }
    if (at > 0 && at < input->length)
        memmove(input->bytes, input->bytes + at, input->length - at);
    input->length -= at;
}

void input_serve(struct agent *agent) {
    struct input *input = &agent->input;
    if (input->stalled) {
        act_on_frames(agent);
        return;
    }
    /* The unfinished frame's header is at the front, so its length says how far reading may go. */
    size_t limit = INPUT_SOFT;
    if (input->length >= FRAME_HEADER && get_u32(input->bytes) + FRAME_HEADER > limit)
        limit = get_u32(input->bytes) + FRAME_HEADER;
    ssize_t got = read(FD_INPUT, input->bytes + input->length, limit - input->length);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        detached_host_gone(agent);
        return;
    }
    agent->detached.active = true;
    input->length += (size_t)got;
    act_on_frames(agent);
    if (limit > INPUT_SOFT && input->length <= INPUT_SOFT &&
        madvise(input->bytes + INPUT_SOFT, INPUT_SIZE - INPUT_SOFT, MADV_DONTNEED) != 0)
        complain("madvise", strerror(errno));
}
