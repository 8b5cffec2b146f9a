/* Holds the agent's memcpy, memmove and memset to the plainest loops: every size, offset and overlap up to a few words. */
#include <stdio.h>
#include <stdlib.h>

#include "memory.c" /* with the three names changed by the compiler's options */

#define AREA 512
#define LONGEST 200
#define SHIFT 70

static unsigned char area[AREA], wanted[AREA];

static void prepare(void) {
    for (int i = 0; i < AREA; i++)
        area[i] = wanted[i] = (unsigned char)(i * 37 + 11);
}

static void compare(const char *what, int to, int from, int count) {
    for (int i = 0; i < AREA; i++)
        if (area[i] != wanted[i]) {
            fprintf(stderr, "%s of %d bytes from %d to %d: byte %d is wrong\n", what, count, from, to, i);
            exit(1);
        }
}

static void check_move(int to, int from, int count) {
    unsigned char before[LONGEST];
    prepare();
    for (int i = 0; i < count; i++)
        before[i] = area[from + i];
    for (int i = 0; i < count; i++)
        wanted[to + i] = before[i];
    if (memmove(area + to, area + from, (size_t)count) != area + to)
        exit(2);
    compare("memmove", to, from, count);
}

static void check_others(int count) {
    static unsigned char other[LONGEST];
    prepare();
    for (int i = 0; i < count; i++)
        other[i] = wanted[i + 3] = (unsigned char)(count + i);
    memcpy(area + 3, other, (size_t)count);
    compare("memcpy", 3, 0, count);
    for (int i = 0; i < count; i++)
        wanted[i + 5] = 0xa5;
    memset(area + 5, 0xffa5, (size_t)count);
    compare("memset", 5, 0, count);
}

int main(void) {
    for (int count = 0; count < LONGEST; count++) {
        for (int shift = -SHIFT; shift <= SHIFT; shift++)
            check_move(100 + shift, 100, count);
        check_others(count);
    }
    puts("all are right");
    return 0;
}
