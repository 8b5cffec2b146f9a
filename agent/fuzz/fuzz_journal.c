/*
 * Fuzzes a process's log against a model that keeps everything: `fuzz_journal SEED ROUNDS`. Each round is a log of a
 * random small size, writes and reads of random sizes, and readers that fall behind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../journal.h"
#include "fuzz.h"

#define READERS 4u
#define MOST 8192u

struct model {
    unsigned char bytes[MOST];
    unsigned char streams[MOST];
    size_t count;
};

static void add(struct journal *journal, struct model *model) {
    size_t count = below(below(8) == 0 ? 300 : 12);
    if (count > MOST - model->count)
        count = MOST - model->count;
    uint8_t stream = (uint8_t)(1 + below(2));
    for (size_t i = 0; i < count; i++) {
        model->bytes[model->count + i] = (unsigned char)next();
        model->streams[model->count + i] = stream;
    }
    journal_add(journal, stream, model->bytes + model->count, count);
    model->count += count;
    check(journal->last == model->count, "every byte is counted");
    check(journal->first <= journal->last, "cursors are in order");
    check(journal->tail - journal->head <= journal->size, "never more than the ring holds");
    check(journal->last - journal->first + 4 <= journal->size || journal->first == journal->last, "a head and its bytes");
}

static void read_some(const struct journal *journal, const struct model *model, struct reader *reader) {
    uint8_t stream = 0;
    uint64_t before = reader->cursor;
    size_t there = journal_next(journal, reader, &stream);
    check(reader->cursor == (before < journal->first ? journal->first : before), "a reader moves only when overtaken");
    check((there == 0) == (reader->cursor == journal->last), "nothing is next only at the end");
    if (there == 0)
        return;
    check(reader->cursor + there <= journal->last, "not beyond the end");
    size_t count = 1 + below((uint32_t)there);
    unsigned char *out = malloc(count);
    check(out != NULL, "memory");
    uint64_t cursor = reader->cursor;
    journal_read(journal, reader, out, count);
    check(reader->cursor == cursor + count, "the cursor moves by what was read");
    check(memcmp(out, model->bytes + cursor, count) == 0, "what was written is read");
    for (size_t i = 0; i < count; i++)
        check(model->streams[cursor + i] == stream, "of its stream");
    free(out);
}

static void one_log(void) {
    static struct model model;
    struct reader readers[READERS];
    struct journal journal;
    uint32_t size = (uint32_t)(16 + below(200));
    unsigned char *bytes = malloc(size);
    check(bytes != NULL, "memory");
    journal_open(&journal, bytes, size);
    model.count = 0;
    for (unsigned i = 0; i < READERS; i++)
        readers[i] = journal_seek(&journal, 0);
    for (unsigned steps = 0; steps < 200; steps++) {
        if (below(2) == 0)
            add(&journal, &model);
        struct reader *reader = &readers[below(READERS)];
        if (below(20) == 0)
            *reader = journal_seek(&journal, below((uint32_t)model.count + 10));
        check(reader->cursor <= journal.last, "a reader is never beyond the end");
        if (below(3) == 0)
            read_some(&journal, &model, reader);
    }
    free(bytes);
}

int main(int argc, char **argv) {
    unsigned long rounds = fuzz_begin(argc, argv, 10000);
    for (unsigned long i = 0; i < rounds; i++)
        one_log();
    printf("%lu logs\n", rounds);
    return 0;
}
