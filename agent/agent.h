/*
 * The agent's one state struct and what its files offer each other.
 *
 *   main.c       argument, setup, the loop           hello.c       the facts of HELLO
 *   loop.c       poll, who is served when, timers    cgroup.c      limits and the OOM counter
 *   input.c      bytes from the host → frames        table.c       channels: taking, finding, releasing
 *   frames.c     what each frame does                exec.c        EXEC: from the request to a running command
 *   output.c     frames → bytes to the host          spawn.c       supervisors, pipes; the spare
 *   reply.c      pending STARTED WINDOW EXIT ERROR   supervisor.c  runs in the supervisor process
 *   streams.c    command output and input            command.c     runs in the command's process, up to execve
 *   end.c        KILL, timeouts, escapees            launch.c      PATH search, and why a command cannot run
 *   reap.c       children that ended                 beneath.c     the working folder, resolved beneath the workspace
 *   tree.c       /proc walks and signals             terminal.c    pseudo-terminals
 *   wire.c request.c text.c   pure helpers
 *   memory.c     memcpy and its like, fast
 *   applet*.c    functions in the place of programs: see applet.h
 *   process.c    managed processes                call.c        the host's requests about them
 *   journal.c    their logs
 *   detached.c   without a stream, lifetimes         connect.c     the program's other mode
 *   tunnel*.c    connections with the host: see tunnel.h
 *   untrusted.c  descriptors that commands send
 *   shortcut.c   a stream without the engine
 *   hardening.c  user, capabilities, landlock        denylist.c    seccomp
 *
 * Three kinds of process run this program: the agent itself, a supervisor for each running command, and the command's
 * own process until it calls execve. They share nothing but `struct slot` and one socket for each command.
 */
#ifndef SANDBOXKIT_AGENT_H
#define SANDBOXKIT_AGENT_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "detached.h"
#include "hardening.h"
#include "process.h"
#include "request.h"
#include "text.h"
#include "tunnel.h"
#include "untrusted.h"
#include "wire.h"

#ifndef AGENT_BUILD
#define AGENT_BUILD "0000000000000000"
#endif

#define OPEN_CHANNELS 512u   /* commands that may run at once */
#define TABLE_SIZE 1025u     /* those, as many that only live on in the background, and the spare */
#define OUTPUT_SIZE 262144u  /* of the buffer towards the host */
#define OUTPUT_FLUSH 65536u  /* written to the host as soon as this much is there */
#define INPUT_SOFT 131072u   /* of the input buffer, unless one frame needs more */
#define BULK_LEAST 16384u    /* of a frame that is still to come: then it is not awaited whole */
#define INPUT_SIZE (HOST_FRAME_MAX + FRAME_HEADER)
#define FEED_MAX 65536u      /* PROTOCOL.md 4.2: the host's first credit, so the most that can wait for a command */
#define FEED_MAX_APPLET 1048576u
#define REFUSALS 256u
#define SCRATCH_SIZE 65536u
#define SLOT_SIZE 131072u
#define PIDS_SHOWN 64u
#define WALK_MAX 16384u      /* processes in one walk of a tree */
#define NEVER INT64_MAX

/* Descriptor numbers that every process of the agent keeps free for one purpose. */
enum fixed_fd {
    FD_INPUT = 0,
    FD_OUTPUT = 1,
    FD_DIAGNOSTICS = 2,
    FD_WORKSPACE = 3, /* O_PATH; of "/" when the workspace is missing */
    FD_SIGNALS = 4,   /* in the agent */
    FD_CONTROL = 4,   /* in a supervisor and a command before execve: the socket to the agent */
    FD_PROOF = 5,   /* in a managed process before execve, which closes it: see process_prove */
    FD_FIRST_FREE = 5,
};

/* Why a command's process gave up before execve. */
enum verdict {
    VERDICT_NONE = 0,
    VERDICT_NOT_RUN = 1,  /* it said why on stream 2 and exits 126 or 127 */
    VERDICT_CWD = 2,
    VERDICT_BUSY = 3,     /* the supervisor could not fork */
    VERDICT_INTERNAL = 4,
};

/*
 * The memory that the agent shares with one supervisor and its command until execve. Nobody else can reach it: those
 * processes are non-dumpable. Still the agent copies each number once and checks it before it acts on it.
 */
