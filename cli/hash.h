/*
 * hash.h - FNV-1a of 64 bits (draft-eastlake-fnv, section 2), part by part from CLI_HASH_EMPTY on.
 */
#ifndef CLI_HASH_H
#define CLI_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CLI_HASH_EMPTY 0xcbf29ce484222325u

static inline uint64_t cli_hash(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

#endif
