/*
 * gguf_bytes.h - GGUF files put together byte by byte, right or wrong, for tests of the reader. It
 * shares no code with the library's writer, so that the two cannot agree on a mistake.
 */
#ifndef GGUF_BYTES_H
#define GGUF_BYTES_H

#include <string.h>

#include "testing.h"

struct bytes {
    uint8_t data[1 << 17];
    size_t len;
};

static inline void put_raw(struct bytes *b, const void *data, size_t size)
{
    assert_true(b->len + size <= sizeof(b->data));
    memcpy(b->data + b->len, data, size);
    b->len += size;
}

static inline void put_int(struct bytes *b, uint64_t v, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const uint8_t byte = (uint8_t)(v >> (8 * i));
        put_raw(b, &byte, 1);
    }
}

static inline void put_u32(struct bytes *b, uint64_t v)
{
    put_int(b, v, 4);
}
static inline void put_u64(struct bytes *b, uint64_t v)
{
    put_int(b, v, 8);
}

static inline void put_text(struct bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put_raw(b, text, strlen(text));
}

static inline void put_header(struct bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_kv)
{
    b->len = 0;
    put_raw(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensor);
    put_u64(b, n_kv);
}

/* A key and its value's type; the value follows. */
static inline void put_key(struct bytes *b, const char *key, uint32_t type)
{
    put_text(b, key);
    put_u32(b, type);
}

/* A tensor's head of one or two dimensions (ne1 0: one). */
static inline void put_tensor(struct bytes *b, const char *name, uint64_t ne0, uint64_t ne1,
                              uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put_u32(b, ne1 == 0 ? 1 : 2);
    put_u64(b, ne0);
    if (ne1 != 0)
        put_u64(b, ne1);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void put_zeros(struct bytes *b, size_t n)
{
    for (; n > 0; n--)
        put_raw(b, "", 1);
}

static inline void put_padding(struct bytes *b, size_t alignment)
{
    put_zeros(b, (alignment - b->len % alignment) % alignment);
}

#endif
