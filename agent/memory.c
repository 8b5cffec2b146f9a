#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * The library that comes with the compiler copies byte by byte in a small build: a tenth of the machine's speed, and
 * the agent does little but copy. So these three are its own there. Under the sanitizers they stay the sanitizers'.
 */
#if defined(__clang__) && !defined(LIBFUZZER)

#if defined(__x86_64__) && !defined(ANY_CPU)

static void copy_up(unsigned char *to, const unsigned char *from, size_t count) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
}

static void fill(unsigned char *to, int value, size_t count) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(value) : "memory");
}

#else

/* As wide as a register; `volatile` keeps the compiler from making calls of these very functions out of the loops. */
typedef uint64_t __attribute__((may_alias, aligned(1))) word;

static void copy_up(unsigned char *to, const unsigned char *from, size_t count) {
    for (; count >= 4 * sizeof(word); count -= 4 * sizeof(word)) {
        word first = ((const word *)from)[0], second = ((const word *)from)[1];
        word third = ((const word *)from)[2], fourth = ((const word *)from)[3];
        ((volatile word *)to)[0] = first;
        ((volatile word *)to)[1] = second;
        ((volatile word *)to)[2] = third;
        ((volatile word *)to)[3] = fourth;
        to += 4 * sizeof(word);
        from += 4 * sizeof(word);
    }
    for (; count > 0; count--)
        *(volatile unsigned char *)to++ = *from++;
}

static void fill(unsigned char *to, int value, size_t count) {
    word pattern = 0x0101010101010101u * (unsigned char)value;
    for (; count >= sizeof pattern; count -= sizeof pattern) {
        *(volatile word *)to = pattern;
        to += sizeof pattern;
    }
    for (; count > 0; count--)
        *(volatile unsigned char *)to++ = (unsigned char)value;
}

#endif

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
    copy_up(to, from, count);
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    unsigned char *at = to;
    const unsigned char *source = from;
    if ((uintptr_t)at - (uintptr_t)source >= count) { /* also where `to` is below: the difference wraps */
        copy_up(at, source, count);
        return to;
    }
    while (count-- > 0)
        ((volatile unsigned char *)at)[count] = source[count];
    return to;
}

void *memset(void *to, int value, size_t count) {
    fill(to, value, count);
    return to;
}

#else

typedef int nothing_here; /* C wants a translation unit to have something in it */

#endif
