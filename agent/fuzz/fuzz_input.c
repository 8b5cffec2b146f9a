/*
 * Fuzzes what reads the host's bytes: frame_read, request_parse and what builds argv and envp from a request.
 *
 * By itself it makes its inputs: `fuzz_input SEED ROUNDS`. It begins with valid frames and damages them, so that most
 * get past the first checks. With -DLIBFUZZER and clang -fsanitize=fuzzer the same checks run under libFuzzer. Every
 * input is a heap block of exactly its size, so that AddressSanitizer sees each byte read too many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../request.h"
#include "../wire.h"
#include "fuzz.h"

#define INPUT_MAX 4096u

/* What request_parse promises when it says true. */
static void check_request(const struct request *request, const unsigned char *payload, size_t size) {
    static char *const base[] = {"PATH=/bin", "A=1", "odd", "B=2", NULL};
    const char *begin = (const char *)payload + REQUEST_HEADER;
    const char *end = (const char *)payload + size;
    check(request->argc >= 1, "at least one argument");
    check(request->argc <= size && request->envc <= size, "no more strings than bytes");
    char **argv = calloc((size_t)request->argc + 1, sizeof *argv);
    char **envp = calloc((size_t)request->envc + 5, sizeof *envp);
    check(argv != NULL && envp != NULL, "memory");
    request_arguments(request, argv);
    request_environment(request, base, envp);
    const char *at = request->cwd;
    check(at == begin, "the working folder is first");
    at += strlen(at) + 1;
    for (uint32_t i = 0; i < request->argc; i++) {
        check(argv[i] == at, "arguments in order");
        at += strlen(at) + 1;
    }
    check(argv[request->argc] == NULL, "argv ends");
    check(request->settings == at, "settings behind the arguments");
    for (uint32_t i = 0; i < request->envc; i++) {
        check(strchr(at, '=') != NULL && *at != '=', "NAME=value");
        at += strlen(at) + 1;
    }
    check(at == end, "nothing follows");
    for (size_t i = 0; envp[i] != NULL; i++)
        check(strlen(envp[i]) > 0, "no empty setting");
    environment_get(envp, "PATH");
    free(argv);
    free(envp);
}

static void try_request(const unsigned char *bytes, size_t size) {
    struct request request;
    const char *why = NULL;
    unsigned char *copy = malloc(size > 0 ? size : 1);
    check(copy != NULL, "memory");
    memcpy(copy, bytes, size);
    if (request_parse(copy, size, &request, &why))
        check_request(&request, copy, size);
    else
        check(why != NULL && *why != '\0', "a refusal has a reason");
    free(copy);
}

/* The frames of one input, as input.c goes through them. */
static void try_input(const unsigned char *bytes, size_t size) {
    unsigned char *copy = malloc(size > 0 ? size : 1);
    check(copy != NULL, "memory");
    memcpy(copy, bytes, size);
    size_t at = 0;
    for (;;) {
        struct frame frame = {0};
        const char *why = NULL;
        enum frame_verdict verdict = frame_read(copy + at, size - at, &frame, &why);
        if (verdict == FRAME_BROKEN)
            check(why != NULL, "a broken frame has a reason");
        if (verdict != FRAME_WHOLE)
            break;
        check(frame.length <= (frame.type == FRAME_DATA ? DATA_MAX : HOST_FRAME_MAX), "no frame above its limit");
        check(size - at >= FRAME_HEADER + (size_t)frame.length, "a whole frame is whole");
        if (frame.type == FRAME_EXEC)
            try_request(copy + at + FRAME_HEADER, frame.length);
        at += FRAME_HEADER + (size_t)frame.length;
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    try_input(bytes, size);
    try_request(bytes, size);
    return 0;
}

#ifndef LIBFUZZER

static unsigned char *put_string(unsigned char *at, const char *alphabet) {
    for (uint32_t left = below(12); left > 0; left--)
        *at++ = (unsigned char)alphabet[below((uint32_t)strlen(alphabet))];
    *at++ = '\0';
    return at;
}

static unsigned char *put_request(unsigned char *at) {
    uint32_t argc = below(4) == 0 ? below(3) : 1 + below(5);
    uint32_t envc = below(5);
    at = put_u32(at, below(8));
    at = put_u32(at, (uint32_t)next() >> 1);
    at = put_u64(at, next());
    at = put_u32(at, (uint32_t)next());
    at = put_u32(at, argc);
    at = put_u32(at, envc);
    at = put_string(at, "ab./");
    for (uint32_t i = 0; i < argc; i++)
        at = put_string(at, "ab=-\xff");
    for (uint32_t i = 0; i < envc; i++) {
        *at++ = (unsigned char)('A' + below(3));
        *at++ = below(20) == 0 ? 'x' : '=';
        at = put_string(at, "ab=");
    }
    return at;
}

/* A few frames, mostly right. */
static size_t make_input(unsigned char *bytes) {
    static const uint8_t types[] = {FRAME_EXEC, FRAME_EXEC, FRAME_EXEC, FRAME_DATA, FRAME_KILL, FRAME_PING, 0x77};
    unsigned char *at = bytes;
    for (uint32_t left = 1 + below(4); left > 0; left--) {
        uint8_t type = types[below(sizeof types)];
        unsigned char *payload = at + FRAME_HEADER;
        unsigned char *end = type == FRAME_EXEC ? put_request(payload) : put_string(payload, "data");
        frame_head(at, (uint32_t)(end - payload), below(9), type, (uint8_t)below(3));
        at = end;
    }
    return (size_t)(at - bytes);
}

static size_t damage(unsigned char *bytes, size_t size) {
    static const uint32_t odd[] = {0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x10000, 0x10001, 0x400000, 0x400001, 0x7fffffff};
    for (uint32_t left = below(4); left > 0 && size > 4; left--) {
        uint32_t at = below((uint32_t)size - 4);
        switch (below(5)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << below(8));
            break;
        case 1:
            put_u32(bytes + at, below(3) == 0 ? ~odd[below(11)] : odd[below(11)]);
            break;
        case 2:
            size = at + 1;
            break;
        case 3:
            memmove(bytes + at, bytes + at + 1, size - at - 1);
            size--;
            break;
        default:
            bytes[at] = 0;
        }
    }
    return size;
}

int main(int argc, char **argv) {
    static unsigned char bytes[INPUT_MAX];
    unsigned long rounds = fuzz_begin(argc, argv, 100000);
    for (unsigned long i = 0; i < rounds; i++) {
        size_t size = damage(bytes, make_input(bytes));
        LLVMFuzzerTestOneInput(bytes, size);
        if (size > FRAME_HEADER) /* the first payload by itself, whatever its frame says */
            try_request(bytes + FRAME_HEADER, size - FRAME_HEADER);
    }
    printf("%lu inputs\n", rounds);
    return 0;
}

#endif
