/* hash.h - the checksum of snapshots: XXH64 with seed 0, over bytes that come in pieces. */
#ifndef PI_KV_HASH_H
#define PI_KV_HASH_H

#include "base/base.h"

struct kv_hash {
    uint64_t lane[4];
    uint64_t size;    /* bytes so far */
    uint8_t part[32]; /* [size % 32] bytes that wait for a whole stripe */
};

void kv_hash_start(struct kv_hash *hash);
void kv_hash_add(struct kv_hash *hash, const void *data, size_t size);
/* The hash of everything added; more may be added afterwards. */
uint64_t kv_hash_value(const struct kv_hash *hash);

/* Of one block. */
uint64_t kv_hash_of(const void *data, size_t size);

#endif
