/*
 * utf8.h - well-formed UTF-8 as the Unicode standard defines it (table 3-7): no overlong forms, no
 * surrogates, nothing above U+10FFFF.
 */
#ifndef PI_UTF8_H
#define PI_UTF8_H

#include "base/base.h"

/* White space of ASCII, as the C locale has it. */
static inline bool pi_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The character at the start of some bytes. */
struct pi_utf8_char {
    uint8_t len; /* bytes of the character, or of the ill-formed part; at least 1 */
    bool valid;
    bool cut; /* not valid, but the text ends inside what may still become a character */
};

/* Looks at bytes[0..n), n at least 1. An ill-formed part is the "maximal subpart" that U+FFFD
   replaces: the longest prefix of a character that is there, else one byte. */
struct pi_utf8_char pi_utf8_next(const char *bytes, size_t n);

/* Returns the bytes at the start of bytes[0..n) that are well-formed. */
size_t pi_utf8_span(const char *bytes, size_t n);

/* Returns the bytes of a byte order mark at the start of bytes[0..n), 3 or 0: it is no text. */
size_t pi_utf8_mark(const char *bytes, size_t n);

/* Writes code point c, at most 0x10ffff, and returns the bytes written, 1 to 4. */
size_t pi_utf8_encode(uint32_t c, char *out);

/* Reads the well-formed character of len bytes. */
uint32_t pi_utf8_decode(const char *bytes, size_t len);

#endif
