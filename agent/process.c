#include "process.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

/*
 * A managed process is a command without a channel number: its supervisor, its end and its tree are like any other's,
 * but its output goes into a journal, and its result stays here. It is nobody's in particular, so it outlives the host
 * that started it.
 */

enum process_flag {
    PROCESS_INPUT = 1,  /* its standard input is open */
    PROCESS_OTHERS = 2, /* the command has ended, processes of its tree live on */
};

struct start {
    uint32_t log_size;
    uint32_t most;
    struct request request;
    unsigned char *command; /* EXEC's payload */
    size_t command_size;
};

static bool start_parse(unsigned char *payload, size_t size, struct start *out, const char **why) {
    *why = "the START request is cut short, or too long";
    if (size < START_HEADER || size > START_MOST || get_u32(payload + 8) > size - START_HEADER)
        return false;
    out->log_size = get_u32(payload);
    out->most = get_u32(payload + 4);
    out->command = payload + START_HEADER + get_u32(payload + 8);
    out->command_size = size - (size_t)(out->command - payload);
    *why = "the size of a log is out of its range";
    if (out->log_size < JOURNAL_LEAST || out->log_size > JOURNAL_MOST)
        return false;
    if (!request_parse(out->command, out->command_size, &out->request, why))
        return false;
    *why = "a managed process has neither a terminal nor is it an applet";
    return (out->request.flags & ~(uint32_t)EXEC_STDIN) == 0;
}

static bool process_runs(const struct process *process) {
    return process->id != 0 && !process->ended && !process->failed;
}

static uint32_t running(const struct agent *agent) {
    uint32_t count = 0;
    if (agent->processes.last_id == 0)
        return 0;
    for (unsigned i = 0; i < PROCESSES; i++)
        count += process_runs(&agent->processes.table[i]);
    return count;
}

bool processes_run(const struct agent *agent) {
    return running(agent) > 0;
}

struct process *process_find(struct agent *agent, uint32_t id) {
    for (unsigned i = 0; i < PROCESSES && id != 0; i++) {
        struct process *process = &agent->processes.table[i];
        if (process->id == id && (process->proven || process->ended))
            return process;
    }
    return NULL;
}

/* What is left of its tree is like the background processes of any other command from now on. */
static void let_go(struct process *process) {
    struct channel *channel = process->channel;
    process->channel = NULL;
    if (channel == NULL)
        return;
    channel->process = NULL;
    channel->state = CHANNEL_BEHIND;
    channel->deadline_us = NEVER;
    channel->next_pass_us = NEVER;
}

void process_free(struct agent *agent, struct process *process) {
    calls_disown(agent, process);
    let_go(process);
    if (process->memory != NULL)
        munmap(process->memory, process->memory_size);
    agent->processes.memory -= process->memory_size;
    if (process->failed && process->id == agent->processes.last_id)
        agent->processes.last_id--; /* nobody has heard of it */
    *process = (struct process){0};
}

static bool forget_oldest(struct agent *agent) {
    struct process *oldest = NULL;
    for (unsigned i = 0; i < PROCESSES; i++) {
        struct process *process = &agent->processes.table[i];
        if (process->id != 0 && !process_runs(process) && (oldest == NULL || process->id < oldest->id))
            oldest = process;
    }
    if (oldest != NULL)
        process_free(agent, oldest);
    return oldest != NULL;
}

static struct process *free_place(struct agent *agent) {
    do {
        for (unsigned i = 0; i < PROCESSES; i++)
            if (agent->processes.table[i].id == 0)
                return &agent->processes.table[i];
    } while (forget_oldest(agent));
    return NULL;
}

/* A place with memory for log and request, for which the oldest that have ended are forgotten; or NULL. */
static struct process *take(struct agent *agent, uint32_t log_size, const unsigned char *payload, size_t size) {
    struct processes *processes = &agent->processes;
    size_t need = log_size + size;
    while (processes->memory + need > MEMORY_MOST)
        if (!forget_oldest(agent))
            return NULL;
    struct process *process = free_place(agent);
    if (process == NULL)
        return NULL;
    void *memory = mmap(NULL, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, need, MADV_DONTFORK); /* for supervisors it is nothing but pages to copy */
    *process = (struct process){.memory = memory, .memory_size = need, .request_size = (uint32_t)size};
    process->id = ++processes->last_id;
    processes->memory += need;
    journal_open(&process->journal, process->memory, log_size);
    memcpy(process->memory + log_size, payload, size);
    return process;
}

