#include "applet.h"

#include <string.h>

/*
 * Globs over bytes: `*` and `?` within one component, `**` over any number of them, `[a-z]` and `[!a-z]`. A pattern without a
 * slash is matched with the last component alone. `?` is one UTF-8 character. sandboxkit/_glob.py means the same.
 */

static const char *next_character(const char *at) {
    at++;
    while (((unsigned char)*at & 0xc0u) == 0x80u)
        at++;
    return at;
}

/* `*pattern` is behind the "["; it is moved behind the "]". Without a "]" the bracket is itself. */
static bool match_set(const char **pattern, char byte) {
    const char *at = *pattern;
    bool negated = *at == '!' || *at == '^';
    bool found = false;
    at += negated;
    for (const char *first = at; *at != ']' || at == first; at++) {
        if (*at == '\0' || *at == '/')
            return byte == '[';
        if (at[1] == '-' && at[2] != ']' && at[2] != '\0') {
            found = found || ((unsigned char)byte >= (unsigned char)at[0] && (unsigned char)byte <= (unsigned char)at[2]);
            at += 2;
        } else {
            found = found || *at == byte;
        }
    }
    *pattern = at + 1;
    return found != negated;
}

/* One component of each, up to the ends given. */
static bool match_component(const char *pattern, const char *pattern_end, const char *name, const char *name_end) {
    const char *star = NULL;
    const char *resume = NULL;
    while (name < name_end) {
        const char *after = pattern + 1;
        if (pattern < pattern_end && *pattern == '*') {
            star = after;
            resume = name;
            pattern = after;
        } else if (pattern < pattern_end && *pattern == '?') {
            name = next_character(name);
            pattern = after;
        } else if (pattern < pattern_end && (*pattern == '[' ? match_set(&after, *name) : *pattern == *name)) {
            name++;
            pattern = after;
        } else if (star != NULL) {
            pattern = star;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (pattern < pattern_end && *pattern == '*')
        pattern++;
    return pattern == pattern_end;
}

static const char *component_end(const char *at) {
    return at + strcspn(at, "/");
}

/* Components of both, with the last `**` as the one place to come back to. */
static bool match_path(const char *pattern, const char *path) {
    const char *again = NULL;
    const char *resume = NULL;
    for (;;) {
        const char *pattern_end = component_end(pattern);
        const char *path_end = component_end(path);
        if (pattern_end - pattern == 2 && memcmp(pattern, "**", 2) == 0) {
            if (*pattern_end == '\0')
                return *path != '\0';
            again = pattern = pattern_end + 1;
            resume = path;
            continue;
        }
        if (*path != '\0' && match_component(pattern, pattern_end, path, path_end)) {
            if (*pattern_end == '\0' && *path_end == '\0')
                return true;
            if (*pattern_end != '\0' && *path_end != '\0') {
                pattern = pattern_end + 1;
                path = path_end + 1;
                continue;
            }
        }
        if (again == NULL || *component_end(resume) == '\0')
            return false;
        pattern = again;
        path = resume = component_end(resume) + 1;
    }
}

bool glob_match(const char *pattern, const char *path) {
    if (strchr(pattern, '/') != NULL)
        return match_path(*pattern == '/' ? pattern + 1 : pattern, path);
    if (strcmp(pattern, "**") == 0)
        return true;
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    return match_component(pattern, pattern + strlen(pattern), name, name + strlen(name));
}

bool glob_match_any(char **patterns, const char *path) {
    for (; *patterns != NULL; patterns++)
        if (glob_match(*patterns, path))
            return true;
    return false;
}
