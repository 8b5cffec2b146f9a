#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

/*
 * Where commands' processes come from. A supervisor is forked once and gets tasks over its control socket: the
 * descriptors of one command each time. It makes the command's process at once, which then waits for a request. So
 * when EXEC comes, a process is there (the spare), and in a steady state the agent itself never forks.
 */

#define IDLE_BUSY 64u          /* supervisors kept without a task while commands come and go */
#define IDLE_KEPT 4u           /* and when none has ended for a while */
#define IDLE_TRIM_US 100000
#define SPARE_KILLED_US 20000  /* until the next one: whoever killed it may do it again at once */
#define SPARE_SCARCE_US 500000 /* or until something ends */

/* The ends that go to the command. A terminal is `input` alone. */
struct ends {
    int input;
    int output;
    int error;
    int proof; /* of a managed process */
};

static void ends_close(struct ends *ends) {
    fd_close(&ends->input);
    fd_close(&ends->output);
    fd_close(&ends->error);
    fd_close(&ends->proof);
}

/* One pipe whose agent's end does not block: the other one must, a command expects it. */
static bool make_pipe(int *agents, int *commands, bool to_command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *agents = ends[to_command ? 1 : 0];
    *commands = ends[to_command ? 0 : 1];
    return fcntl(*agents, F_SETFL, O_NONBLOCK) == 0;
}

static bool make_ends(struct agent *agent, struct channel *channel, const struct request *terminal, struct ends *ends) {
    bool made;
    if (terminal != NULL)
        made = terminal_open(&channel->streams[0].fd, &ends->input, terminal->rows, terminal->columns);
    else
        made = make_pipe(&channel->feed.fd, &ends->input, true) &&
               make_pipe(&channel->streams[0].fd, &ends->output, false) &&
               make_pipe(&channel->streams[1].fd, &ends->error, false);
    if (made && channel->process != NULL)
        made = make_pipe(&channel->proof, &ends->proof, false);
    note_highest(agent, channel->proof);
    note_highest(agent, channel->streams[0].fd);
    note_highest(agent, channel->streams[1].fd);
    return made;
}

/* 0, or an errno. The descriptors travel in the order of their numbers there. */
static int send_task(const struct channel *channel, const struct ends *ends) {
    const int fds[4] = {ends->input, ends->output, ends->error, ends->proof};
    bool proof = ends->proof >= 0;
    size_t count = channel->tty ? 1 : proof ? 4 : 3;
    char what = channel->tty ? CONTROL_TERMINAL : proof ? CONTROL_MANAGED : CONTROL_PIPES;
    struct iovec byte = {.iov_base = &what, .iov_len = 1};
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fds)] = {0};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = space};
    message.msg_controllen = (socklen_t)CMSG_SPACE(count * sizeof fds[0]); /* C libraries differ in the type */
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = (socklen_t)CMSG_LEN(count * sizeof fds[0]);
    memcpy(CMSG_DATA(header), fds, count * sizeof fds[0]);
    return sendmsg(channel->control, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : errno;
}

/*
 * Commands are to be the kernel's first choice when memory runs out. A non-dumpable process without privilege may not
 * open its own oom_score_adj, and making it dumpable even for a moment would open it to its siblings; but the value is
 * inherited. So the agent, which opened its file before it became non-dumpable, raises itself around the fork.
 */
static void oom_adjust(const struct agent *agent, int value) {
    char digits[8];
    struct text text = text_over(digits, sizeof digits);
    if (value < 0)
        text_add(&text, "-");
    text_add_u64(&text, (uint64_t)(value < 0 ? -value : value));
    if (agent->oom_adjust_fd >= 0 && pwrite(agent->oom_adjust_fd, text.bytes, text.length, 0) < 0)
        complain("oom_score_adj", strerror(errno));
}

/* 0, or an errno. */
static int make_supervisor(struct agent *agent, struct channel *channel) {
    int control[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0)
        return errno;
    channel->control = control[0];
    note_highest(agent, control[1]);
    oom_adjust(agent, agent->oom_adjust_own < 500 ? agent->oom_adjust_own + 500 : 1000);
    pid_t pid = fork();
    int error = errno;
    if (pid == 0)
        supervisor_run(agent, channel, control[1]);
    oom_adjust(agent, agent->oom_adjust_own);
    close(control[1]);
    if (pid < 0)
        return error;
    channel->supervisor = pid;
    return 0;
}

