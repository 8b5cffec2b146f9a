#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

#define SPARE_KILLED_US 20000  /* until the next one: whoever killed it may do it again at once */
#define SPARE_SCARCE_US 500000 /* or until something ends */

static void ends_close(struct ends *ends) {
    fd_close(&ends->input);
    fd_close(&ends->output);
    fd_close(&ends->error);
    fd_close(&ends->control);
}

static void note_highest(struct agent *agent, int fd) {
    if (fd > agent->highest_fd)
        agent->highest_fd = fd;
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
    int control[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0)
        return false;
    channel->control = control[0];
    ends->control = control[1];
    note_highest(agent, control[1]);
    if (terminal != NULL) {
        bool open = terminal_open(&channel->streams[0].fd, &ends->input, terminal->rows, terminal->columns);
        note_highest(agent, ends->input);
        return open;
    }
    bool made = make_pipe(&channel->feed.fd, &ends->input, true) &&
                make_pipe(&channel->streams[0].fd, &ends->output, false) &&
                make_pipe(&channel->streams[1].fd, &ends->error, false);
    note_highest(agent, channel->streams[1].fd);
    note_highest(agent, ends->error);
    return made;
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

int spawn(struct agent *agent, struct channel *channel, const struct request *request) {
    struct ends ends = {.input = -1, .output = -1, .error = -1, .control = -1};
    bool tty = request != NULL && (request->flags & EXEC_TTY) != 0;
    int error = 0;
    pid_t pid = -1;
    channel->tty = tty;
    if (make_ends(agent, channel, tty ? request : NULL, &ends)) {
        oom_adjust(agent, agent->oom_adjust_own < 500 ? agent->oom_adjust_own + 500 : 1000);
        pid = fork();
        error = errno;
        if (pid == 0)
            supervisor_run(agent, channel, &ends);
        oom_adjust(agent, agent->oom_adjust_own);
    } else {
        error = errno;
    }
    ends_close(&ends);
    if (pid < 0) {
        channel_close_descriptors(agent, channel);
        return error;
    }
    channel->supervisor = pid;
    return 0;
}

static void retry_later(struct agent *agent, bool scarce) {
    agent->spare_scarce = scarce;
    agent->spare_retry_us = now_us() + (scarce ? SPARE_SCARCE_US : SPARE_KILLED_US);
}

void spawn_spare(struct agent *agent) {
    if (agent->spare != NULL || (agent->spare_retry_us != 0 && agent->spare_retry_us > now_us()))
        return;
    struct channel *channel = table_take(agent);
    if (channel == NULL)
        return;
    if (spawn(agent, channel, NULL) != 0) {
        table_release(agent, channel);
        retry_later(agent, true);
        return;
    }
    agent->spare_retry_us = 0;
    channel->state = CHANNEL_SPARE;
    agent->spare = channel;
}

/* The spare is of no use any more. Its entry goes when its supervisor has been reaped, or its orphans are dead. */
void spare_drop(struct agent *agent, bool scarce) {
    struct channel *channel = agent->spare;
    agent->spare = NULL;
    retry_later(agent, scarce);
    channel->state = CHANNEL_BEHIND;
    channel_close_descriptors(agent, channel); /* the command's process sees the end of its socket and exits */
}
