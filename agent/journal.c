#include "journal.h"

#include <stdbool.h>
#include <string.h>

#include "wire.h"

#define HEAD 4u /* of a record: its length, and its stream above bit 30 */
#define LENGTH_BITS 30u

struct record {
    uint32_t length;
    uint8_t stream;
};

static void put(struct journal *journal, uint64_t place, const unsigned char *bytes, size_t count) {
    size_t at = (size_t)(place % journal->size);
    size_t before_end = count < journal->size - at ? count : journal->size - at;
    memcpy(journal->bytes + at, bytes, before_end);
    memcpy(journal->bytes, bytes + before_end, count - before_end);
}

static void get(const struct journal *journal, uint64_t place, unsigned char *out, size_t count) {
    size_t at = (size_t)(place % journal->size);
    size_t before_end = count < journal->size - at ? count : journal->size - at;
    memcpy(out, journal->bytes + at, before_end);
    memcpy(out + before_end, journal->bytes, count - before_end);
}

static struct record record_at(const struct journal *journal, uint64_t place) {
    unsigned char head[HEAD];
    get(journal, place, head, HEAD);
    uint32_t value = get_u32(head);
    return (struct record){.length = value & ((1u << LENGTH_BITS) - 1), .stream = (uint8_t)(value >> LENGTH_BITS)};
}

static void record_put(struct journal *journal, uint64_t place, struct record record) {
    unsigned char head[HEAD];
    put_u32(head, record.length | (uint32_t)record.stream << LENGTH_BITS);
    put(journal, place, head, HEAD);
}

void journal_open(struct journal *journal, unsigned char *bytes, uint32_t size) {
    *journal = (struct journal){.bytes = bytes, .size = size};
}

/* Makes room for `need` bytes, no more than that: of the oldest record only the beginning goes, if that is enough. */
static void evict(struct journal *journal, size_t need) {
    while (journal->tail - journal->head + need > journal->size) {
        uint64_t excess = journal->tail - journal->head + need - journal->size;
        struct record oldest = record_at(journal, journal->head);
        if (excess >= oldest.length) {
            journal->head += HEAD + oldest.length;
            journal->first += oldest.length;
            continue;
        }
        /* The head moves forward over what is forgotten; the bytes behind it stay where they are. */
        journal->head += excess;
        journal->first += excess;
        oldest.length -= (uint32_t)excess;
        record_put(journal, journal->head, oldest);
    }
}

/* The newest record can be made longer: then a flood of small writes costs no head each. */
static bool continues(const struct journal *journal, uint8_t stream, size_t count) {
    return journal->tail > journal->head && record_at(journal, journal->newest).stream == stream &&
           journal->tail - journal->newest + count <= journal->size;
}

void journal_add(struct journal *journal, uint8_t stream, const unsigned char *bytes, size_t count) {
    if (count > journal->size - HEAD) { /* its end alone fills the ring */
        size_t skipped = count - (journal->size - HEAD);
        journal->head = journal->newest = journal->tail;
        journal->last += skipped;
        journal->first = journal->last;
        bytes += skipped;
        count -= skipped;
    }
    if (count == 0)
        return;
    if (continues(journal, stream, count)) {
        evict(journal, count);
    } else {
        evict(journal, HEAD + count);
        journal->newest = journal->tail;
        journal->tail += HEAD;
    }
    put(journal, journal->tail, bytes, count);
    journal->tail += count;
    journal->last += count;
    struct record newest = {.length = (uint32_t)(journal->tail - journal->newest - HEAD), .stream = stream};
    record_put(journal, journal->newest, newest);
}

struct reader journal_seek(const struct journal *journal, uint64_t cursor) {
    return (struct reader){
        .cursor = cursor < journal->last ? cursor : journal->last,
        .at = journal->head,
        .base = journal->first,
    };
}

size_t journal_next(const struct journal *journal, struct reader *reader, uint8_t *stream) {
    if (reader->at <= journal->head) { /* its record is gone, or its beginning is */
        reader->at = journal->head;
        reader->base = journal->first;
    }
    if (reader->cursor < journal->first)
        reader->cursor = journal->first;
    if (journal->head == journal->tail)
        return 0;
    struct record record = record_at(journal, reader->at);
    /* Not beyond the newest one: it may grow. */
    while (reader->cursor >= reader->base + record.length && reader->at < journal->newest) {
        reader->at += HEAD + record.length;
        reader->base += record.length;
        record = record_at(journal, reader->at);
    }
    *stream = record.stream;
    return (size_t)(reader->base + record.length - reader->cursor);
}

void journal_read(const struct journal *journal, struct reader *reader, unsigned char *out, size_t count) {
    get(journal, reader->at + HEAD + (reader->cursor - reader->base), out, count);
    reader->cursor += count;
}
