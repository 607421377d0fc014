/*
 * store.h - the inside of the KV store, for the files of kv/ alone: what a page looks like in memory,
 * what a lane is, and who counts the references.
 */
#ifndef PI_KV_STORE_H
#define PI_KV_STORE_H

#include "base/mem.h"
#include "kv/kv.h"

/*
 * A page holds P = page_len entries of one layer and KV head. Keys are stored with entries side by
 * side, so that one register holds the same dimension of 16 entries and a logit is summed over the
 * dimensions in ascending order, without a sum across a register; values are stored entry by entry.
 *
 *   f32, f16  K [dim_k][P]                      V [P][dim_v]
 *   q8_0      K codes  int8 [dim_k][P]          V codes  int8 [P][dim_v]
 *             K scales f16 [dim_k / 32][P]      V scales f16 [P][dim_v / 32]
 *             value = scale * code; a block is 32 consecutive dimensions of one entry
 *   then      positions int32 [P]
 *
 * Every part starts at a multiple of 64 bytes. Slots that hold no entry contain finite values.
 */
struct kv_page_layout {
    size_t k;       /* offset of K or its codes; always 0 */
    size_t k_scale; /* offset of K's scales, q8_0 only */
    size_t v;
    size_t v_scale;
    size_t pos;
    size_t bytes; /* of a page, a multiple of 64 */
};

void kv_page_layout_make(const struct kv_geometry *g, struct kv_page_layout *out);

struct kv_page_ref {
    int32_t page;  /* index into the pool */
    int32_t delta; /* the entries are read as if written that many positions later */
};

/* The cache of one layer and KV head. Slot s lies in entry s % P of table[s / P]. */
struct kv_lane {
    struct kv_page_ref *table; /* [cap], [n_page] in use; owned */
    int32_t n_page;            /* >= ceil(len / P): pages may be reserved beyond the entries */
    int32_t cap;
    int32_t len; /* entries */
};

struct kv_cache {
    struct kv_geometry g;
    struct kv_page_layout layout;
    uint8_t *pool; /* [n_page][layout.bytes], one mapping; owned */
    size_t pool_size;
    int32_t n_page;
    int32_t *free_list; /* [n_page], [n_free] in use, lowest page on top; owned */
    int32_t n_free;
    int32_t *n_ref; /* [n_page] table entries that point to the page; owned */
    int32_t n_page_peak;
    int32_t n_page_shared;  /* pages with n_ref > 1 */
    int64_t n_ref_extra;    /* sum of n_ref - 1 over those */
    int64_t table_bytes;    /* of all sequences */
    int32_t n_seq;
    struct kv_seq *first; /* all sequences, for the account of live entries */
};

struct kv_seq {
    struct kv_cache *cache;
    struct kv_seq *prev, *next; /* the cache's list */
    struct kv_lane *lane;       /* [n_layer][n_head]; owned */
};

static inline struct kv_lane *kv_lane_at(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return &seq->lane[(size_t)layer * (size_t)seq->cache->g.n_head + (size_t)head];
}

static inline uint8_t *kv_page_at(const struct kv_cache *cache, int32_t page)
{
    return cache->pool + (size_t)page * cache->layout.bytes;
}

/* pool.c. Takes a page with one reference; -1 when none is free. */
int32_t kv_page_take(struct kv_cache *cache);
void kv_page_ref_add(struct kv_cache *cache, int32_t page);
/* Gives one reference back; the page is free when it was the last. */
void kv_page_drop(struct kv_cache *cache, int32_t page);

/* codec.c. One per storage type; page is the page's first byte. */
struct kv_codec {
    const char *name;
    /* Writes n entries from slot `slot` of the page on; rows are stride floats apart. */
    void (*k_write)(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                    const float *rows, size_t stride);
    void (*v_write)(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                    const float *rows, size_t stride);
    /* Decodes one entry. */
    void (*k_read)(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out);
    void (*v_read)(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out);
    /* Copies an entry as stored, for compaction. */
    void (*k_move)(const struct kv_cache *cache, uint8_t *to, int32_t to_slot, const uint8_t *from,
                   int32_t from_slot);
    void (*v_move)(const struct kv_cache *cache, uint8_t *to, int32_t to_slot, const uint8_t *from,
                   int32_t from_slot);
};

extern const struct kv_codec kv_codecs[KV_N_TYPE];

#endif
