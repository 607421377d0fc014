/*
 * kv_check.c - checks of the KV store that do not trust its counters: each is recomputed from the
 * tables alone, in the plainest way.
 */
#include "kv_check.h"

#include <float.h>
#include <math.h>

#include "base/half.h"
#include "kv/hash.h"
#include "testing.h"

#define MAX_ROW 256

static void check_lane(const struct kv_cache *cache, const struct kv_lane *lane)
{
    int32_t len = 0, n_live = 0;
    int32_t top = -1;
    bool ragged = false;
    for (int32_t i = 0; i < lane->n_page; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        const int32_t *pos = kv_page_pos(cache, ref->page);
        assert_in_range(ref->page, 0, cache->n_page - 1);
        assert_in_range(ref->n, 0, cache->g.page_len);
        for (int32_t e = 0; e < ref->n; e++) {
            assert_true((int64_t)pos[e] + ref->delta >= 0);
            assert_true(e == 0 || pos[e - 1] < pos[e] || lane->unordered);
            top = (int32_t)pi_max(top, pos[e] + ref->delta);
        }
        if (ref->n == 0) {
            assert_int_equal(cache->n_ref[ref->page], 1);
            assert_int_equal(ref->delta, 0);
            continue;
        }
        assert_int_equal(n_live, i);
        ragged = ragged || (i > 0 && lane->table[i - 1].n < cache->g.page_len);
        n_live++;
        len += ref->n;
    }
    assert_int_equal(lane->len, len);
    assert_int_equal(lane->n_live, n_live);
    assert_int_equal(lane->ragged, ragged);
    assert_in_range(lane->aim, 0, len);
    if (lane->unordered)
        assert_int_equal(lane->top, top);
}

/* References and visible entries per page, from the tables. */
static int32_t count_tables(const struct kv_cache *cache, int32_t *n_ref, int32_t *n_entry)
{
    int32_t n_seq = 0;
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next, n_seq++)
        for (int32_t l = 0; l < kv_lane_count(cache); l++) {
            check_lane(cache, &seq->lane[l]);
            for (int32_t i = 0; i < seq->lane[l].n_page; i++) {
                const struct kv_page_ref *ref = &seq->lane[l].table[i];
                n_ref[ref->page]++;
                n_entry[ref->page] = (int32_t)pi_max(n_entry[ref->page], ref->n);
            }
        }
    return n_seq;
}

static int64_t sum_of_entry_bytes(const struct kv_geometry *g)
{
    int64_t bytes = 4;
    for (int i = 0; i < 2; i++) {
        int64_t dim = i ? g->dim_v : g->dim_k;
        switch (i ? g->type_v : g->type_k) {
        case KV_TYPE_F32:
            bytes += 4 * dim;
            break;
        case KV_TYPE_F16:
            bytes += 2 * dim;
            break;
        default:
            bytes += dim + dim / 32 * 2;
        }
    }
    bytes += (g->index & KV_INDEX_NORM) != 0 ? 4 : 0;
    bytes += (g->index & KV_INDEX_UNIT8) != 0 ? (g->dim_k + 3) / 4 * 4 + 4 : 0;
    bytes += (g->index & KV_INDEX_COLUMNS) != 0 ? 2 * g->dim_k : 0;
    bytes += (g->index & KV_INDEX_PROJ) != 0 ? 2 * g->index_dim : 0;
    return bytes;
}

/* What a full page has beyond its entries. */
static int64_t sum_of_page_bytes(const struct kv_geometry *g)
{
    int64_t bytes = (g->index & KV_INDEX_BOUNDS) != 0 ? 8 * g->dim_k : 0;
    return bytes + ((g->index & KV_INDEX_VALUE_SUM) != 0 ? 4 * g->dim_v : 0);
}

void kv_check_account(const struct kv_cache *cache, int64_t other_table_bytes)
{
    int32_t *n_ref = calloc((size_t)cache->n_page, sizeof(*n_ref));
    int32_t *n_entry = calloc((size_t)cache->n_page, sizeof(*n_entry));
    int64_t n_used = 0, n_shared = 0, n_extra = 0, n_live = 0, n_full = 0;
    int64_t page = (int64_t)kv_page_bytes(&cache->g);
    pith_kv_stats stats;
    kv_cache_stats(cache, &stats);
    assert_int_equal(stats.n_seq, count_tables(cache, n_ref, n_entry));
    bool below_free = true;
    for (int32_t p = 0; p < cache->n_page; p++) {
        bool taken = (cache->taken[p / 64] >> (p % 64) & 1) != 0;
        assert_int_equal(cache->n_ref[p], n_ref[p]);
        assert_int_equal(taken, n_ref[p] > 0);
        assert_int_equal(cache->n_entry[p], 0);
        below_free = below_free && taken;
        if (p / 64 < cache->low_word)
            assert_true(below_free);
        n_used += n_ref[p] > 0;
        n_shared += n_ref[p] > 1;
        n_extra += n_ref[p] > 1 ? n_ref[p] - 1 : 0;
        n_live += n_entry[p];
        n_full += n_entry[p] == cache->g.page_len;
    }
    assert_int_equal(stats.page_bytes, page);
    assert_int_equal(stats.n_page, cache->n_page);
    assert_int_equal(stats.n_page_used, n_used);
    assert_int_equal(stats.reserved_bytes, cache->n_page * page);
    assert_int_equal(stats.used_bytes, n_used * page);
    assert_int_equal(stats.live_bytes, n_live * sum_of_entry_bytes(&cache->g) +
                                           n_full * sum_of_page_bytes(&cache->g));
    assert_int_equal(stats.shared_bytes, n_shared * page);
    assert_int_equal(stats.saved_bytes, n_extra * page);
    assert_int_equal(stats.table_bytes, pi_mem_used(PI_MEM_TABLE) - other_table_bytes);
    assert_true(stats.live_bytes <= stats.used_bytes);
    assert_true(stats.used_bytes <= stats.peak_bytes);
    assert_true(stats.peak_bytes <= stats.reserved_bytes);
    free(n_ref);
    free(n_entry);
}

