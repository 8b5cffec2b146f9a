#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

/*
 * Ends: KILL, timeouts, the escapees of a killed supervisor, and the end of the session.
 *
 * A SIGKILL once sent cannot be escaped, and a process that has one pending can no longer fork. So each pass kills
 * from the top down, reading a process's children only after it was killed: what it forked before is in the list, and
 * afterwards it forks no more. What a pass misses are children of a process that died before its list was read; they
 * have fallen to the supervisor by the next pass. So passes are repeated until the supervisor says nothing is left.
 */

#define PASS_US 1000
#define PASS_SLOW_US 20000
#define PASSES_FAST 200u
#define SUPERVISOR_PATIENCE_US 100000

static int64_t pass_interval(uint32_t passes) {
    return passes < PASSES_FAST ? PASS_US : PASS_SLOW_US; /* something cannot die: do not burn time on it */
}

static void signal_group(const struct channel *channel, int signal) {
    uint32_t pid = channel->slot->pid;
    if (!channel->exited && pid > 1 && pid <= INT32_MAX)
        kill(-(pid_t)pid, signal);
}

static void kill_pass(struct agent *agent, struct channel *channel, int64_t now) {
    signal_group(channel, SIGKILL); /* the common case in one step */
    if (channel->supervisor != 0) {
        tree_walk(agent, channel->supervisor, SIGKILL);
        /* It should have seen the end by now; if it is stuck, what is under it dies as escapees. */
        if (now - channel->killing_us > SUPERVISOR_PATIENCE_US)
            kill(channel->supervisor, SIGKILL);
    }
    channel->next_pass_us = now_us() + pass_interval(channel->passes++);
}

static void begin_killing(struct agent *agent, struct channel *channel, int64_t now) {
    channel->stage = END_KILLING;
    channel->deadline_us = NEVER;
    channel->killing_us = now;
    kill_pass(agent, channel, now);
}

/* True when there is nothing to end: the command ended by itself and left nobody behind. */
static bool is_over(const struct channel *channel) {
    return channel->finished || (channel->exited && channel->tree_gone);
}

void end_begin(struct agent *agent, struct channel *channel, uint8_t reason, uint32_t grace_ms) {
    if (is_over(channel) || channel->stage == END_KILLING)
        return;
    int64_t now = now_us();
    if (channel->stage == END_NONE)
        channel->reason = reason;
    if (grace_ms == 0) {
        begin_killing(agent, channel, now);
        return;
    }
    int64_t deadline = now + (int64_t)grace_ms * 1000;
    if (channel->stage == END_NONE) {
        channel->slot->ending = 1;
        /* Once each: programs take a second one for impatience, and shells run their trap twice. */
        tree_walk(agent, channel->supervisor, SIGTERM);
        channel->stage = END_GRACE;
        channel->deadline_us = deadline;
    } else if (deadline < channel->deadline_us) {
        channel->deadline_us = deadline;
    }
}

static void channel_timers(struct agent *agent, struct channel *channel, int64_t now) {
    if (channel->state != CHANNEL_OPEN || is_over(channel)) {
        channel->deadline_us = NEVER;
        channel->next_pass_us = NEVER;
        return;
    }
    if (channel->deadline_us <= now) {
        if (channel->stage == END_GRACE)
            begin_killing(agent, channel, now);
        else
            end_begin(agent, channel, REASON_TIMEOUT, channel->grace_ms);
    }
    if (channel->next_pass_us <= now)
        kill_pass(agent, channel, now);
}

static void sweep(struct agent *agent) {
    reap_children(agent);
    if (tree_kill_unknown(agent) == 0) {
        agent->sweeping = false;
        reap_settle(agent);
        return;
    }
    agent->next_sweep_us = now_us() + pass_interval(agent->sweeps++);
}

void end_timers(struct agent *agent, int64_t now) {
    for (unsigned i = 0; i < agent->active_count; i++)
        channel_timers(agent, agent->active[i], now);
    if (agent->sweeping && agent->next_sweep_us <= now)
        sweep(agent);
}

/* When end_timers has something to do next. */
int64_t end_next(const struct agent *agent) {
    int64_t next = agent->sweeping ? agent->next_sweep_us : NEVER;
    for (unsigned i = 0; i < agent->active_count; i++) {
        const struct channel *channel = agent->active[i];
        if (channel->deadline_us < next)
            next = channel->deadline_us;
        if (channel->next_pass_us < next)
            next = channel->next_pass_us;
    }
    return next;
}

/* As PID 1 the exit is enough: the kernel kills the rest. */
_Noreturn void session_end(struct agent *agent, int code) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const struct timespec pause = {.tv_nsec = PASS_US * 1000};
    while (agent->pid != 1) {
        pid_t pid;
        tree_walk(agent, agent->pid, SIGKILL);
        while ((pid = wait4(-1, NULL, WNOHANG | __WALL, NULL)) > 0)
            ;
        if (pid < 0)
            break;
        sigtimedwait(&child, NULL, &pause);
    }
    _exit(code);
}

_Noreturn void session_broken(struct agent *agent, const char *why) {
    complain("the host broke the protocol", why);
    session_end(agent, 64);
}
