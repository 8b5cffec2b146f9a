#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"

#define READ_LEAST 4096u        /* do not read less for want of room: wait for a flush */
#define ENLARGE_AFTER 1048576u
#define ENLARGED_PIPES 8u       /* at once: the kernel gives a user over its soft limit pipes of one page */
#define TERMINAL_REST 131072u   /* more than a terminal can hold */

void stream_close(struct agent *agent, struct stream *stream) {
    if (stream->enlarged)
        agent->enlarged--;
    stream->enlarged = false;
    stream->left = 0;
    fd_close(&stream->fd);
}

static void enlarge(struct agent *agent, struct stream *stream) {
    stream->moved = 0;
    if (stream->enlarged || agent->enlarged >= ENLARGED_PIPES)
        return;
    if (fcntl(stream->fd, F_SETPIPE_SZ, 1048576) < 0 && fcntl(stream->fd, F_SETPIPE_SZ, 262144) < 0)
        return;
    stream->enlarged = true;
    agent->enlarged++;
}

/* Moves up to one DATA frame to the output buffer. False when nothing can be moved now. */
bool stream_forward(struct agent *agent, struct channel *channel, unsigned number) {
    struct stream *stream = &channel->streams[number];
    struct output *output = &agent->output;
    size_t want = channel->credit < DATA_MAX ? channel->credit : DATA_MAX;
    if (channel->measured && stream->left < want)
        want = stream->left;
    size_t room = output_room(output);
    if (stream->fd < 0 || want == 0 || room < READ_LEAST + FRAME_HEADER)
        return false;
    if (want > room - FRAME_HEADER)
        want = room - FRAME_HEADER;
    unsigned char *frame = output_tail(output);
    ssize_t got = read(stream->fd, frame + FRAME_HEADER, want);
    if (got < 0 && errno == EINTR)
        return true;
    if (got < 0 && errno == EAGAIN) {
        if (channel->measured)
            stream->left = 0; /* someone else read it, or the rest of a terminal's estimate */
        return false;
    }
    if (got <= 0) { /* end of file; EIO: the last process has left the terminal */
        stream_close(agent, stream);
        return false;
    }
    uint32_t count = (uint32_t)got;
    frame_head(frame, count, channel->id, FRAME_DATA, (uint8_t)(number + 1));
    output_add(output, FRAME_HEADER + count);
    channel->credit -= count;
    stream->moved += count;
    if (channel->measured)
        stream->left -= count;
    else if (stream->moved > ENLARGE_AFTER && !channel->tty)
        enlarge(agent, stream);
    return true;
}

/* What is there now, `most` at most, into the scratch buffer. Returns how much; at its end the stream is closed. */
size_t stream_read(struct agent *agent, struct stream *stream, size_t most) {
    if (stream->fd < 0)
        return 0;
    ssize_t got = read(stream->fd, agent->scratch, most < SCRATCH_SIZE ? most : SCRATCH_SIZE);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        stream_close(agent, stream);
    return got > 0 ? (size_t)got : 0;
}

/*
 * The command has ended: exactly what is in its pipes now is still its output. Waiting for end of file instead would
 * let a background process that holds the pipe delay the result for ever. (The kernel hands a terminal's bytes over
 * late, so there the rest is read until it says there is none.)
 */
void streams_measure(struct channel *channel) {
    for (unsigned i = 0; i < 2; i++) {
        struct stream *stream = &channel->streams[i];
        int there = 0;
        if (stream->fd >= 0 && channel->tty)
            there = (int)TERMINAL_REST;
        else if (stream->fd >= 0 && ioctl(stream->fd, FIONREAD, &there) != 0)
            there = 0;
        stream->left = there > 0 ? (uint32_t)there : 0;
    }
    channel->measured = true;
}

int feed_descriptor(const struct channel *channel) {
    return channel->tty ? channel->streams[0].fd : channel->feed.fd;
}

static void feed_consumed(struct feed *feed, uint32_t count, bool all) {
    feed->owed += count;
    if (feed->owed >= feed->capacity / 4 || (all && feed->owed > 0))
        feed->grant = true;
}

