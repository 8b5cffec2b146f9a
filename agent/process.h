/* Managed processes, and the host's requests about them. PROTOCOL.md section 8. */
#ifndef SANDBOXKIT_PROCESS_H
#define SANDBOXKIT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "journal.h"
#include "wire.h"

#define PROCESSES 128u         /* that live, or are remembered */
#define CALLS 256u             /* requests that wait for their answer */
#define START_HEADER 16u
#define START_MOST 266240u     /* the payload of START: a process's request is kept as long as the process is known */
#define MEMORY_MOST 268435456u /* of all logs and requests */

struct agent;
struct channel;

struct process {
    uint32_t id; /* 0: a free place */
    uint32_t pid;
    struct channel *channel; /* NULL when no process of its tree is left */
    struct journal journal;
    unsigned char *memory;   /* the log's, and behind it START's payload */
    size_t memory_size;
    uint32_t request_size;
    uint64_t started_at;     /* microseconds since 1970 */
    bool proven;             /* the program runs, or ran */
    bool ended;              /* the command has, and its output is in the log; `ending` is set */
    bool failed;             /* it never ran, and its START waits to be told why */
    uint16_t error_code;
    uint16_t error_errno;
    const char *error_text;  /* NULL: the log is the reason */
    unsigned char ending[ENDING_SIZE];
};

enum call_kind {
    CALL_START, /* answered when the program runs */
    CALL_VIEW,
    CALL_INPUT, /* when the process's pipe has taken all */
    CALL_STOP,  /* when nothing of it is left */
    CALL_LIST,
};

enum view_flag {
    VIEW_NOWAIT = 1,  /* what is there, then the end */
    VIEW_TAIL = 2,    /* the cursor counts from the end backwards */
    VIEW_REQUEST = 4, /* START's payload in the place of the log */
    VIEW_END = 8,     /* nothing but the end */
};

struct call {
    uint32_t channel;
    uint8_t kind;
    uint8_t flags;
    bool killed;             /* the host wants its answer now */
    bool gone;               /* the process was forgotten meanwhile */
    struct process *process; /* NULL then, and where a LIST is of all */
    uint32_t credit;
    struct reader reader;
    uint64_t told;           /* the cursor that the host knows of */
    uint64_t until;          /* where to end */
};

struct processes {
    uint32_t last_id;
    size_t memory;
    uint16_t call_count;
    struct call calls[CALLS];
    struct process table[PROCESSES];
};

/* process.c */
void process_start(struct agent *agent, uint32_t number, unsigned char *payload, size_t size);
struct process *process_find(struct agent *agent, uint32_t id);
void process_free(struct agent *agent, struct process *process);
bool processes_run(const struct agent *agent);
unsigned char *process_put(const struct process *process, unsigned char *at);

/* A command's channel, when it is a process's. */
void process_prove(struct channel *channel);
void process_log(struct agent *agent, struct channel *channel, unsigned number);
void process_advance(struct agent *agent, struct channel *channel);

/* call.c */
struct call *call_add(struct agent *agent, uint32_t number, enum call_kind kind, struct process *process);
void call_open(struct agent *agent, const struct frame *frame, const unsigned char *payload);
struct call *call_find(struct agent *agent, uint32_t number);
void call_act(struct agent *agent, const struct frame *frame, const unsigned char *payload);
void calls_disown(struct agent *agent, const struct process *process);
void calls_forget(struct agent *agent);
void calls_reply(struct agent *agent);

#endif
