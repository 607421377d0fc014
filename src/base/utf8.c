/*
 * utf8.c - characters in bytes, and the stream that never prints half of one. It owns no memory;
 * the state of a stream is the caller's. Invariant: pending bytes are a proper prefix of some
 * well-formed character.
 */
#include "base/utf8.h"

/* Bytes that a character with this first byte has; 0 when none starts so. */
static size_t char_len(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* The range of the second byte excludes overlong forms (E0, F0), surrogates (ED) and what lies
   above U+10FFFF (F4); later bytes are 80..BF. */
static bool continues(uint8_t lead, size_t i, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xbf;
    if (i == 1) {
        if (lead == 0xe0)
            low = 0xa0;
        else if (lead == 0xed)
            high = 0x9f;
        else if (lead == 0xf0)
            low = 0x90;
        else if (lead == 0xf4)
            high = 0x8f;
    }
    return byte >= low && byte <= high;
}

struct pi_utf8_char pi_utf8_next(const char *bytes, size_t n)
{
    const uint8_t *p = (const uint8_t *)bytes;
    size_t need = char_len(p[0]), len = 1;
    if (need == 0)
        return (struct pi_utf8_char){.len = 1};
    while (len < need && len < n && continues(p[0], len, p[len]))
        len++;
    return (struct pi_utf8_char){
        .len = (uint8_t)len,
        .valid = len == need,
        .cut = len < need && len == n,
    };
}

size_t pi_utf8_span(const char *bytes, size_t n)
{
    size_t i = 0;
    while (i < n) {
        if ((uint8_t)bytes[i] < 0x80) {
            i++;
            continue;
        }
        struct pi_utf8_char c = pi_utf8_next(bytes + i, n - i);
        if (!c.valid)
            break;
        i += c.len;
    }
    return i;
}

size_t pi_utf8_mark(const char *bytes, size_t n)
{
    return n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

size_t pi_utf8_encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(mark[len] | c);
    return len;
}

uint32_t pi_utf8_decode(const char *bytes, size_t len)
{
    static const uint8_t mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = (uint8_t)bytes[0] & mask[len];
    for (size_t i = 1; i < len; i++)
        c = c << 6 | ((uint8_t)bytes[i] & 0x3f);
    return c;
}

/* ---- stream ---- */

/* U+FFFD in UTF-8. */
static size_t put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

/* Takes one byte more; returns the bytes written to out, at most 6. */
static size_t push_byte(pith_utf8_stream *stream, uint8_t byte, char *out)
{
    size_t n = 0;
    stream->pending[stream->n_pending++] = byte;
    struct pi_utf8_char c = pi_utf8_next((const char *)stream->pending, stream->n_pending);
    if (c.cut)
        return 0;
    if (!c.valid && c.len < stream->n_pending) {
        /* The new byte does not continue what was pending: that is replaced, the byte starts
           anew. */
        n = put_replacement(out);
        stream->pending[0] = byte;
        stream->n_pending = 1;
        c = pi_utf8_next((const char *)stream->pending, 1);
        if (c.cut)
            return n;
    }
    if (c.valid)
        memcpy(out + n, stream->pending, c.len);
    n += c.valid ? c.len : put_replacement(out + n);
    stream->n_pending = 0;
    return n;
}

size_t pith_utf8_push(pith_utf8_stream *stream, const char *bytes, size_t len, char *out,
                      size_t cap)
{
    size_t n = 0;
    if (bytes == NULL) {
        if (stream->n_pending > 0 && cap >= 3)
            n = put_replacement(out);
        stream->n_pending = 0;
        return n;
    }
    /* Every byte yields at most three, pending ones included; a smaller cap is the caller's error
       and takes nothing in rather than writing beyond out. */
    if (stream->n_pending >= sizeof(stream->pending) || cap / 3 < len || cap / 3 - len < 4)
        return 0;
    for (size_t i = 0; i < len; i++)
        n += push_byte(stream, (uint8_t)bytes[i], out + n);
    return n;
}
