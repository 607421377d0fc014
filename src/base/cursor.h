/*
 * cursor.h - little-endian numbers in a file's bytes, one after the other: for formats that are
 * checked for their size first.
 */
#ifndef PI_CURSOR_H
#define PI_CURSOR_H

#include "base/base.h"

/* A place in the bytes; out is NULL while they are only counted. */
struct pi_cursor {
    const uint8_t *in;
    uint8_t *out;
    size_t at;
};

static inline uint64_t pi_get(struct pi_cursor *c, size_t n_byte)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n_byte; i++)
        value |= (uint64_t)c->in[c->at + i] << (8 * i);
    c->at += n_byte;
    return value;
}

static inline void pi_put(struct pi_cursor *c, uint64_t value, size_t n_byte)
{
    for (size_t i = 0; c->out != NULL && i < n_byte; i++)
        c->out[c->at + i] = (uint8_t)(value >> (8 * i));
    c->at += n_byte;
}

static inline void pi_put_bytes(struct pi_cursor *c, const void *data, size_t n)
{
    if (c->out != NULL && n > 0)
        memcpy(c->out + c->at, data, n);
    c->at += n;
}

static inline void pi_put_floats(struct pi_cursor *c, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        pi_put(c, bits, 4);
    }
}

static inline void pi_get_floats(struct pi_cursor *c, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)pi_get(c, 4);
        memcpy(&x[i], &bits, sizeof(bits));
    }
}

#endif