struct slot {
    _Atomic uint32_t pid;     /* of the command */
    _Atomic uint32_t taken;   /* 1 from just before execve: from here on the request must not be run again */
    _Atomic uint32_t ending;  /* 1 from just before the agent sends SIGTERM */
    _Atomic uint32_t ended;   /* 1 when the following four are there */
    int32_t status;           /* as from wait */
    uint64_t ended_us;
    uint64_t cpu_us;
    uint64_t max_rss;
    _Atomic uint32_t verdict;
    int32_t verdict_errno;
    uint32_t size;            /* of the request */
    unsigned char request[];
};
#define SLOT_REQUEST_MAX (SLOT_SIZE - (uint32_t)sizeof(struct slot))

/* What a supervisor or command sends over the control socket: one of these bytes, each a message. */
enum control {
    CONTROL_PIPES = 'P',    /* agent → supervisor: a task, with three descriptors */
    CONTROL_TERMINAL = 'T', /* agent → supervisor: a task, with a terminal */
    CONTROL_MANAGED = 'M',  /* agent → supervisor: a task, with three descriptors and the proof */
    CONTROL_GO = 'G',       /* agent → command: the request is in the slot */
    CONTROL_STARTED = 'S',  /* command → agent: about to call execve */
    CONTROL_ALONE = 'A',    /* supervisor → agent: the command ended, no other process of it is left */
    CONTROL_OTHERS = 'O',   /* supervisor → agent: the command ended, others live on */
};

enum channel_state {
    CHANNEL_FREE,
    CHANNEL_IDLE,   /* a supervisor without a task */
    CHANNEL_SPARE,  /* supervisor and process wait for a request */
    CHANNEL_OPEN,   /* the host knows it */
    CHANNEL_BEHIND, /* closed for the host; its supervisor is not reaped yet */
};

enum end_stage { END_NONE, END_GRACE, END_KILLING };

struct stream {
    int fd; /* -1 once it ended */
    bool enlarged;
    uint64_t moved;
    uint32_t left; /* once measured: bytes still to forward */
    int16_t poll_at;
};

/* Input on its way to the command. */
struct feed {
    int fd; /* -1: closed, or a terminal, whose master is streams[0].fd */
    unsigned char *waiting;
    uint32_t offset;
    uint32_t length;
    uint32_t capacity;    /* the credit that the host has when nothing is outstanding; so the most that can wait */
    uint32_t outstanding; /* sent by the host and not granted back */
    uint32_t owed;        /* of that, consumed: to be granted */
    bool grant;           /* send a WINDOW at the next chance */
    bool ended;           /* the host sent EOF, or never was to send anything */
    bool touched;         /* bytes were handed over: a lost command cannot be started again unnoticed */
    int16_t poll_at;
};

struct channel {
    uint8_t state;
    uint8_t reason;
    uint8_t stage;
    uint8_t attempts;
    bool tty;
    bool started_pending;
    bool exited;    /* the command's own end is known */
    bool others;    /* then: processes of it were alive at that moment */
    bool measured;  /* then: streams[].left is set */
    bool tree_gone; /* no process of it is left */
    bool tainted;   /* an applet used its supervisor's memory */
    bool orphaned;  /* its supervisor was killed: see end.c */
    bool finished;  /* everything but EXIT has been said */
    bool oom;
    uint16_t index;
    uint16_t active_at;
    int16_t poll_at;
    uint32_t id;
    pid_t supervisor; /* 0 once reaped */
    int control;
    struct process *process; /* of a managed one: then the channel has no number */
    int proof;
    int16_t proof_at;
    uint32_t credit;
    struct stream streams[2];
    struct feed feed;
    uint32_t grace_ms;
    int64_t started_us;
    int64_t deadline_us;  /* timeout, or the end of the grace */
    int64_t killing_us;   /* since when */
    int64_t next_pass_us;
    uint32_t passes;
    uint64_t oom_before;
    int32_t status;
    uint64_t ended_us;
    uint64_t cpu_us;
    uint64_t max_rss;
    uint16_t error_code;
    uint16_t error_errno;
    const char *error_text;
    struct slot *slot;
    unsigned char *large; /* the request, when it is too long for the slot */
    size_t large_size;
};

struct output {
    int fd;
    bool broken; /* the host does not read any more, for good */
    size_t head;
    size_t tail;
    unsigned char *bytes;
};

struct input {
    bool stalled; /* whole frames wait: there is no place for more refusals */
    bool expects_bulk;  /* the last frame was large: read the head of the next one alone */
    uint32_t bulk;      /* the channel of a large DATA frame whose payload is on its way to the command */
    uint32_t bulk_left; /* of it; 0: none is */
    size_t length;
    unsigned char *bytes;
};

