#include "tunnel.h"

#include <string.h>

#include "detached.h"
#include "wire.h"

/* PROTOCOL.md 9.1: u32 window, u8 kind, u8 flags, u16 port, then a unix socket's path. */
#define CONNECT_HEADER 8u

#define CONNECT_LEND 1u

enum target_kind { TARGET_PORT = 0, TARGET_UNIX = 1 };

/* An absolute path, or `@` and a name, which the kernel takes behind a NUL. */
static bool parse_name(const unsigned char *name, size_t size, struct target *out, const char **why) {
    const char own[] = "@" DETACHED_NAME;
    *why = "A socket's name is an absolute path of at most 107 bytes, or @ and a name.";
    if (size < 2 || size >= sizeof out->name.sun_path || (name[0] != '/' && name[0] != '@'))
        return false;
    if (memchr(name, '\0', size) != NULL)
        return false;
    *why = "That socket is the agent's own.";
    if (size == sizeof own - 1 && memcmp(name, own, size) == 0)
        return false;
    out->name.sun_family = AF_UNIX;
    memcpy(out->name.sun_path, name, size);
    if (name[0] == '@')
        out->name.sun_path[0] = '\0';
    /* A path counts with its NUL; an abstract name is as long as it is. */
    out->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (name[0] == '/'));
    return true;
}

bool target_parse(const unsigned char *payload, size_t size, struct target *out, const char **why) {
    *out = (struct target){0};
    *why = "The request to connect does not parse.";
    if (size < CONNECT_HEADER || payload[5] > CONNECT_LEND)
        return false;
    out->window = get_u32(payload);
    out->lend = payload[5] == CONNECT_LEND;
    out->port = get_u16(payload + 6);
    if (out->window > CREDIT_MAX || (out->lend && out->window != 0))
        return false;
    if (payload[4] == TARGET_PORT)
        return out->port != 0 && size == CONNECT_HEADER;
    return payload[4] == TARGET_UNIX && out->port == 0 && !out->lend &&
           parse_name(payload + CONNECT_HEADER, size - CONNECT_HEADER, out, why);
}

bool listen_parse(const unsigned char *payload, size_t size, uint16_t *port, const char **why) {
    *why = "The request to listen does not parse.";
    if (size != 4 || get_u16(payload + 2) != 0)
        return false;
    *port = get_u16(payload);
    return true;
}
