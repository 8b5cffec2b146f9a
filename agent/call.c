#include <string.h>

#include "agent.h"

/*
 * The host's requests about managed processes, each on a channel of its own: state, not a queue, like the rest of what
 * the agent owes. Each ends with one PROCESS or ERROR.
 */

#define RECORD_SIZE (40u + ENDING_SIZE)
#define ANSWER_MAX (PROCESSES * RECORD_SIZE)
#define REASON_MAX 480u

struct call *call_find(struct agent *agent, uint32_t number) {
    struct processes *processes = &agent->processes;
    for (unsigned i = 0; i < processes->call_count; i++)
        if (processes->calls[i].channel == number)
            return &processes->calls[i];
    return NULL;
}

/* NULL after a refusal. */
struct call *call_add(struct agent *agent, uint32_t number, enum call_kind kind, struct process *process) {
    struct processes *processes = &agent->processes;
    if (processes->call_count == CALLS) {
        reply_refuse(agent, number, ERROR_BUSY, 0, "Too many requests wait for an answer.");
        return NULL;
    }
    struct call *call = &processes->calls[processes->call_count++];
    *call = (struct call){.channel = number, .kind = (uint8_t)kind, .process = process, .told = UINT64_MAX};
    return call;
}

/* Where a view begins and ends. */
static void view_place(struct call *call, uint64_t cursor, uint64_t length) {
    const struct journal *journal = &call->process->journal;
    uint8_t stream;
    call->until = UINT64_MAX;
    if ((call->flags & VIEW_REQUEST) != 0) {
        call->until = call->process->request_size;
        call->reader.cursor = cursor < call->until ? cursor : call->until;
    } else {
        if ((call->flags & VIEW_TAIL) != 0)
            cursor = journal->last > cursor ? journal->last - cursor : 0;
        call->reader = journal_seek(journal, cursor);
        journal_next(journal, &call->reader, &stream);
        if ((call->flags & VIEW_NOWAIT) != 0)
            call->until = journal->last;
    }
    if (length != 0 && length < call->until - call->reader.cursor)
        call->until = call->reader.cursor + length;
}

static void open_view(struct agent *agent, uint32_t number, const unsigned char *payload, struct process *process) {
    struct call *call = call_add(agent, number, CALL_VIEW, process);
    if (call == NULL)
        return;
    call->flags = (uint8_t)(get_u32(payload + 4) & 0xffu);
    call->credit = get_u32(payload + 8);
    view_place(call, get_u64(payload + 16), get_u64(payload + 24));
}

static bool input_is_busy(const struct agent *agent, const struct process *process) {
    for (unsigned i = 0; i < agent->processes.call_count; i++) {
        const struct call *call = &agent->processes.calls[i];
        if (call->kind == CALL_INPUT && call->process == process && !call->killed)
            return true;
    }
    return process->channel->feed.length > 0; /* of a host before */
}

static void open_input(struct agent *agent, const struct frame *frame, const unsigned char *payload,
                       struct process *process) {
    struct channel *channel = process->channel;
    if (process->ended || channel == NULL || channel->feed.fd < 0 || channel->feed.ended) {
        reply_refuse(agent, frame->channel, ERROR_CLOSED, 0, "The process's standard input is closed.");
        return;
    }
    if (input_is_busy(agent, process)) {
        reply_refuse(agent, frame->channel, ERROR_BUSY, 0, "The process has not taken its last input yet.");
        return;
    }
    if (call_add(agent, frame->channel, CALL_INPUT, process) == NULL)
        return;
    feed_data(channel, payload + 8, frame->length - 8);
    if ((get_u32(payload + 4) & 1u) != 0)
        feed_end(channel);
}

static bool is_sound(const struct frame *frame, const unsigned char *payload) {
    switch (frame->type) {
    case FRAME_VIEW:
        return frame->length == 32 && get_u32(payload + 4) <= 15 && get_u32(payload + 8) <= CREDIT_MAX;
    case FRAME_INPUT:
        return frame->length >= 8 && frame->length <= 8 + FEED_MAX && get_u32(payload + 4) <= 1;
    case FRAME_STOP:
        return frame->length == 8;
    default: /* FRAME_LIST */
        return frame->length == 4;
    }
}

