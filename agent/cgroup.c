#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

/*
 * The agent's own cgroup as it is visible inside: version 2 at /sys/fs/cgroup (or below `unified` on a hybrid host),
 * version 1 in a folder for each controller. A container sees its own cgroup either at the path that
 * /proc/self/cgroup names or, when only that part is mounted, at the mount itself.
 */

/* `line` is N:controllers:path. Version 2 is the one without controllers. */
static bool line_is_for(const char *line, size_t length, const char *controller, const char **path) {
    const char *names = memchr(line, ':', length);
    const char *end = names == NULL ? NULL : memchr(names + 1, ':', length - (size_t)(names + 1 - line));
    if (end == NULL)
        return false;
    *path = end + 1;
    size_t wanted = strlen(controller);
    for (const char *at = names + 1; at <= end;) {
        size_t size = strcspn(at, ",:");
        if (size == wanted && memcmp(at, controller, size) == 0)
            return true;
        at += size + 1;
    }
    return false;
}

static void own_path(const char *controller, char *out, size_t size) {
    char bytes[4096];
    const char *path = "";
    struct text text = text_over(out, size);
    if (file_read("/proc/self/cgroup", bytes, sizeof bytes) <= 0)
        return;
    for (const char *line = bytes; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (line_is_for(line, length, controller, &path)) {
            text_add_bytes(&text, path, (size_t)(line + length - path));
            return;
        }
        line += length + (line[length] == '\n');
    }
}

static int open_below(const char *mount, const char *path, const char *file) {
    char full[PATH_MAX];
    struct text text = text_over(full, sizeof full);
    text_add(&text, mount);
    text_add(&text, path);
    text_add(&text, "/");
    text_add(&text, file);
    return open(full, O_RDONLY | O_CLOEXEC);
}

static int open_file(const char *mount, const char *controller, const char *file) {
    char path[PATH_MAX];
    own_path(controller, path, sizeof path);
    int fd = open_below(mount, path, file);
    return fd >= 0 ? fd : open_below(mount, "", file);
}

static int open_either(const char *v2_file, const char *v1_controller, const char *v1_file) {
    char mount[64];
    struct text text = text_over(mount, sizeof mount);
    text_add(&text, "/sys/fs/cgroup/");
    text_add(&text, v1_controller);
    int fd = open_file("/sys/fs/cgroup", "", v2_file);
    if (fd < 0)
        fd = open_file("/sys/fs/cgroup/unified", "", v2_file);
    return fd >= 0 ? fd : open_file(mount, v1_controller, v1_file);
}

/* Decimal, or "max", or nothing when it cannot be read. */
void cgroup_limit(const char *v2_file, const char *v1_controller, const char *v1_file, char *out, size_t size) {
    struct text text = text_over(out, size);
    int fd = open_either(v2_file, v1_controller, v1_file);
    char bytes[64];
    ssize_t got = fd < 0 ? -1 : read(fd, bytes, sizeof bytes - 1);
    fd_close(&fd);
    if (got <= 0)
        return;
    bytes[got] = '\0';
    bytes[strcspn(bytes, "\n")] = '\0';
    uint64_t value = parse_u64(bytes, UINT64_MAX);
    if (value >= UINT64_C(1) << 62) /* version 1 writes its highest number of pages when there is no limit */
        text_add(&text, "max");
    else
        text_add_u64(&text, value);
}

void cgroup_open(struct agent *agent) {
    agent->oom_events_fd = open_either("memory.events", "memory", "memory.oom_control");
}

/* How often the OOM killer has struck in this container; 0 when nobody says. */
uint64_t cgroup_oom_kills(const struct agent *agent) {
    char bytes[512];
    ssize_t got = agent->oom_events_fd < 0 ? -1 : pread(agent->oom_events_fd, bytes, sizeof bytes - 1, 0);
    if (got <= 0)
        return 0;
    bytes[got] = '\0';
    const char *line = strstr(bytes, "oom_kill ");
    return line == NULL ? 0 : parse_u64(line + strlen("oom_kill "), 0);
}
