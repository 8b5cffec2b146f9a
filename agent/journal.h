/*
 * A process's log (PROTOCOL.md 8.2): a ring of records, each a piece of one stream, in the order of arrival. Cursors
 * count bytes of output from the beginning and only rise; what does not fit is forgotten byte by byte, oldest first.
 * Pure functions over memory, so they can be fuzzed.
 */
#ifndef SANDBOXKIT_JOURNAL_H
#define SANDBOXKIT_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#define JOURNAL_LEAST 4096u
#define JOURNAL_MOST 16777216u

/* Places count bytes written to the ring, records' heads too; they only rise, and a byte is at its place modulo size. */
struct journal {
    unsigned char *bytes;
    uint32_t size;
    uint64_t head;   /* the place of the oldest record */
    uint64_t newest; /* of the newest */
    uint64_t tail;   /* behind it; equal to head when there is none */
    uint64_t first;  /* the cursor of the oldest byte that is kept */
    uint64_t last;   /* the cursor behind the newest byte: how many there ever were */
};

/* Somebody who reads; made by journal_seek. */
struct reader {
    uint64_t cursor; /* of the next byte */
    uint64_t at;     /* the place of a record that begins at `base`, at or before the cursor */
    uint64_t base;
};

void journal_open(struct journal *journal, unsigned char *bytes, uint32_t size);
void journal_add(struct journal *journal, uint8_t stream, const unsigned char *bytes, size_t count);

/* A reader at `cursor`, or at the end when it is beyond. */
struct reader journal_seek(const struct journal *journal, uint64_t cursor);

/* Moves a reader that was overtaken to the oldest byte. Returns how many bytes of one stream are next; 0 at the end. */
size_t journal_next(const struct journal *journal, struct reader *reader, uint8_t *stream);

/* Copies the next `count` bytes: not more than journal_next has just said. */
void journal_read(const struct journal *journal, struct reader *reader, unsigned char *out, size_t count);

#endif