void call_open(struct agent *agent, const struct frame *frame, const unsigned char *payload) {
    if (!is_sound(frame, payload)) {
        reply_refuse(agent, frame->channel, ERROR_INVALID, 0, "The request does not parse.");
        return;
    }
    uint32_t id = get_u32(payload);
    struct process *process = process_find(agent, id);
    if (process == NULL && (id != 0 || frame->type != FRAME_LIST)) {
        reply_refuse(agent, frame->channel, ERROR_UNKNOWN, 0, "There is no such process.");
        return;
    }
    switch (frame->type) {
    case FRAME_VIEW:
        open_view(agent, frame->channel, payload, process);
        return;
    case FRAME_INPUT:
        open_input(agent, frame, payload, process);
        return;
    case FRAME_STOP:
        if (call_add(agent, frame->channel, CALL_STOP, process) != NULL && process->channel != NULL)
            end_begin(agent, process->channel, REASON_KILL, get_u32(payload + 4));
        return;
    default:
        call_add(agent, frame->channel, CALL_LIST, process);
        return;
    }
}

/* A frame for a channel that is no command's. */
void call_act(struct agent *agent, const struct frame *frame, const unsigned char *payload) {
    struct call *call = call_find(agent, frame->channel);
    if (call == NULL)
        return; /* crossed with its answer */
    if ((frame->type != FRAME_WINDOW && frame->type != FRAME_KILL) || frame->length != 4)
        session_broken(agent, "a frame that a request about a process does not take");
    uint32_t value = get_u32(payload);
    if (frame->type == FRAME_WINDOW) {
        if (value > CREDIT_MAX - call->credit)
            session_broken(agent, "a malformed WINDOW");
        call->credit += value;
        return;
    }
    struct channel *channel = call->process == NULL ? NULL : call->process->channel;
    if (call->kind == CALL_START && channel != NULL) {
        end_begin(agent, channel, REASON_KILL, value);
        return;
    }
    if (call->kind == CALL_INPUT && channel != NULL && channel->feed.ended)
        feed_close(channel); /* its end was to come behind the bytes */
    else if (call->kind == CALL_INPUT && channel != NULL)
        feed_drop(channel);
    call->killed = true;
}

void calls_disown(struct agent *agent, const struct process *process) {
    for (unsigned i = 0; i < agent->processes.call_count; i++) {
        struct call *call = &agent->processes.calls[i];
        if (call->process == process) {
            call->process = NULL;
            call->gone = true;
        }
    }
}

void calls_forget(struct agent *agent) {
    agent->processes.call_count = 0;
}

/* Moves up to one DATA frame to the output buffer, and before it the cursor if that has jumped. Returns its size. */
static size_t view_send(struct agent *agent, struct call *call) {
    struct output *output = &agent->output;
    const struct process *process = call->process;
    bool is_request = (call->flags & VIEW_REQUEST) != 0;
    size_t room = output_room(output);
    uint8_t stream = 1;
    if (room < OUTPUT_SIZE / 2)
        return 0;
    size_t count = is_request ? process->request_size - (size_t)call->reader.cursor
                              : journal_next(&process->journal, &call->reader, &stream);
    uint64_t cursor = call->reader.cursor;
    uint64_t left = cursor < call->until ? call->until - cursor : 0;
    /* Without credit it may well be overtaken again before the next byte. */
    if (cursor != call->told && (call->credit > 0 || call->told == UINT64_MAX || left == 0)) {
        unsigned char place[8];
        put_u64(place, cursor);
        reply_frame(agent, call->channel, FRAME_CURSOR, 0, place, sizeof place);
        call->told = cursor;
    }
    if (count > left)
        count = (size_t)left;
    if (count > call->credit)
        count = call->credit;
    if (count > DATA_MAX)
        count = DATA_MAX;
    if (count == 0)
        return 0;
    unsigned char *payload = frame_head(output_tail(output), (uint32_t)count, call->channel, FRAME_DATA, stream);
    if (is_request) {
        memcpy(payload, process->memory + process->journal.size + cursor, count);
        call->reader.cursor += count;
    } else {
        journal_read(&process->journal, &call->reader, payload, count);
    }
    output_add(output, FRAME_HEADER + count);
    call->credit -= (uint32_t)count;
    call->told += count;
    return count;
}

