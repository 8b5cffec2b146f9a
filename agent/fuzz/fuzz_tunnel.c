/*
 * Fuzzes target_parse and listen_parse: what a host asks for in CONNECT and LISTEN. `fuzz_tunnel SEED ROUNDS` makes its own
 * inputs, mostly almost right; with -DLIBFUZZER the same checks run under libFuzzer. Every input is a heap block of exactly
 * its size, so that AddressSanitizer sees each byte read too many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tunnel.h"
#include "../wire.h"
#include "fuzz.h"

#define INPUT_MAX 200u
#define OWN "sandboxkit-agent"

/* What target_parse promises when it says true. */
static void check_target(const struct target *target, size_t size) {
    const char *path = target->name.sun_path;
    const size_t head = offsetof(struct sockaddr_un, sun_path);
    check(target->window <= CREDIT_MAX, "a window within the limit");
    if (target->port != 0) {
        check(size == 8, "a port has no name");
        return;
    }
    check(target->name.sun_family == AF_UNIX, "a family");
    check(target->size > head + 1 && target->size <= sizeof target->name, "a name that fits");
    if (path[0] == '/') {
        check(path[target->size - head - 1] == '\0', "a path ends with NUL");
        check(strlen(path) == size - 8, "a path is all of the rest");
        return;
    }
    check(path[0] == '\0', "an abstract name is behind a NUL");
    check(target->size - head == size - 8, "an abstract name is all of the rest");
    check(memchr(path + 1, '\0', size - 9) == NULL, "no NUL in it");
    check(size - 9 != strlen(OWN) || memcmp(path + 1, OWN, strlen(OWN)) != 0, "never the agent's own");
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    struct target target;
    const char *why = NULL;
    uint16_t port = 0;
    unsigned char *copy = malloc(size > 0 ? size : 1);
    check(copy != NULL, "memory");
    memcpy(copy, bytes, size);
    if (target_parse(copy, size, &target, &why))
        check_target(&target, size);
    else
        check(why != NULL && *why != '\0', "a refusal has a reason");
    why = NULL;
    if (!listen_parse(copy, size, &port, &why))
        check(why != NULL && *why != '\0', "a refusal has a reason");
    else
        check(size == 4 && get_u16(copy) == port, "a port is the first number");
    free(copy);
    return 0;
}

#ifndef LIBFUZZER

static size_t make_input(unsigned char *bytes) {
    static const char *const names[] = {"/run/socket", "@" OWN, "@" OWN "2", "@name", "/", "@", "relative", ""};
    unsigned char *at = put_u32(bytes, below(20) == 0 ? (uint32_t)next() : below(1u << 20));
    uint32_t kind = below(20) == 0 ? below(256) : below(2);
    at = put_u8(at, (uint8_t)kind);
    at = put_u8(at, (uint8_t)(below(20) == 0));
    at = put_u16(at, (uint16_t)(kind == 1 && below(10) > 0 ? 0 : next()));
    const char *name = names[below(sizeof names / sizeof *names)];
    size_t length = kind == 1 || below(10) == 0 ? strlen(name) : 0;
    memcpy(at, name, length);
    at += length;
    if (kind == 1 && below(3) == 0)
        for (uint32_t left = below(130); left > 0; left--)
            *at++ = (unsigned char)(below(40) == 0 ? 0 : 'a' + below(26));
    size_t size = (size_t)(at - bytes);
    return below(10) == 0 ? below((uint32_t)size + 1) : size;
}

int main(int argc, char **argv) {
    static unsigned char bytes[INPUT_MAX];
    unsigned long rounds = fuzz_begin(argc, argv, 100000);
    for (unsigned long i = 0; i < rounds; i++)
        LLVMFuzzerTestOneInput(bytes, make_input(bytes));
    printf("%lu inputs\n", rounds);
    return 0;
}

#endif
