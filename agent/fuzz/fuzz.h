/* What every fuzzer here needs: a check that ends it, and numbers at random that a seed repeats. */
#ifndef SANDBOXKIT_FUZZ_H
#define SANDBOXKIT_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

static uint64_t fuzz_state;

/* splitmix64 */
static inline uint64_t next(void) {
    uint64_t z = fuzz_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint32_t below(uint32_t limit) {
    return (uint32_t)(next() % limit);
}

/* `FUZZER SEED ROUNDS`: seeds the numbers; returns the rounds. */
static inline unsigned long fuzz_begin(int argc, char **argv, unsigned long rounds) {
    fuzz_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    return argc > 2 ? strtoul(argv[2], NULL, 10) : rounds;
}

#endif
