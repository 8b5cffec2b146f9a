#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

/*
 * One buffer, filled at the tail and written from the head. Command output is read straight to its final place behind
 * a header, so it is copied once. Moving the rest to the front is worth it only when little is left.
 */
static void output_compact(struct output *output) {
    size_t waiting = output->tail - output->head;
    if (output->head == 0 || waiting > OUTPUT_SIZE / 4)
        return;
    memmove(output->bytes, output->bytes + output->head, waiting);
    output->head = 0;
    output->tail = waiting;
}

size_t output_room(struct output *output) {
    if (OUTPUT_SIZE - output->tail < DATA_MAX + FRAME_HEADER)
        output_compact(output);
    return OUTPUT_SIZE - output->tail;
}

unsigned char *output_tail(struct output *output) {
    return output->bytes + output->tail;
}

void output_add(struct output *output, size_t count) {
    output->tail += count;
}

void output_flush(struct output *output) {
    while (output->head < output->tail) {
        ssize_t wrote = write(output->fd, output->bytes + output->head, output->tail - output->head);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            output->broken = errno != EAGAIN;
            return;
        }
        output->head += (size_t)wrote;
    }
    output->head = 0;
    output->tail = 0;
}
