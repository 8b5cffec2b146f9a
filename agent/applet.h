/*
 * Applets (PROTOCOL.md section 6): functions that run in the command's process in the place of a program. Each runs
 * once and ends its process, so nothing here is freed, and descriptors are closed only where many would pile up.
 */
#ifndef SANDBOXKIT_APPLET_H
#define SANDBOXKIT_APPLET_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define ENTRY_HEAD 44u
#define ENTRY_MAX (ENTRY_HEAD + 2u * PATH_MAX)
#define IDENTITY_SIZE 48u
#define BLOCK 262144u /* of one read or write */
#define RACES 1000u   /* how often a name may change under our hands before we give up */

/* A name in a folder that lies beneath the workspace. "." is the folder itself. */
struct place {
    int folder; /* O_PATH */
    char name[NAME_MAX + 1];
};

/* The draft of a file: invisible until it is committed. */
struct draft {
    int fd;
    bool named; /* has `token` as its name, for want of O_TMPFILE */
};

struct tree_entry {
    int folder;
    const char *name;
    const char *path; /* relative to where the visit began */
    const struct stat *status;
};

enum tree_step { TREE_ENTER, TREE_NEXT, TREE_STOP };

struct tree_visitor {
    void *context;
    enum tree_step (*visit)(void *context, const struct tree_entry *entry);
    enum tree_step (*leave)(void *context, int folder, const char *name); /* behind a folder's entries; may be NULL */
    bool strict;    /* a folder that cannot be entered ends the visit; else it is counted */
    bool deep;      /* also what no path can name any more; then `path` is NULL */
    uint32_t skipped;
};

/* applet.c. `envp` is what `environ` is for an applet. */
_Noreturn void applet_run(char **argv, char **envp);
_Noreturn void applet_fail(int error, const char *text);
uint64_t applet_number(const char *digits);

/* applet_read.c, applet_page.c, applet_write.c, applet_list.c, applet_change.c, applet_search.c, applet_pack.c,
   applet_unpack.c, applet_ports.c, applet_where.c: argv[0] is the applet's name. Exit the process on failure. */
void applet_read(char **argv);
void applet_page(char **argv);
void applet_write(char **argv);
void applet_list(char **argv);
void applet_stat(char **argv);
void applet_mkdir(char **argv);
void applet_remove(char **argv);
void applet_move(char **argv);
void applet_tidy(char **argv);
void applet_search(char **argv);
void applet_pack(char **argv);
void applet_unpack(char **argv);
void applet_listening(char **argv);
void applet_resolve(char **argv);
void applet_which(char **argv);

/* applet_io.c: blocking, whole; the process ends when the host's end is gone. */
void pipe_enlarge(int fd);
void out_add(const void *bytes, size_t count);
void out_flush(void);
void out_entry(const struct stat *status, const char *path, const char *link);
void out_end(uint8_t cut, uint32_t skipped);
void out_identity(const struct stat *status);
size_t in_read(void *bytes, size_t count);
/* 0, or an errno of `fd`; EPIPE when the input ends early. */
int in_to_file(int fd, uint64_t count);
int64_t time_ns(const struct timespec *time);

/* applet_path.c: 0, or an errno; EXDEV when the path leads outside the workspace. */
int place_find(const char *path, bool follow, struct place *out);
int place_status(const char *path, bool follow, struct place *out, struct stat *status);
int place_open_file(const char *path, int flags, int *fd, struct stat *status);
int place_open_folder(const char *path, int *fd);
int place_make_parents(const char *path);
int place_make_folder(const char *path, mode_t mode, bool exist_ok);
/* A link's target as a string; empty when it cannot be read. */
void link_target(int folder, const char *name, char target[PATH_MAX]);
/* The link in /proc that leads to what `fd` is. */
void fd_link(int fd, char out[64]);

/* applet_write.c */
int draft_open(int folder, const char *token, struct draft *out);
int draft_commit(struct draft *draft, const struct place *place, const char *token, bool exclusive);
void draft_drop(const struct draft *draft, int folder, const char *token);

/* applet_tree.c: `fd` is a folder open for reading; it is consumed. 0, or an errno. */
int tree_visit(int fd, struct tree_visitor *visitor);

/* applet_glob.c */
bool glob_match(const char *pattern, const char *path);
bool glob_match_any(char **patterns, const char *path);

#endif
