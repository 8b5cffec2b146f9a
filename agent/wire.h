/* The frames of PROTOCOL.md sections 1 and 2, as pure functions over bytes: no system calls, so they can be fuzzed. */
#ifndef SANDBOXKIT_WIRE_H
#define SANDBOXKIT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 12u
#define DATA_MAX 65536u
#define HOST_FRAME_MAX 4194304u
#define PROTOCOL_VERSION 1u
#define HELLO_MAGIC 0x4b584253u
#define HELLO_MAX 8192u
#define CHANNEL_MAX 0x7fffffffu
#define OFFER_SIZE 12u          /* of PROTOCOL.md 3.4: a descriptor and its inode */
#define NO_DESCRIPTOR UINT32_MAX /* in it: there is none */
#define CREDIT_MAX 0x7fffffffu
#define ENDING_SIZE 32u /* of EXIT, up to max_rss */

enum frame_type {
    FRAME_HELLO = 0x01,
    FRAME_CONFIGURE = 0x02,
    FRAME_PING = 0x03,
    FRAME_PONG = 0x04,
    FRAME_SHORTCUT = 0x05,
    FRAME_OFFER = 0x06,
    FRAME_EXEC = 0x10,
    FRAME_STARTED = 0x11,
    FRAME_DATA = 0x12,
    FRAME_EOF = 0x13,
    FRAME_WINDOW = 0x14,
    FRAME_KILL = 0x15,
    FRAME_EXIT = 0x16,
    FRAME_ERROR = 0x17,
    FRAME_RESIZE = 0x18,
    FRAME_START = 0x30,
    FRAME_PROCESS = 0x31,
    FRAME_VIEW = 0x32,
    FRAME_CURSOR = 0x33,
    FRAME_INPUT = 0x34,
    FRAME_STOP = 0x35,
    FRAME_LIST = 0x36,
    FRAME_CONNECT = 0x40,
    FRAME_LISTEN = 0x41,
    FRAME_OPENED = 0x42,
    FRAME_ACCEPTED = 0x43,
    FRAME_CLOSED = 0x44,
    FRAME_TAKEN = 0x45,
};

enum error_code {
    ERROR_NONE = 0,
    ERROR_UNSUPPORTED = 1,
    ERROR_INVALID = 2,
    ERROR_BUSY = 3,
    ERROR_CWD = 4,
    ERROR_INTERNAL = 5,
    ERROR_ADDRESS = 6,
    ERROR_NOT_FOUND = 7,
    ERROR_NOT_EXECUTABLE = 8,
    ERROR_UNKNOWN = 9,
    ERROR_CLOSED = 10,
    ERROR_LIMIT = 11,
};

enum exit_flag {
    EXIT_OOM = 1,
    EXIT_NOT_RUN = 2,
    EXIT_PIDS_CUT = 4,
};

enum end_reason {
    REASON_ITSELF = 0,
    REASON_TIMEOUT = 1,
    REASON_KILL = 2,
};

struct frame {
    uint32_t length;
    uint32_t channel;
    uint8_t type;
    uint8_t flags;
};

enum frame_verdict {
    FRAME_WHOLE,   /* header and payload are there */
    FRAME_PARTIAL, /* more bytes are needed */
    FRAME_BROKEN,  /* the host broke a rule */
};

uint16_t get_u16(const unsigned char *at);
uint32_t get_u32(const unsigned char *at);
uint64_t get_u64(const unsigned char *at);
unsigned char *put_u8(unsigned char *at, uint8_t value);
unsigned char *put_u16(unsigned char *at, uint16_t value);
unsigned char *put_u32(unsigned char *at, uint32_t value);
unsigned char *put_u64(unsigned char *at, uint64_t value);

/* Writes a header; returns the place of the payload. */
unsigned char *frame_head(unsigned char *at, uint32_t length, uint32_t channel, uint8_t type, uint8_t flags);

/* Reads one frame of the host from the first `size` bytes. FRAME_PARTIAL with size >= FRAME_HEADER has filled `out`. */
enum frame_verdict frame_read(const unsigned char *bytes, size_t size, struct frame *out, const char **why);

#endif