int spawn(struct agent *agent, struct channel *channel, const struct request *request) {
    struct ends ends = {.input = -1, .output = -1, .error = -1, .proof = -1};
    channel->tty = request != NULL && (request->flags & EXEC_TTY) != 0;
    int error = channel->supervisor != 0 ? 0 : make_supervisor(agent, channel);
    if (error == 0 && !make_ends(agent, channel, channel->tty ? request : NULL, &ends))
        error = errno;
    if (error == 0)
        error = send_task(channel, &ends);
    ends_close(&ends);
    if (error != 0)
        channel_close_descriptors(agent, channel); /* without its socket a supervisor ends */
    return error;
}

/* Of no use any more. The entry goes when its supervisor has been reaped, or its orphans are dead. */
void spawn_dismiss(struct agent *agent, struct channel *channel) {
    channel->state = CHANNEL_BEHIND;
    channel->tree_gone = true;
    channel_close_descriptors(agent, channel);
    if (channel->supervisor == 0)
        table_release(agent, channel);
}

void spawn_unkeep(struct agent *agent, struct channel *channel) {
    agent->idle_count--;
    channel->state = CHANNEL_BEHIND;
}

/* An entry with an idle supervisor, else a free entry, else NULL. */
struct channel *spawn_entry(struct agent *agent, bool fresh) {
    for (unsigned i = 0; i < agent->active_count && agent->idle_count > 0 && !fresh; i++) {
        struct channel *channel = agent->active[i];
        if (channel->state == CHANNEL_IDLE && channel->control >= 0) {
            spawn_unkeep(agent, channel);
            return channel;
        }
    }
    return table_take(agent);
}

/*
 * Keeps the supervisor of a channel that is over for another command. Only when all went by the book: the command
 * took its request and nothing of it outlived it.
 */
bool spawn_keep(struct agent *agent, struct channel *channel) {
    const struct slot *slot = channel->slot;
    bool clean = channel->tree_gone && !channel->others && !channel->orphaned && slot->taken != 0 && slot->ended != 0;
    if (!clean || channel->supervisor == 0 || channel->control < 0 || channel->large != NULL || channel->tainted ||
        agent->idle_count >= IDLE_BUSY)
        return false;
    table_reuse(agent, channel);
    channel->state = CHANNEL_IDLE;
    agent->idle_count++;
    agent->idle_trim_us = now_us() + IDLE_TRIM_US;
    if (agent->spare_scarce) /* there is room again, at least for a command */
        agent->spare_retry_us = 0;
    return true;
}

static void retry_later(struct agent *agent, bool scarce) {
    agent->spare_scarce = scarce;
    agent->spare_retry_us = now_us() + (scarce ? SPARE_SCARCE_US : SPARE_KILLED_US);
}

static void trim(struct agent *agent, int64_t now) {
    for (unsigned i = agent->active_count; i-- > 0 && agent->idle_count > IDLE_KEPT && agent->idle_trim_us <= now;) {
        struct channel *channel = agent->active[i];
        if (channel->state != CHANNEL_IDLE)
            continue;
        spawn_unkeep(agent, channel);
        spawn_dismiss(agent, channel);
    }
}

/* When spawn_prepare has something to do next. */
int64_t spawn_next(const struct agent *agent) {
    int64_t trimming = agent->idle_count > IDLE_KEPT ? agent->idle_trim_us : NEVER;
    int64_t retrying = agent->spare == NULL && agent->free_count > 0 ? agent->spare_retry_us : NEVER;
    return trimming < retrying ? trimming : retrying;
}

/* Off the critical path: sees to it that there is a spare, and not too many idle supervisors. */
void spawn_prepare(struct agent *agent) {
    trim(agent, now_us());
    if (agent->spare != NULL || (agent->spare_retry_us != 0 && agent->spare_retry_us > now_us()))
        return;
    struct channel *channel = spawn_entry(agent, false);
    if (channel == NULL)
        return;
    if (spawn(agent, channel, NULL) != 0) {
        spawn_dismiss(agent, channel);
        retry_later(agent, true);
        return;
    }
    agent->spare_retry_us = 0;
    channel->state = CHANNEL_SPARE;
    agent->spare = channel;
}

void spare_drop(struct agent *agent, bool scarce) {
    struct channel *channel = agent->spare;
    agent->spare = NULL;
    retry_later(agent, scarce);
    spawn_dismiss(agent, channel);
}
