#include "wire.h"

uint16_t get_u16(const unsigned char *at) {
    return (uint16_t)(at[0] | (unsigned)at[1] << 8);
}

uint32_t get_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t get_u64(const unsigned char *at) {
    return get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

unsigned char *put_u8(unsigned char *at, uint8_t value) {
    at[0] = value;
    return at + 1;
}

unsigned char *put_u16(unsigned char *at, uint16_t value) {
    at[0] = (unsigned char)(value & 0xffu);
    at[1] = (unsigned char)((unsigned)value >> 8);
    return at + 2;
}

unsigned char *put_u32(unsigned char *at, uint32_t value) {
    return put_u16(put_u16(at, (uint16_t)(value & 0xffffu)), (uint16_t)(value >> 16));
}

unsigned char *put_u64(unsigned char *at, uint64_t value) {
    return put_u32(put_u32(at, (uint32_t)(value & 0xffffffffu)), (uint32_t)(value >> 32));
}

unsigned char *frame_head(unsigned char *at, uint32_t length, uint32_t channel, uint8_t type, uint8_t flags) {
    at = put_u32(at, length);
    at = put_u32(at, channel);
    at = put_u8(at, type);
    at = put_u8(at, flags);
    return put_u16(at, 0);
}

enum frame_verdict frame_read(const unsigned char *bytes, size_t size, struct frame *out, const char **why) {
    if (size < FRAME_HEADER)
        return FRAME_PARTIAL;
    out->length = get_u32(bytes);
    out->channel = get_u32(bytes + 4);
    out->type = bytes[8];
    out->flags = bytes[9];
    if (get_u16(bytes + 10) != 0) {
        *why = "the reserved field of a frame is not zero";
        return FRAME_BROKEN;
    }
    if (out->length > (out->type == FRAME_DATA ? DATA_MAX : HOST_FRAME_MAX)) {
        *why = "a frame is longer than its type allows";
        return FRAME_BROKEN;
    }
    return size - FRAME_HEADER < out->length ? FRAME_PARTIAL : FRAME_WHOLE;
}
