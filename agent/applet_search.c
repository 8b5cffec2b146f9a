#include "applet.h"

#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

/*
 * search PATH GLOB REGEX FLAGS MATCHES BYTES TEXT EXCLUDE...: without a REGEX an entry for each path that GLOB matches; with
 * one (POSIX extended) a match record for each line of each such file: 'M', u8 whether the text is cut, u16 length of
 * the path, u32 length of the text, u64 line number, u64 offset of the line, path, text. At last the end record: cut bit 1
 * after MATCHES, bit 2 after BYTES were looked at. An empty GLOB matches everything. TEXT bounds the text of one match.
 */

enum search_flag { SEARCH_IGNORE_CASE = 1 };
enum search_cut { CUT_MATCHES = 1, CUT_BYTES = 2 };

#define LINE_MAX_BYTES 1048576u /* of one line that are matched */
#define BINARY_LOOK 8192u

struct search {
    const char *glob;
    bool has_regex;
    regex_t regex;
    uint64_t matches_left;
    uint64_t bytes_left;
    size_t text_max;
    char **excludes;
    uint8_t cut;
    uint32_t skipped;
    uint64_t line;
    uint64_t offset; /* of the line */
    char bytes[LINE_MAX_BYTES + 1];
    size_t length;
};

static void put_match(const struct search *search, const char *path, const char *text, size_t length) {
    unsigned char head[24];
    size_t shown = length > search->text_max ? search->text_max : length;
    size_t path_length = strlen(path);
    unsigned char *at = put_u8(head, 'M');
    at = put_u8(at, shown < length);
    at = put_u16(at, (uint16_t)path_length);
    at = put_u32(at, (uint32_t)shown);
    at = put_u64(at, search->line);
    put_u64(at, search->offset);
    out_add(head, sizeof head);
    out_add(path, path_length);
    out_add(text, shown);
}

/* One line, whose end is made a NUL. False when there are matches enough. */
static bool match_line(struct search *search, const char *path, char *line, size_t length) {
    char kept = line[length];
    line[length] = '\0';
    bool found = regexec(&search->regex, line, 0, NULL, 0) == 0;
    line[length] = kept;
    if (!found)
        return true;
    if (search->matches_left == 0) {
        search->cut |= CUT_MATCHES;
        return false;
    }
    search->matches_left--;
    put_match(search, path, line, length);
    return true;
}

/* The whole lines in the buffer; a rest stays at its front. False when there are matches enough. */
static bool match_lines(struct search *search, const char *path, bool last, bool *within) {
    size_t at = 0;
    while (at < search->length) {
        char *line = search->bytes + at;
        char *end = memchr(line, '\n', search->length - at);
        bool full = at == 0 && search->length == LINE_MAX_BYTES;
        if (end == NULL && !last && !full)
            break;
        size_t length = end == NULL ? search->length - at : (size_t)(end - line);
        if (!*within && !match_line(search, path, line, length))
            return false;
        size_t used = length + (end != NULL);
        *within = end == NULL; /* the rest of an overlong line is passed over */
        search->line += end != NULL;
        search->offset += used;
        at += used;
    }
    memmove(search->bytes, search->bytes + at, search->length - at);
    search->length -= at;
    return true;
}

static ssize_t fill(struct search *search, int fd) {
    size_t room = LINE_MAX_BYTES - search->length;
    if (room > search->bytes_left)
        room = (size_t)search->bytes_left;
    if (room == 0) {
        search->cut |= CUT_BYTES;
        return -1;
    }
    ssize_t got;
    do
        got = read(fd, search->bytes + search->length, room);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        search->length += (size_t)got;
        search->bytes_left -= (uint64_t)got;
    }
    return got;
}

/* False when the whole search is to end. */
static bool search_file(struct search *search, const char *path, int fd) {
    bool within = false;
    bool first = true;
    search->length = 0;
    search->line = 1;
    search->offset = 0;
    for (;;) {
        ssize_t got = fill(search, fd);
        if (got < 0)
            return search->cut == 0;
        size_t look = search->length < BINARY_LOOK ? search->length : BINARY_LOOK;
        if (first && memchr(search->bytes, '\0', look) != NULL)
            return true; /* no text */
        first = false;
        if (!match_lines(search, path, got == 0, &within))
            return false;
        out_flush(); /* what has been found is there, should the time be over */
        if (got == 0)
            return true;
    }
}

static enum tree_step search_one(void *context, const struct tree_entry *entry) {
    struct search *search = context;
    char link[PATH_MAX] = "";
    if (glob_match_any(search->excludes, entry->path))
        return TREE_NEXT;
    if (*search->glob != '\0' && !glob_match(search->glob, entry->path))
        return TREE_ENTER;
    if (!search->has_regex) {
        if (search->matches_left == 0) {
            search->cut |= CUT_MATCHES;
            return TREE_STOP;
        }
        search->matches_left--;
        if (S_ISLNK(entry->status->st_mode))
            link_target(entry->folder, entry->name, link);
        out_entry(entry->status, entry->path, link);
        return TREE_ENTER;
    }
    if (!S_ISREG(entry->status->st_mode))
        return TREE_ENTER;
    int fd = openat(entry->folder, entry->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        search->skipped++;
        return TREE_NEXT;
    }
    bool on = search_file(search, entry->path, fd);
    close(fd);
    return on ? TREE_NEXT : TREE_STOP;
}

/* The library's own words come with all of printf. */
static const char *regex_mistake(int error) {
    switch (error) {
    case REG_EBRACK:
        return "a [ without its ]";
    case REG_EPAREN:
        return "a ( without its )";
    case REG_EBRACE:
    case REG_BADBR:
        return "what is between { and } is no repetition from 0 to 255";
    case REG_ERANGE:
        return "a range within [] that ends before it begins";
    case REG_ECTYPE:
        return "an unknown class such as [:alpha:]";
    case REG_EESCAPE:
        return "a \\ at the end";
    case REG_BADRPT:
        return "a ?, * or + with nothing before it to repeat";
    case REG_ESPACE:
        return "too large";
    default:
        return "no extended regular expression";
    }
}

static void compile(struct search *search, const char *regex, bool ignore_case) {
    search->has_regex = *regex != '\0';
    if (!search->has_regex)
        return;
    int error = regcomp(&search->regex, regex, REG_EXTENDED | REG_NOSUB | (ignore_case ? REG_ICASE : 0));
    if (error != 0)
        applet_fail(EBADMSG, regex_mistake(error));
}

void applet_search(char **argv) {
    static struct search search;
    search.glob = argv[2];
    search.matches_left = applet_number(argv[5]);
    search.bytes_left = applet_number(argv[6]);
    search.text_max = (size_t)applet_number(argv[7]);
    search.excludes = argv + 8;
    compile(&search, argv[3], (applet_number(argv[4]) & SEARCH_IGNORE_CASE) != 0);
    struct tree_visitor visitor = {.context = &search, .visit = search_one};
    int fd = -1;
    int error = place_open_folder(argv[1], &fd);
    if (error == 0)
        error = tree_visit(fd, &visitor);
    if (error != 0)
        applet_fail(error, strerror(error));
    out_end(search.cut, visitor.skipped + search.skipped);
}