void process_start(struct agent *agent, uint32_t number, unsigned char *payload, size_t size) {
    struct start start;
    const char *why = "";
    if (!start_parse(payload, size, &start, &why)) {
        reply_refuse(agent, number, ERROR_INVALID, 0, why);
        return;
    }
    if (running(agent) >= start.most) {
        reply_refuse(agent, number, ERROR_LIMIT, 0, "As many managed processes as allowed are running.");
        return;
    }
    struct process *process = NULL;
    if (agent->processes.call_count < CALLS)
        process = take(agent, start.log_size, payload, size);
    if (process == NULL) {
        reply_refuse(agent, number, ERROR_BUSY, 0, "There is no room for another managed process.");
        return;
    }
    process->channel = exec_begin(agent, number, &start.request, start.command, start.command_size, process);
    process->failed = process->channel == NULL;
    if (process->failed)
        process_free(agent, process);
    else
        call_add(agent, number, CALL_START, process);
}

static void note_start(struct process *process) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    process->started_at = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    process->pid = process->channel->slot->pid;
}

/*
 * The pipe's other end was in the command's process alone, and closes on exec: so the program runs. Or the process has
 * ended before; then its verdict is there already, or it never took its request.
 */
void process_prove(struct channel *channel) {
    struct process *process = channel->process;
    char byte;
    ssize_t got = read(channel->proof, &byte, 1);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    fd_close(&channel->proof);
    if (process == NULL || channel->slot->taken == 0 || channel->slot->verdict != VERDICT_NONE)
        return;
    note_start(process);
    process->proven = true;
}

/* What there is, `most` at most, into the log. Returns how much. */
static size_t log_some(struct agent *agent, struct channel *channel, unsigned number, size_t most) {
    size_t got = stream_read(agent, &channel->streams[number], most);
    journal_add(&channel->process->journal, (uint8_t)(number + 1), agent->scratch, got);
    return got;
}

void process_log(struct agent *agent, struct channel *channel, unsigned number) {
    log_some(agent, channel, number, SCRATCH_SIZE);
}

/* What is in the pipes at this moment. */
static void log_rest(struct agent *agent, struct channel *channel) {
    streams_measure(channel);
    for (unsigned i = 0; i < 2; i++) {
        size_t left = channel->streams[i].left;
        for (size_t got = 1; left > 0 && got > 0; left -= got)
            got = log_some(agent, channel, i, left);
    }
}

static void note_end(struct agent *agent, struct channel *channel) {
    struct process *process = channel->process;
    process->error_code = channel->error_code;
    process->error_errno = channel->error_errno;
    process->error_text = channel->error_text;
    process->failed = channel->error_code != ERROR_NONE;
    if (!process->failed && channel->slot->verdict == VERDICT_NOT_RUN && !process->proven) {
        int code = (int)((unsigned)channel->status >> 8 & 0xff);
        process->error_code = code == LAUNCH_NOT_FOUND ? ERROR_NOT_FOUND : ERROR_NOT_EXECUTABLE;
        process->failed = true;
    }
    if (process->failed)
        return;
    if (!process->proven) /* killed before it ran */
        note_start(process);
    reply_ending(agent, channel, process->ending);
    process->ended = true;
}

/* Moves a process towards its end, in two steps: the command's own, and that of the last one of its tree. */
void process_advance(struct agent *agent, struct channel *channel) {
    struct process *process = channel->process;
    struct feed *feed = &channel->feed;
    feed->outstanding -= feed->owed; /* nobody is told: INPUT is answered when all is taken */
    feed->owed = 0;
    feed->grant = false;
    if (channel->state != CHANNEL_OPEN || !channel->exited || channel->orphaned)
        return;
    bool gone = channel->tree_gone || channel->error_code != ERROR_NONE;
    if (!gone && channel->reason != REASON_ITSELF && !process->ended)
        return;
    if (channel->proof >= 0) /* it ran for a moment only */
        process_prove(channel);
    if (!process->ended || gone)
        log_rest(agent, channel);
    if (!process->ended) {
        feed_close(channel);
        note_end(agent, channel);
    }
    if (gone)
        let_go(process);
}

unsigned char *process_put(const struct process *process, unsigned char *at) {
    const struct channel *channel = process->channel;
    unsigned flags = process->ended && channel != NULL ? PROCESS_OTHERS : 0;
    if (!process->ended && channel != NULL && channel->feed.fd >= 0 && !channel->feed.ended)
        flags |= PROCESS_INPUT;
    at = put_u32(at, process->id);
    at = put_u32(at, process->pid);
    at = put_u8(at, process->ended);
    at = put_u8(at, (uint8_t)flags);
    at = put_u16(at, 0);
    at = put_u32(at, process->journal.size);
    at = put_u64(at, process->started_at);
    at = put_u64(at, process->journal.first);
    at = put_u64(at, process->journal.last);
    memcpy(at, process->ending, ENDING_SIZE);
    return at + ENDING_SIZE;
}
