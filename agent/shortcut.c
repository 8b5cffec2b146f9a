#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

/*
 * A stream of the agent's own in the place of the engine's, PROTOCOL.md section 3.4. A host on the same machine that may
 * take a descriptor out of this process gets one end of a socket pair; nothing in the sandbox can (it is non-dumpable).
 * The engine's stream stays open, silent: it says how long the host is there, and the engine sees it end with us.
 */

void shortcut_open(struct agent *agent) {
    agent->shortcut = (struct shortcut){.ours = -1, .theirs = -1, .input = -1, .output = -1};
}

static void close_all(struct shortcut *shortcut) {
    fd_close(&shortcut->ours);
    fd_close(&shortcut->theirs);
    fd_close(&shortcut->input);
    fd_close(&shortcut->output);
}

/* What was not taken up to now is not taken any more. */
void shortcut_withdraw(struct agent *agent) {
    if (agent->shortcut.ours >= 0)
        close_all(&agent->shortcut);
}

void shortcut_forget(struct agent *agent) {
    close_all(&agent->shortcut);
    agent->shortcut.asked = false;
    agent->shortcut.offer_pending = false;
}

/* Keeps the engine's end `fd` under another number as well; nobody may think it ended. */
static int put_aside(struct agent *agent, int fd) {
    int aside = fcntl(fd, F_DUPFD_CLOEXEC, FD_FIRST_FREE);
    note_highest(agent, aside);
    return aside;
}

void shortcut_offer(struct agent *agent) {
    struct shortcut *shortcut = &agent->shortcut;
    const int much = 1048576;
    int ends[2];
    if (shortcut->asked || agent->last_channel != 0)
        session_broken(agent, "SHORTCUT in the wrong place");
    shortcut->asked = true;
    shortcut->offer_pending = true;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return;
    shortcut->ours = ends[0];
    shortcut->theirs = ends[1];
    note_highest(agent, ends[1]);
    for (unsigned i = 0; i < 2; i++) /* as much as the kernel lets it be: fewer turns for what is large */
        setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    /* Now, as the host cannot be told any more that no descriptor is left once it has taken its own. */
    shortcut->input = put_aside(agent, FD_INPUT);
    shortcut->output = put_aside(agent, FD_OUTPUT);
    if (shortcut->input < 0 || shortcut->output < 0 || fcntl(shortcut->ours, F_SETFL, O_NONBLOCK) != 0)
        shortcut_withdraw(agent);
}

unsigned char *offer_put(unsigned char *at, int fd) {
    struct stat facts = {0};
    bool here = fd >= 0 && fstat(fd, &facts) == 0;
    return put_u64(put_u32(at, here ? (uint32_t)fd : NO_DESCRIPTOR), facts.st_ino);
}

/*
 * The host's first bytes came on it, so it has its end. From now on that is the host. Ours of its end has to go, or the
 * end of the host would not be seen.
 */
void shortcut_take(struct agent *agent) {
    struct shortcut *shortcut = &agent->shortcut;
    if (agent->input.length != 0 || agent->input.bulk_left != 0 || agent->output.tail != agent->output.head)
        session_broken(agent, "frames on the engine's stream after the shortcut was taken");
    detached_put_host(shortcut->ours);
    shortcut->ours = -1;
    fd_close(&shortcut->theirs);
}

/* The engine's stream has ended, or says what it may not say any more. */
void shortcut_hear_engine(struct agent *agent) {
    char byte;
    ssize_t got = read(agent->shortcut.input, &byte, 1);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        session_broken(agent, "bytes on the engine's stream after the shortcut was taken");
    detached_host_gone(agent);
}
