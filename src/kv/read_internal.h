/*
 * read_internal.h - the place of an entry.
 */
#ifndef PI_KV_READ_INTERNAL_H
#define PI_KV_READ_INTERNAL_H

#include "kv/store.h"

/* An entry's place. */
struct kv_place {
    const struct kv_cache *cache;
    const struct kv_class *kind;
    int32_t lane; /* number */
    int32_t page;
    int32_t slot; /* in the page */
};

/* The place of a slot of a lane. */
struct kv_place kv_place_of(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot);

static inline const struct kv_part *kv_place_part(const struct kv_place *p, enum kv_side side)
{
    return side == KV_SIDE_K ? &p->kind->k : &p->kind->v;
}

#endif