static void feed_free(struct feed *feed) {
    free(feed->waiting);
    feed->waiting = NULL;
    feed->offset = 0;
    feed->length = 0;
}

/* What waits is not handed over, and counts as consumed. */
void feed_drop(struct channel *channel) {
    struct feed *feed = &channel->feed;
    feed_consumed(feed, feed->length, feed->length > 0);
    feed_free(feed);
}

/* The command will read no more. */
void feed_close(struct channel *channel) {
    feed_drop(channel);
    fd_close(&channel->feed.fd);
}

/* A terminal has no end of file: its end-of-file character does the same for a program that reads lines. */
static void feed_finish(struct channel *channel) {
    struct termios settings;
    if (channel->tty && channel->streams[0].fd >= 0 && tcgetattr(channel->streams[0].fd, &settings) == 0) {
        ssize_t ignored = write(channel->streams[0].fd, &settings.c_cc[VEOF], 1);
        (void)ignored; /* a full terminal: the program has more to read than it wants */
    }
    fd_close(&channel->feed.fd);
}

/* Writes what the descriptor takes now; returns how much, or `count` for a command that reads no more. */
static uint32_t feed_write(struct channel *channel, const unsigned char *bytes, uint32_t count) {
    uint32_t done = 0;
    int fd = feed_descriptor(channel);
    while (done < count && fd >= 0) {
        ssize_t wrote = write(fd, bytes + done, count - done);
        if (wrote >= 0)
            done += (uint32_t)wrote;
        else if (errno == EAGAIN)
            return done;
        else if (errno != EINTR)
            break;
    }
    if (done < count && !channel->tty)
        fd_close(&channel->feed.fd);
    return count;
}

void feed_data(struct channel *channel, const unsigned char *bytes, uint32_t count) {
    struct feed *feed = &channel->feed;
    feed->outstanding += count;
    feed->touched = true;
    uint32_t done = feed->length > 0 ? 0 : feed_write(channel, bytes, count);
    feed_consumed(feed, done, false);
    if (done == count)
        return;
    if (feed->waiting == NULL && (feed->waiting = malloc(feed->capacity)) == NULL) {
        complain("no memory for a command's input", NULL);
        feed_close(channel);
        feed_consumed(feed, count - done, true);
        return;
    }
    /* The host's credit is the capacity, so all that waits fits; only the free part may be at the front. */
    if (feed->offset + feed->length + (count - done) > feed->capacity) {
        memmove(feed->waiting, feed->waiting + feed->offset, feed->length);
        feed->offset = 0;
    }
    memcpy(feed->waiting + feed->offset + feed->length, bytes + done, count - done);
    feed->length += count - done;
}

/* Moves bytes from `from` on without copying them. Returns how many; 0: it does not go that way, or not now. */
uint32_t feed_splice(struct channel *channel, int from, uint32_t most) {
    struct feed *feed = &channel->feed;
    if (feed->fd < 0 || feed->length > 0 || feed->ended)
        return 0;
    ssize_t moved = splice(from, NULL, feed->fd, NULL, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (moved <= 0)
        return 0;
    feed->outstanding += (uint32_t)moved;
    feed->touched = true;
    feed_consumed(feed, (uint32_t)moved, false);
    return (uint32_t)moved;
}

void feed_ignore(struct channel *channel, uint32_t count) {
    channel->feed.outstanding += count;
    feed_consumed(&channel->feed, count, false);
}

void feed_end(struct channel *channel) {
    if (channel->feed.ended)
        return;
    channel->feed.ended = true;
    if (channel->feed.length == 0)
        feed_finish(channel);
}

void feed_drain(struct channel *channel) {
    struct feed *feed = &channel->feed;
    if (feed->length == 0)
        return;
    uint32_t done = feed_write(channel, feed->waiting + feed->offset, feed->length);
    feed->offset += done;
    feed->length -= done;
    feed_consumed(feed, done, feed->length == 0);
    if (feed->length > 0)
        return;
    feed_free(feed);
    if (feed->ended)
        feed_finish(channel);
}