static bool is_view(const struct call *call) {
    return call->kind == CALL_VIEW && !call->killed && !call->gone && (call->flags & VIEW_END) == 0;
}

static bool is_over(const struct call *call) {
    const struct process *process = call->process;
    if (call->killed || call->gone || call->kind == CALL_LIST)
        return true;
    switch (call->kind) {
    case CALL_START:
        return process->proven || process->ended || process->failed;
    case CALL_INPUT:
        return process->ended || process->channel->feed.length == 0;
    case CALL_STOP:
        return process->ended && process->channel == NULL;
    default:
        break;
    }
    if ((call->flags & VIEW_END) != 0)
        return process->ended;
    bool all_told = call->told == call->reader.cursor;
    bool at_end = (call->flags & VIEW_REQUEST) == 0 && process->ended && call->reader.cursor == process->journal.last;
    return all_told && (call->reader.cursor >= call->until || at_end);
}

/* The line that the launcher wrote, without its prefix and its end. */
static void fail_with_log(struct agent *agent, const struct call *call) {
    static const char prefix[] = LAUNCH_PREFIX;
    const struct process *process = call->process;
    char text[REASON_MAX + 1];
    uint8_t stream;
    struct reader reader = journal_seek(&process->journal, 0);
    size_t count = journal_next(&process->journal, &reader, &stream);
    if (count > REASON_MAX)
        count = REASON_MAX;
    journal_read(&process->journal, &reader, (unsigned char *)text, count);
    while (count > 0 && text[count - 1] == '\n')
        count--;
    text[count] = '\0';
    size_t skip = strncmp(text, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    reply_error(agent, call->channel, process->error_code, process->error_errno, text + skip);
}

static void fail(struct agent *agent, const struct call *call) {
    struct process *process = call->process;
    if (process->error_text == NULL)
        fail_with_log(agent, call);
    else
        reply_error(agent, call->channel, process->error_code, process->error_errno, process->error_text);
}

/* The process will take no more of it. */
static bool input_failed(const struct call *call) {
    const struct channel *channel = call->process->channel;
    return channel == NULL || call->process->ended || (channel->feed.fd < 0 && !channel->feed.ended);
}

static void answer(struct agent *agent, const struct call *call) {
    unsigned char records[ANSWER_MAX];
    unsigned char *at = records;
    if (call->gone) {
        reply_error(agent, call->channel, ERROR_UNKNOWN, 0, "The process has been forgotten.");
        return;
    }
    if (call->kind == CALL_START && call->process->failed) {
        fail(agent, call);
        return;
    }
    if (call->kind == CALL_INPUT && !call->killed && input_failed(call)) {
        reply_error(agent, call->channel, ERROR_CLOSED, 0, "The process has ended, or closed its standard input.");
        return;
    }
    if (call->process != NULL)
        at = process_put(call->process, at);
    for (unsigned i = 0; i < PROCESSES && call->process == NULL; i++) {
        const struct process *process = &agent->processes.table[i];
        if (process->proven || process->ended)
            at = process_put(process, at);
    }
    reply_frame(agent, call->channel, FRAME_PROCESS, 0, records, (size_t)(at - records));
}

static void close_call(struct agent *agent, unsigned at) {
    struct processes *processes = &agent->processes;
    struct process *process = processes->calls[at].process;
    bool failed = process != NULL && processes->calls[at].kind == CALL_START && process->failed;
    processes->calls[at] = processes->calls[--processes->call_count];
    if (failed)
        process_free(agent, process);
}

void calls_reply(struct agent *agent) {
    struct processes *processes = &agent->processes;
    for (unsigned i = 0; i < processes->call_count; i++) {
        struct call *call = &processes->calls[(i + agent->turn) % processes->call_count];
        for (size_t sent = 0, some = 1; is_view(call) && sent < OUTPUT_FLUSH && some > 0; sent += some)
            some = view_send(agent, call);
    }
    for (unsigned i = processes->call_count; i-- > 0;)
        if (is_over(&processes->calls[i]) && reply_room(agent, ANSWER_MAX)) {
            answer(agent, &processes->calls[i]);
            close_call(agent, i);
        }
}