/* An ERROR for a channel that never opened. */
struct refusal {
    uint32_t channel;
    uint16_t code;
    uint16_t error;
    const char *text;
};

/* PROTOCOL.md 3.4. All -1 unless said otherwise. */
struct shortcut {
    bool asked; /* by this host: once */
    bool offer_pending;
    int ours;   /* offered, and not taken yet */
    int theirs;
    int input;  /* the engine's stream; once the offer is taken it is watched for its end */
    int output;
};

struct agent {
    pid_t pid;
    int workspace_errno; /* 0: the workspace is there */
    struct rlimit nofile; /* as it was, for commands */
    struct rlimit core;   /* as it was, for HELLO */
    bool nofile_raised;
    bool children_files; /* /proc/PID/task/TID/children exists */
    int highest_fd;
    int oom_adjust_fd;
    int oom_adjust_own;
    int oom_events_fd;
    struct found found; /* by HELLO's no_new_privs and seccomp: the engine's doing */
    bool deny_list;
    int landlock; /* its version, or 0 */
    struct detached detached;
    struct shortcut shortcut;
    struct input input;
    struct output output;
    struct processes processes;
    bool hello_pending;
    bool pong_pending;
    bool configured;
    uint8_t pong_length;
    unsigned char pong[8];
    uint32_t last_channel;
    struct channel *spare;
    bool spare_scarce; /* no process or descriptor was left for one */
    int64_t spare_retry_us;
    int64_t idle_trim_us;
    uint16_t enlarged;  /* pipes made larger right now */
    bool sweeping;      /* there may be escapees */
    int64_t next_sweep_us;
    uint32_t sweeps;
    unsigned char *slots;
    unsigned char *scratch;
    pid_t *walked;
    uint16_t open_count;
    uint16_t active_count;
    uint16_t idle_count;
    uint16_t free_count;
    uint16_t turn; /* who is served first */
    uint16_t refusal_head;
    uint16_t refusal_count;
    struct refusal refusals[REFUSALS];
    struct tunnels tunnels;
    uint16_t free_list[TABLE_SIZE];
    struct channel *active[TABLE_SIZE];
    struct channel table[TABLE_SIZE];
};

/* loop.c */
int64_t now_us(void);
_Noreturn void loop_run(struct agent *agent);

/* input.c: reads what is there once and acts on every whole frame. Does not return when the host is gone. */
void input_serve(struct agent *agent);

/* frames.c. Does not return when the frame breaks a rule. */
void frame_act(struct agent *agent, const struct frame *frame, unsigned char *payload);
/* One for a command that reads, large enough to be moved by the kernel. */
bool frame_is_bulk(struct agent *agent, const struct frame *frame);
bool frame_begin(struct agent *agent, const struct frame *frame, const unsigned char *payload, uint32_t here);
void frame_go_on(struct agent *agent, const unsigned char *bytes, uint32_t count);

/* output.c */
size_t output_room(struct output *output);
unsigned char *output_tail(struct output *output);
void output_add(struct output *output, size_t count);
void output_flush(struct output *output);

/* reply.c */
void reply_refuse(struct agent *agent, uint32_t channel, uint16_t code, int error, const char *text);
void reply_session(struct agent *agent);
void reply_channel(struct agent *agent, struct channel *channel);
unsigned char *reply_ending(struct agent *agent, const struct channel *channel, unsigned char *at);
bool reply_room(struct agent *agent, size_t payload);
void reply_frame(struct agent *agent, uint32_t channel, uint8_t type, uint8_t flags, const void *payload, size_t size);
void reply_error(struct agent *agent, uint32_t channel, uint16_t code, uint16_t error, const char *text);

/* shortcut.c */
void shortcut_open(struct agent *agent);
void shortcut_offer(struct agent *agent);
/* OFFER_SIZE bytes: where `fd` is to be had, for the host to take; -1: nowhere. */
unsigned char *offer_put(unsigned char *at, int fd);
void shortcut_take(struct agent *agent);
void shortcut_withdraw(struct agent *agent);
void shortcut_forget(struct agent *agent);
void shortcut_hear_engine(struct agent *agent);

/* memory.c: memcpy(), memmove() and memset() of <string.h> */

/* hello.c */
size_t hello_write(struct agent *agent, unsigned char *at, size_t size);

