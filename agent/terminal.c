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

/* The agent's side: a new master, non-blocking; -1 with errno. */
int terminal_open(uint16_t rows, uint16_t columns) {
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0)
        return -1;
    int locked = 0;
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (ioctl(master, TIOCSPTLCK, &locked) == 0 && ioctl(master, TIOCSWINSZ, &size) == 0)
        return master;
    int error = errno;
    close(master);
    errno = error;
    return -1;
}

void terminal_resize(const struct channel *channel, uint16_t rows, uint16_t columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (channel->tty && channel->streams[0].fd >= 0 && ioctl(channel->streams[0].fd, TIOCSWINSZ, &size) != 0)
        complain("a terminal could not be resized", NULL);
}

/* The command's side, a session leader already: the other end of `master` becomes its terminal and descriptors 0 to 2. */
int terminal_enter(int master) {
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0) { /* before Linux 4.13 */
        unsigned number = 0;
        char path[32];
        struct text text = text_over(path, sizeof path);
        if (syscall(SYS_ioctl, master, TIOCGPTN, &number) != 0) /* its type differs between C libraries */
            return errno;
        text_add(&text, "/dev/pts/");
        text_add_u64(&text, number);
        slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) != 0)
        return errno;
    for (int fd = 0; fd <= 2; fd++)
        if (dup2(slave, fd) < 0)
            return errno;
    close(slave);
    return 0;
}
