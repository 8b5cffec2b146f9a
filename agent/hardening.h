/*
 * What the agent takes from itself, and so from every command, once, before the first one: nothing here costs an exec
 * anything. PROTOCOL.md 3.1 names the facts of HELLO that tell of it.
 */
#ifndef SANDBOXKIT_HARDENING_H
#define SANDBOXKIT_HARDENING_H

#include <stdbool.h>
#include <sys/types.h>

/* What was in force before the agent did anything of its own: the engine's doing. -1 where the kernel does not say. */
struct found {
    int no_new_privs;
    int seccomp;
};

struct found hardening_found(void);

/*
 * The deny list: system calls that the engines' default profiles refuse, refused here on every backend, engine or not.
 * Sets no-new-privileges. False with errno when the kernel will not have it.
 */
bool hardening_deny(void);

/*
 * For a backend without an engine. Everything below returns false with errno and the agent must not go on.
 *
 * `close_inherited`: no descriptor but 0, 1 and 2 is left. `become`: `workspace` belongs to that user and the process is
 * that user, without groups or capabilities, for good. `confine`: files can be written, made and removed below
 * `workspace`, /tmp and /dev/shm alone, and devices used, where the kernel has landlock; *version is 0 where it has not.
 */
bool hardening_close_inherited(void);
bool hardening_become(uid_t uid, gid_t gid, const char *workspace);
bool hardening_confine(const char *workspace, int *version);

#endif
