#include "applet.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"
#include "wire.h"

/* The table of applets, and how they fail. */

struct applet {
    const char *name;
    unsigned arguments; /* at least so many */
    void (*run)(char **argv);
};

static const struct applet applets[] = {
    {"read", 4, applet_read},     {"page", 5, applet_page},     {"write", 6, applet_write}, {"list", 3, applet_list},
    {"stat", 2, applet_stat},     {"mkdir", 3, applet_mkdir},   {"remove", 2, applet_remove}, {"move", 3, applet_move},
    {"search", 7, applet_search}, {"pack", 4, applet_pack},     {"unpack", 3, applet_unpack}, {"tidy", 2, applet_tidy},
    {"listening", 3, applet_listening},
    {"resolve", 1, applet_resolve}, {"which", 1, applet_which},
};

_Noreturn void applet_fail(int error, const char *text) {
    unsigned char record[512];
    size_t length = strlen(text);
    if (length > sizeof record - 4)
        length = sizeof record - 4;
    put_u32(record, (uint32_t)error);
    memcpy(record + 4, text, length);
    ssize_t ignored = write(STDERR_FILENO, record, 4 + length);
    (void)ignored; /* the exit code says it too */
    _exit(1);
}

uint64_t applet_number(const char *digits) {
    size_t length = strlen(digits);
    if (length == 0 || length > 20 || strspn(digits, "0123456789") != length)
        applet_fail(EINVAL, "an argument is not a number");
    return parse_u64(digits, 0);
}

_Noreturn void applet_run(char **argv, char **envp) {
    unsigned count = 0;
    while (argv[count + 1] != NULL)
        count++;
    /* Modes are set when a file is made, never later by name: a name may have become a link. */
    umask(0);
    environ = envp;
    for (size_t i = 0; i < sizeof applets / sizeof applets[0]; i++) {
        if (strcmp(argv[0], applets[i].name) != 0)
            continue;
        if (count < applets[i].arguments)
            applet_fail(EINVAL, "too few arguments");
        applets[i].run(argv);
        out_flush();
        _exit(0);
    }
    applet_fail(ENOSYS, "this agent has no such applet");
}
