/* The payload of EXEC (PROTOCOL.md 5.1), parsed in place: no copy, no allocation, no system call. */
#ifndef SANDBOXKIT_REQUEST_H
#define SANDBOXKIT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exec_flag {
    EXEC_STDIN = 1,
    EXEC_TTY = 2,
    EXEC_STARTED = 4,
    EXEC_APPLET = 8,
};

#define REQUEST_HEADER 28u

struct request {
    uint32_t flags;
    uint32_t window;
    uint32_t timeout_ms;
    uint32_t grace_ms;
    uint16_t rows;
    uint16_t columns;
    uint32_t argc;
    uint32_t envc;
    char *cwd;      /* the three point into the payload */
    char *args;     /* argc strings, one behind the other */
    char *settings; /* envc strings */
};

/* False, with one sentence in `why`, when the payload does not parse. Everything the fields say holds when true. */
bool request_parse(unsigned char *payload, size_t size, struct request *out, const char **why);

/* The string behind `string`. */
char *request_next(char *string);

/* Fills argv (argc + 1 entries). */
void request_arguments(const struct request *request, char **argv);

/* Fills envp with `base` and the request's settings over it; it needs room for both and one more entry. */
void request_environment(const struct request *request, char *const *base, char **envp);

/* The value of `name`, or NULL. */
const char *environment_get(char *const *envp, const char *name);

#endif
