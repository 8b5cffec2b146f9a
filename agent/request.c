#include "request.h"

#include <string.h>

#include "wire.h"

#define KNOWN_FLAGS (EXEC_STDIN | EXEC_TTY | EXEC_STARTED | EXEC_APPLET)

char *request_next(char *string) {
    return string + strlen(string) + 1;
}

/* Steps over `count` strings; NULL when the payload ends before the last of them. */
static char *skip_strings(char *at, const char *end, uint32_t count) {
    while (count-- > 0) {
        char *nul = memchr(at, 0, (size_t)(end - at));
        if (nul == NULL)
            return NULL;
        at = nul + 1;
    }
    return at;
}

static bool settings_are_sound(char *at, uint32_t count) {
    for (; count > 0; count--, at = request_next(at)) {
        const char *equals = strchr(at, '=');
        if (equals == NULL || equals == at)
            return false;
    }
    return true;
}

bool request_parse(unsigned char *payload, size_t size, struct request *out, const char **why) {
    *why = "the EXEC request is cut short";
    if (size < REQUEST_HEADER)
        return false;
    out->flags = get_u32(payload);
    out->window = get_u32(payload + 4);
    out->timeout_ms = get_u32(payload + 8);
    out->grace_ms = get_u32(payload + 12);
    out->rows = get_u16(payload + 16);
    out->columns = get_u16(payload + 18);
    out->argc = get_u32(payload + 20);
    out->envc = get_u32(payload + 24);
    char *end = (char *)payload + size;
    out->cwd = (char *)payload + REQUEST_HEADER;
    out->args = skip_strings(out->cwd, end, 1);
    out->settings = out->args == NULL ? NULL : skip_strings(out->args, end, out->argc);
    char *stop = out->settings == NULL ? NULL : skip_strings(out->settings, end, out->envc);
    if (stop == NULL)
        return false;
    *why = "bytes follow the last string of the EXEC request";
    if (stop != end)
        return false;
    *why = "an EXEC request needs at least one argument";
    if (out->argc == 0)
        return false;
    *why = "the EXEC request has a flag this agent does not know";
    if ((out->flags & ~(uint32_t)KNOWN_FLAGS) != 0)
        return false;
    *why = "the window of the EXEC request is above 2^31-1";
    if (out->window > CREDIT_MAX)
        return false;
    *why = "an environment setting is not NAME=value";
    return settings_are_sound(out->settings, out->envc);
}

void request_arguments(const struct request *request, char **argv) {
    char *at = request->args;
    for (uint32_t i = 0; i < request->argc; i++, at = request_next(at))
        argv[i] = at;
    argv[request->argc] = NULL;
}

/* Both are NAME=value. A base entry without "=" is a name of its own. */
static bool same_name(const char *left, const char *right) {
    while (*left != '\0' && *left != '=' && *left == *right) {
        left++;
        right++;
    }
    return (*left == '\0' || *left == '=') && (*right == '\0' || *right == '=');
}

static bool is_set(const struct request *request, const char *entry) {
    char *at = request->settings;
    for (uint32_t i = 0; i < request->envc; i++, at = request_next(at))
        if (same_name(at, entry))
            return true;
    return false;
}

void request_environment(const struct request *request, char *const *base, char **envp) {
    size_t count = 0;
    for (; *base != NULL; base++)
        if (!is_set(request, *base))
            envp[count++] = *base;
    char *at = request->settings;
    for (uint32_t i = 0; i < request->envc; i++, at = request_next(at))
        envp[count++] = at;
    envp[count] = NULL;
}

const char *environment_get(char *const *envp, const char *name) {
    size_t length = strlen(name);
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, length) == 0 && (*envp)[length] == '=')
            return *envp + length + 1;
    return NULL;
}
