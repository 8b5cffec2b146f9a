#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

/* The other end of `master`; -1 with errno. */
static int open_peer(int master) {
    int peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    unsigned number = 0;
    char path[32];
    struct text text = text_over(path, sizeof path);
    /* Before Linux 4.13 by its name. The raw call, because the type of a request differs between C libraries. */
    if (peer >= 0 || syscall(SYS_ioctl, master, TIOCGPTN, &number) != 0)
        return peer;
    text_add(&text, "/dev/pts/");
    text_add_u64(&text, number);
    return open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

/*
 * A new terminal: the agent's end, which does not block, and the command's. The supervisor keeps the latter open too:
 * when nobody has it open, the agent's end reports its end, although a process may open /dev/tty again later.
 */
bool terminal_open(int *agents, int *commands, uint16_t rows, uint16_t columns) {
    int locked = 0;
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    *agents = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (*agents < 0 || ioctl(*agents, TIOCSPTLCK, &locked) != 0 || ioctl(*agents, TIOCSWINSZ, &size) != 0)
        return false;
    *commands = open_peer(*agents);
    return *commands >= 0;
}

void terminal_resize(const struct channel *channel, uint16_t rows, uint16_t columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (channel->tty && channel->streams[0].fd >= 0 && ioctl(channel->streams[0].fd, TIOCSWINSZ, &size) != 0)
        complain("a terminal could not be resized", NULL);
}
