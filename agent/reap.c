#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

static const char *folder_problem(const struct agent *agent, int error) {
    if (agent->workspace_errno != 0)
        return "The workspace folder of the agent cannot be opened.";
    switch (error) {
    case ENOENT:
        return "The working folder does not exist.";
    case ENOTDIR:
        return "The working folder is not a folder.";
    case EXDEV:
        return "The working folder leads outside the workspace.";
    case EACCES:
        return "Permission to enter the working folder is denied.";
    default:
        return "The working folder cannot be entered.";
    }
}

static void take_status(struct channel *channel, int32_t status, uint64_t ended, uint64_t cpu, uint64_t max_rss) {
    channel->status = status;
    channel->ended_us = ended;
    channel->cpu_us = cpu;
    channel->max_rss = max_rss;
    channel->exited = true;
    if (channel->reason == REASON_ITSELF)
        channel->deadline_us = NEVER;
}

/* The command's process has ended, and what its supervisor had to say about it is in the slot. */
static void command_ended(struct agent *agent, struct channel *channel) {
    const struct slot *slot = channel->slot;
    if (channel->state == CHANNEL_SPARE) {
        spare_drop(agent, slot->verdict == VERDICT_BUSY);
    }
    if (channel->state != CHANNEL_OPEN || channel->exited)
        return;
    switch (slot->verdict) {
    case VERDICT_CWD:
        exec_give_up(channel, ERROR_CWD, slot->verdict_errno, folder_problem(agent, slot->verdict_errno));
        return;
    case VERDICT_BUSY:
        exec_give_up(channel, ERROR_BUSY, slot->verdict_errno, "The process for the command could not be made.");
        return;
    case VERDICT_INTERNAL:
        exec_give_up(channel, ERROR_INTERNAL, slot->verdict_errno, "The process for the command could not be set up.");
        return;
    default:
        break;
    }
    if (slot->taken == 0 && channel->reason == REASON_ITSELF)
        exec_retry(agent, channel);
    else if (slot->ended != 0)
        take_status(channel, slot->status, slot->ended_us, slot->cpu_us, slot->max_rss);
    else /* nobody saw how it ended: it was killed together with its supervisor */
        take_status(channel, SIGKILL, (uint64_t)now_us(), 0, 0);
}

void control_serve(struct agent *agent, struct channel *channel) {
    while (channel->control >= 0) {
        char what = 0;
        ssize_t got = recv(channel->control, &what, 1, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got != 1) {
            fd_close(&channel->control);
            return;
        }
        if (what == CONTROL_STARTED)
            channel->started_pending = true;
        if (what != CONTROL_ALONE && what != CONTROL_OTHERS)
            continue;
        channel->tree_gone = what == CONTROL_ALONE;
        channel->others = what == CONTROL_OTHERS;
        command_ended(agent, channel);
        return; /* it says no more before it has another task */
    }
}

static void supervisor_gone(struct agent *agent, struct channel *channel, int status) {
    pid_t supervisor = channel->supervisor;
    control_serve(agent, channel); /* its last words */
    if (channel->supervisor != supervisor)
        return; /* they were that nothing ran, and another one is at it now */
    if (channel->state == CHANNEL_SPARE)
        spare_drop(agent, false);
    if (channel->state == CHANNEL_IDLE)
        spawn_unkeep(agent, channel);
    channel->supervisor = 0;
    if (agent->spare_scarce && channel->slot->verdict != VERDICT_BUSY)
        agent->spare_retry_us = 0;
    if (status == 0) { /* nothing was left to reap */
        channel->tree_gone = true;
        if (channel->state == CHANNEL_OPEN)
            command_ended(agent, channel);
        if (channel->state == CHANNEL_BEHIND)
            table_release(agent, channel);
        return;
    }
    /* Killed. Its orphans are the agent's children now, or will be: end.c kills them, then reap_settle is called. */
    channel->orphaned = true;
    agent->sweeping = true;
    agent->next_sweep_us = 0;
    agent->sweeps = 0;
}

/* A child that is no supervisor. If it is the command of a killed one, its end is the result, whoever killed it. */
static void orphan_gone(struct agent *agent, pid_t pid, int status, const struct rusage *usage) {
    for (unsigned i = 0; i < agent->active_count; i++) {
        struct channel *channel = agent->active[i];
        struct slot *slot = channel->slot;
        if (!channel->orphaned || slot->pid != (uint32_t)pid || slot->ended != 0)
            continue;
        slot->status = status;
        slot->ended_us = (uint64_t)now_us();
        slot->cpu_us = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000u +
                       (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
        slot->max_rss = (uint64_t)usage->ru_maxrss * 1024u;
        slot->ended = 1;
        return;
    }
}

void reap_children(struct agent *agent) {
    struct signalfd_siginfo pending;
    while (read(FD_SIGNALS, &pending, sizeof pending) > 0)
        ;
    for (;;) {
        int status = 0;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG | WUNTRACED | __WALL, &usage);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return;
        struct channel *channel = table_find_supervisor(agent, pid);
        if (WIFSTOPPED(status)) {
            if (channel != NULL || untrusted_is_closer(pid))
                kill(pid, SIGCONT); /* a command stopped it */
        } else if (channel != NULL) {
            supervisor_gone(agent, channel, status);
        } else if (untrusted_is_closer(pid)) {
            untrusted_closer_gone(status);
        } else {
            orphan_gone(agent, pid, status, &usage);
        }
    }
}

/* Every escapee is dead: the channels whose supervisor was killed can be settled. */
void reap_settle(struct agent *agent) {
    for (unsigned i = agent->active_count; i-- > 0;) {
        struct channel *channel = agent->active[i];
        if (!channel->orphaned)
            continue;
        channel->orphaned = false;
        channel->tree_gone = true;
        if (channel->state == CHANNEL_OPEN)
            command_ended(agent, channel);
        else
            table_release(agent, channel);
    }
}

/* Moves a command that has ended towards its EXIT. */
void channel_advance(struct agent *agent, struct channel *channel) {
    if (channel->process != NULL) {
        process_advance(agent, channel);
        return;
    }
    if (channel->state != CHANNEL_OPEN || !channel->exited || channel->finished)
        return;
    if (!channel->tree_gone && (channel->reason != REASON_ITSELF || channel->orphaned))
        return;
    if (!channel->measured) {
        streams_measure(channel);
        feed_close(channel);
    }
    for (unsigned i = 0; i < 2; i++)
        while (channel->streams[i].left > 0 && stream_forward(agent, channel, i))
            ;
    channel->finished = channel->streams[0].left == 0 && channel->streams[1].left == 0;
}