/* cgroup.c */
void cgroup_open(struct agent *agent);
uint64_t cgroup_oom_kills(const struct agent *agent);
void cgroup_limit(const char *v2_file, const char *v1_controller, const char *v1_file, char *out, size_t size);

/* table.c */
void table_open(struct agent *agent);
struct channel *table_take(struct agent *agent);
void table_reuse(struct agent *agent, struct channel *channel);
void table_release(struct agent *agent, struct channel *channel);
struct channel *table_find(struct agent *agent, uint32_t id);
struct channel *table_find_supervisor(struct agent *agent, pid_t pid);
void channel_close_descriptors(struct agent *agent, struct channel *channel);
void fd_close(int *fd);
void note_highest(struct agent *agent, int fd); /* children close all up to there */

/* exec.c */
void exec_open(struct agent *agent, uint32_t id, unsigned char *payload, size_t size);
struct channel *exec_begin(struct agent *agent, uint32_t id, const struct request *request, const unsigned char *payload,
                           size_t size, struct process *process);
void exec_retry(struct agent *agent, struct channel *channel);
void exec_give_up(struct channel *channel, uint16_t code, int error, const char *text);

/* spawn.c */
struct channel *spawn_entry(struct agent *agent, bool fresh);
int spawn(struct agent *agent, struct channel *channel, const struct request *terminal);
bool spawn_keep(struct agent *agent, struct channel *channel);
void spawn_unkeep(struct agent *agent, struct channel *channel);
void spawn_dismiss(struct agent *agent, struct channel *channel);
void spawn_prepare(struct agent *agent);
int64_t spawn_next(const struct agent *agent);
void spare_drop(struct agent *agent, bool scarce);

/* supervisor.c, command.c: never return. */
_Noreturn void supervisor_run(struct agent *agent, struct channel *channel, int control);
_Noreturn void command_run(const struct agent *agent, const struct channel *channel, bool tty);

#define LAUNCH_PREFIX "sandboxkit: "
#define LAUNCH_NOT_FOUND 127

/* launch.c: execve with a PATH search. Returns the exit code, 126 or 127, after one line on descriptor 2. */
int launch(char **argv, char **envp);

/* The places where it looks for a program, one after the other. */
struct path_search {
    const char *name;
    bool direct;         /* the name has a slash and is the only place */
    const char *folders; /* the rest of PATH; NULL at the end */
};
struct path_search path_search(const char *name, char *const *envp);
bool path_search_next(struct path_search *search, char out[PATH_MAX]);

/* beneath.c: an O_PATH descriptor of a folder at or below `root`, or -1 with errno. */
int beneath_open(int root, const char *path);

/* streams.c */
void stream_close(struct agent *agent, struct stream *stream);
bool stream_forward(struct agent *agent, struct channel *channel, unsigned number);
size_t stream_read(struct agent *agent, struct stream *stream, size_t most);
void streams_measure(struct channel *channel);
void feed_data(struct channel *channel, const unsigned char *bytes, uint32_t count);
uint32_t feed_splice(struct channel *channel, int from, uint32_t most);
void feed_ignore(struct channel *channel, uint32_t count);
void feed_end(struct channel *channel);
void feed_drop(struct channel *channel);
void feed_drain(struct channel *channel);
void feed_close(struct channel *channel);
int feed_descriptor(const struct channel *channel);

/* terminal.c */
bool terminal_open(int *agents, int *commands, uint16_t rows, uint16_t columns);
void terminal_resize(const struct channel *channel, uint16_t rows, uint16_t columns);

/* end.c */
void end_begin(struct agent *agent, struct channel *channel, uint8_t reason, uint32_t grace_ms);
void end_timers(struct agent *agent, int64_t now);
int64_t end_next(const struct agent *agent);
_Noreturn void session_end(struct agent *agent, int code);
_Noreturn void session_broken(struct agent *agent, const char *why);

/* reap.c */
void reap_children(struct agent *agent);
void reap_settle(struct agent *agent);
void control_serve(struct agent *agent, struct channel *channel);
void channel_advance(struct agent *agent, struct channel *channel);

/* tree.c */
void tree_open(struct agent *agent);
size_t tree_walk(struct agent *agent, pid_t root, int signal);
size_t tree_list(struct agent *agent, pid_t root, uint32_t *pids, size_t most);
size_t tree_kill_unknown(struct agent *agent);

#endif
