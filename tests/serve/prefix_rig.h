/*
 * prefix_rig.h - the common part of the tests of the cache of prefixes. It has a KV cache with one,
 * and sequences whose entries depend on the tokens before them, as in a model. For one file of a
 * test program.
 */
#ifndef PI_TEST_PREFIX_RIG_H
#define PI_TEST_PREFIX_RIG_H

#include <string.h>

#include "base/mem.h"
#include "kv_check.h"
#include "serve/scheduler/prefix.h"
#include "testing.h"

#define LEN 16 /* of a page */
#define N_PAGE 4000
#define SALT "salt"

static const struct kv_geometry geometry = {
    .n_layer = 2, .n_head = 2, .dim_k = 8, .dim_v = 8, .page_len = LEN};

struct rig {
    struct kv_cache *kv;
    struct prefix_cache *cache;
    int64_t other; /* bytes in use before */
};

static inline struct rig rig_make(const struct kv_geometry *g, int32_t n_page)
{
    struct rig r = {.kv = kv_check_cache(g, n_page), .other = pi_mem_used(PI_MEM_OTHER)};
    assert_int_equal(prefix_create(r.kv, SALT, &r.cache, NULL), PITH_OK);
    return r;
}

/* Nothing is left: neither pages nor memory. */
static inline void rig_free(struct rig *r)
{
    pith_kv_stats stats;
    prefix_free(r->cache);
    kv_cache_stats(r->kv, &stats);
    assert_int_equal(stats.used_bytes, 0);
    kv_check_account(r->kv, 0);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), r->other);
    kv_cache_free(r->kv);
}

static inline int64_t used(const struct rig *r)
{
    pith_kv_stats stats;
    kv_cache_stats(r->kv, &stats);
    return stats.used_bytes;
}

/* The rows at a position depend on all tokens up to there, as in a model. */
static inline uint64_t row_key(const int32_t *tokens, int32_t n)
{
    uint64_t key = 1;
    for (int32_t i = 0; i < n; i++)
        key = (key ^ (uint64_t)tokens[i]) * 0x9e3779b97f4a7c15u >> 16;
    return key & 0xffff;
}

/* Appends tokens [from, to) of a text. */
static inline pith_status grow_seq(struct kv_seq *seq, const int32_t *tokens, int32_t from,
                                   int32_t to)
{
    for (int32_t at = from; at < to; at = (at / LEN + 1) * LEN) {
        int32_t end = (int32_t)pi_min(to, (at / LEN + 1) * LEN);
        for (int32_t i = at; i < end; i++)
            PI_TRY(kv_check_append(seq, row_key(tokens, i + 1), i, 1));
    }
    return PITH_OK;
}

static inline struct kv_seq *make_seq(struct kv_cache *kv, const int32_t *tokens, int32_t n)
{
    struct kv_seq *seq = NULL;
    assert_int_equal(kv_seq_create(kv, &seq, NULL), PITH_OK);
    assert_int_equal(grow_seq(seq, tokens, 0, n), PITH_OK);
    return seq;
}

/* Makes, publishes and frees a sequence; returns what publishing returned. */
static inline int32_t publish(struct rig *r, const int32_t *tokens, int32_t n)
{
    struct kv_seq *seq = make_seq(r->kv, tokens, n);
    int32_t n_there = prefix_publish(r->cache, 0, tokens, n, seq);
    kv_seq_free(seq);
    return n_there;
}

static inline int32_t rig_find(const struct prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    int32_t n_unused = -1, found = prefix_find(cache, 0, tokens, n, &n_unused);
    assert_in_range(n_unused, 0, found);
    return found;
}

static inline struct kv_seq *begin_seq(struct rig *r, const int32_t *tokens, int32_t n,
                                       int32_t expected)
{
    struct kv_seq *seq = NULL;
    int32_t n_found = -1;
    assert_int_equal(rig_find(r->cache, tokens, n), expected);
    assert_int_equal(kv_seq_create(r->kv, &seq, NULL), PITH_OK);
    assert_int_equal(prefix_append(r->cache, 0, tokens, n, seq, &n_found, NULL), PITH_OK);
    assert_int_equal(n_found, expected);
    assert_int_equal(kv_lane_len(seq, 0, 0), expected);
    assert_int_equal(prefix_find(r->cache, 0, tokens, n, &n_found), expected);
    assert_int_equal(n_found, 0); /* it uses them */
    return seq;
}

/* The sequence holds the same as one that read the text itself. */
static inline void check_text(const struct kv_seq *seq, const int32_t *tokens, int32_t n)
{
    struct kv_cache *kv = kv_check_cache(kv_cache_geometry(seq->cache), N_PAGE);
    struct kv_seq *alone = make_seq(kv, tokens, n);
    kv_check_same(seq, alone);
    kv_seq_free(alone);
    kv_cache_free(kv);
}

static inline void fill_text(int32_t *tokens, int32_t n, uint64_t seed)
{
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(&seed, 1000);
}

#endif
