/* A bounded text under construction, in place of stdio: what does not fit is cut, never written past the end. */
#ifndef SANDBOXKIT_TEXT_H
#define SANDBOXKIT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct text {
    char *bytes;
    size_t size;
    size_t length; /* always below size: the text stays NUL-terminated */
};

struct text text_over(char *bytes, size_t size);
void text_add(struct text *text, const char *string);
void text_add_bytes(struct text *text, const char *bytes, size_t count);
void text_add_u64(struct text *text, uint64_t value);

/* A name from outside in a message: control bytes become "?", long ones are cut with "...". */
void text_add_name(struct text *text, const char *name);

/* The whole of a small file, NUL-terminated; its length, or -1 with errno. */
ssize_t file_read(const char *path, char *bytes, size_t size);

/* Leading decimal digits; `fallback` when there are none. */
uint64_t parse_u64(const char *digits, uint64_t fallback);

/* Writes "sandboxkit agent: " and the words to descriptor 2, best effort. */
void complain(const char *what, const char *detail);

#endif
