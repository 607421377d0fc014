/*
 * hash.h - FNV-1a of 64 bits (draft-eastlake-fnv, section 2), part by part from PI_HASH_EMPTY on.
 * It is for finding equal things, and no protection against who wants two of one hash.
 */
#ifndef PI_HASH_H
#define PI_HASH_H

#include <stddef.h>
#include <stdint.h>

#define PI_HASH_EMPTY 0xcbf29ce484222325u

static inline uint64_t pi_hash_byte(uint64_t hash, uint8_t byte)
{
    return (hash ^ byte) * 0x100000001b3u;
}

static inline uint64_t pi_hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        hash = pi_hash_byte(hash, b[i]);
    return hash;
}

/* The lowest n_byte bytes of a number, the lowest first. */
static inline uint64_t pi_hash_number(uint64_t hash, uint64_t number, int n_byte)
{
    for (int i = 0; i < n_byte; i++)
        hash = pi_hash_byte(hash, (uint8_t)(number >> (8 * i)));
    return hash;
}

#endif
