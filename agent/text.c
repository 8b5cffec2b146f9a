#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define NAME_SHOWN 200u

struct text text_over(char *bytes, size_t size) {
    bytes[0] = '\0';
    return (struct text){.bytes = bytes, .size = size, .length = 0};
}

void text_add_bytes(struct text *text, const char *bytes, size_t count) {
    size_t room = text->size - text->length - 1;
    if (count > room)
        count = room;
    memcpy(text->bytes + text->length, bytes, count);
    text->length += count;
    text->bytes[text->length] = '\0';
}

void text_add(struct text *text, const char *string) {
    text_add_bytes(text, string, strlen(string));
}

void text_add_u64(struct text *text, uint64_t value) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    text_add_bytes(text, digits + at, sizeof digits - at);
}

void text_add_name(struct text *text, const char *name) {
    size_t shown = 0;
    for (; name[shown] != '\0' && shown < NAME_SHOWN; shown++) {
        unsigned char byte = (unsigned char)name[shown];
        text_add_bytes(text, byte < 0x20 || byte == 0x7f ? "?" : &name[shown], 1);
    }
    if (name[shown] != '\0')
        text_add(text, "...");
}

ssize_t file_read(const char *path, char *bytes, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got = 0;
    while (length < size - 1) {
        got = read(fd, bytes + length, size - 1 - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    int error = errno;
    close(fd);
    errno = error;
    bytes[length] = '\0';
    return got < 0 ? -1 : (ssize_t)length;
}

uint64_t parse_u64(const char *digits, uint64_t fallback) {
    if (*digits < '0' || *digits > '9')
        return fallback;
    uint64_t value = 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        value = value * 10 + (uint64_t)(*digits - '0');
    return value;
}

void complain(const char *what, const char *detail) {
    char line[512];
    struct text text = text_over(line, sizeof line);
    text_add(&text, "sandboxkit agent: ");
    text_add(&text, what);
    if (detail != NULL) {
        text_add(&text, ": ");
        text_add(&text, detail);
    }
    text_add(&text, "\n");
    ssize_t ignored = write(STDERR_FILENO, text.bytes, text.length);
    (void)ignored; /* nobody is left to tell */
}
