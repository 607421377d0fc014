/*
 * save.h - a sequence to a file and back (snapshot.c). docs/snapshot.md describes the format.
 */
#ifndef PI_KV_SAVE_H
#define PI_KV_SAVE_H

#include "base/base.h"

struct kv_cache;
struct kv_seq;

/* Snapshot of a sequence: docs/snapshot.md describes the format. extra [extra_size] is the caller's
   (tokens), stored and checksummed along. */
pith_status kv_seq_save(const struct kv_seq *seq, const void *extra, size_t extra_size,
                        const char *path, pith_error *err);
/* *extra is a pi_mem block of *extra_size bytes that the caller frees. */
pith_status kv_seq_load(struct kv_cache *cache, const char *path, struct kv_seq **out, void **extra,
                        size_t *extra_size, pith_error *err);

#endif