uint64_t kv_check_digest(const struct kv_cache *cache)
{
    struct kv_hash hash;
    pith_kv_stats stats;
    kv_hash_start(&hash);
    kv_cache_stats(cache, &stats);
    kv_hash_add(&hash, &stats, sizeof(stats));
    kv_hash_add(&hash, cache->n_ref, (size_t)cache->n_page * sizeof(*cache->n_ref));
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        for (int32_t l = 0; l < kv_lane_count(cache); l++) {
            const struct kv_lane *lane = &seq->lane[l];
            const int32_t counts[] = {lane->n_page, lane->n_live,    lane->len,
                                      lane->ragged, lane->unordered, lane->aim};
            kv_hash_add(&hash, counts, sizeof(counts));
            kv_hash_add(&hash, lane->table, (size_t)lane->n_page * sizeof(*lane->table));
            for (int32_t i = 0; i < lane->n_live; i++)
                kv_hash_add(&hash, kv_page_at(cache, lane->table[i].page), cache->layout.bytes);
        }
    return kv_hash_value(&hash);
}

void kv_check_row(uint64_t key, float *row, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        row[i] = rng_float(&key);
}

pith_status kv_check_append(struct kv_seq *seq, uint64_t key, int32_t pos0, int32_t n)
{
    const struct kv_geometry *g = &seq->cache->g;
    float k[MAX_ROW], v[MAX_ROW];
    PI_TRY(kv_seq_reserve(seq, n, NULL));
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            for (int32_t i = 0; i < n; i++) {
                uint64_t id = (((uint64_t)key * 64 + (uint64_t)l) * 64 + (uint64_t)h) << 32 |
                              (uint32_t)(pos0 + i);
                kv_check_row(id, k, g->dim_k);
                kv_check_row(~id, v, g->dim_v);
                kv_seq_append(seq, l, h, pos0 + i, 1, k, 0, v, 0);
            }
    return PITH_OK;
}

void kv_check_same(const struct kv_seq *a, const struct kv_seq *b)
{
    const struct kv_geometry *g = &a->cache->g;
    float row_a[MAX_ROW], row_b[MAX_ROW];
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            const struct kv_lane *lane_a = kv_lane_at(a, l, h), *lane_b = kv_lane_at(b, l, h);
            assert_int_equal(lane_a->len, lane_b->len);
            assert_int_equal(lane_a->n_live, lane_b->n_live);
            for (int32_t i = 0; i < lane_a->n_live; i++) {
                assert_int_equal(lane_a->table[i].n, lane_b->table[i].n);
                assert_int_equal(lane_a->table[i].delta, lane_b->table[i].delta);
            }
            for (int32_t s = 0; s < lane_a->len; s++) {
                assert_int_equal(kv_lane_pos(a, l, h, s), kv_lane_pos(b, l, h, s));
                kv_lane_key(a, l, h, s, row_a);
                kv_lane_key(b, l, h, s, row_b);
                assert_memory_equal(row_a, row_b, (size_t)g->dim_k * sizeof(float));
                kv_lane_value(a, l, h, s, row_a);
                kv_lane_value(b, l, h, s, row_b);
                assert_memory_equal(row_a, row_b, (size_t)g->dim_v * sizeof(float));
            }
        }
}

struct kv_cache *kv_check_cache(const struct kv_geometry *g, int32_t n_page)
{
    struct kv_cache *cache = NULL;
    int64_t budget = n_page * (int64_t)kv_page_bytes(g);
    assert_int_equal(kv_cache_create(g, budget, &cache, NULL), PITH_OK);
    assert_int_equal(cache->n_page, n_page);
    return cache;
}

static float saturate(float x, float limit)
{
    if (isnan(x))
        return 0.0f;
    return x > limit ? limit : x < -limit ? -limit : x;
}

void kv_check_stored(enum kv_type type, const float *row, int32_t n, float *out)
{
    for (int32_t b = 0; b < n; b += 32) {
        float max = 0.0f, d, inverse;
        int32_t end = b + 32 < n ? b + 32 : n;
        if (type == KV_TYPE_Q8_0) {
            for (int32_t i = b; i < end; i++)
                max = fmaxf(max, fabsf(saturate(row[i], 65504.0f * 127.0f)));
            d = max / 127.0f;
            inverse = pi_f16_from_f32(d) != 0 ? 1.0f / d : 0.0f;
            for (int32_t i = b; i < end; i++)
                out[i] = pi_f32_from_f16(pi_f16_from_f32(d)) *
                         /* a code has no negative zero, whatever the compiler folds */
                         (0.0f + roundf(saturate(row[i], 65504.0f * 127.0f) * inverse));
        } else {
            for (int32_t i = b; i < end; i++)
                out[i] = type == KV_TYPE_F32
                             ? saturate(row[i], FLT_MAX)
                             : pi_f32_from_f16(pi_f16_from_f32(saturate(row[i], 65504.0f)));
        }
    }
}
