/*
 * kv_check.c - checks of the KV store that do not trust its counters: each is recomputed from the
 * tables alone, in the plainest way.
 */
#include "kv_check.h"

#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "file/sum.h"
#include "device/cpu/wht.h"
#include "testing.h"

#define MAX_ROW 256

static void check_lane(const struct kv_cache *cache, const struct kv_lane *lane)
{
    int32_t len = 0, n_live = 0;
    int32_t top = -1;
    bool ragged = false;
    for (int32_t i = 0; i < lane->n_page; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        const int32_t *pos = kv_page_pos(lane->kind, ref->page);
        assert_in_range(ref->page, 0, lane->kind->n_page - 1);
        assert_in_range(ref->n, 0, cache->g.page_len);
        for (int32_t e = 0; e < ref->n; e++) {
            assert_true((int64_t)pos[e] + ref->delta >= 0);
            assert_true(e == 0 || pos[e - 1] < pos[e] || lane->unordered);
            top = (int32_t)pi_max(top, pos[e] + ref->delta);
        }
        if (ref->n == 0) {
            assert_int_equal(lane->kind->n_ref[ref->page], 1);
            assert_int_equal(ref->delta, 0);
            assert_int_equal(ref->n_folded, 0);
            assert_false(ref->closed);
            continue;
        }
        assert_false(ref->closed && ref->n == cache->g.page_len);
        assert_int_equal(n_live, i);
        ragged = ragged || (i > 0 && lane->table[i - 1].n < cache->g.page_len);
        n_live++;
        len += ref->n;
    }
    assert_int_equal(lane->len, len);
    assert_int_equal(lane->n_live, n_live);
    assert_int_equal(lane->ragged, ragged);
    assert_in_range(lane->victim, 0, len);
    if (lane->unordered)
        assert_int_equal(lane->top, top);
}

/* References from tables and from blocks, and visible entries, for each page of a class. */
struct count {
    int32_t n_ref;
    int32_t n_held;
    int32_t n_entry;
};
struct counts {
    struct count *page[KV_CLASS_MAX];
};

/* The states of a sequence; its own is live. */
static void count_states(const struct kv_seq *seq, struct counts *c)
{
    const struct kv_class *kind = seq->cache->state;
    if (kind == NULL)
        return;
    struct count *count = c->page[kind->number];
    if (seq->state.page >= 0) {
        count[seq->state.page].n_ref++;
        count[seq->state.page].n_entry = 1;
    }
    for (int32_t i = 0; i < seq->n_kept; i++) {
        count[seq->kept[i].page].n_ref++;
        assert_true(seq->kept[i].n_token <= seq->state.n_token);
        assert_true(i == 0 || seq->kept[i].n_token > seq->kept[i - 1].n_token);
    }
}

static int32_t count_tables(const struct kv_cache *cache, struct counts *c)
{
    int32_t n_seq = 0;
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next, n_seq++)
        for (int32_t l = 0; l < kv_lane_count(cache); l++) {
            const struct kv_class *kind = seq->lane[l].kind;
            int32_t layer = l / cache->g.n_head;
            assert_int_equal(kind->type_k, kv_layer_type_k(&cache->g, layer));
            assert_int_equal(kind->type_v, kv_layer_type_v(&cache->g, layer));
            check_lane(cache, &seq->lane[l]);
            for (int32_t i = 0; i < seq->lane[l].n_page; i++) {
                const struct kv_page_ref *ref = &seq->lane[l].table[i];
                struct count *count = &c->page[kind->number][ref->page];
                count->n_ref++;
                count->n_entry = (int32_t)pi_max(count->n_entry, ref->n);
            }
        }
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        count_states(seq, c);
    for (const struct kv_block *b = cache->block; b != NULL; b = b->next)
        if (b->state >= 0)
            c->page[cache->state->number][b->state].n_held++;
    for (const struct kv_block *b = cache->block; b != NULL; b = b->next)
        for (int32_t l = 0; l < kv_lane_count(cache); l++) {
            const struct kv_class *kind = kv_class_of(cache->kind, &cache->g, l / cache->g.n_head);
            if (b->page[l] >= 0)
                c->page[kind->number][b->page[l]].n_held++;
        }
    return n_seq;
}

/* Bytes of an entry's key or value, the storage types written down again. */
static int64_t sum_of_part_bytes(enum kv_type type, int64_t dim)
{
    int64_t group = 128;
    switch (type) {
    case KV_TYPE_F32:
        return 4 * dim;
    case KV_TYPE_F16:
    case KV_TYPE_BF16:
        return 2 * dim;
    case KV_TYPE_Q8_0:
        return dim + dim / 32 * 2;
    case KV_TYPE_Q4_0:
        return dim / 2 + dim / 32 * 2;
    default:
        while (dim % group != 0)
            group /= 2;
        return dim *
                   (type == KV_TYPE_TURBO4   ? 4
                    : type == KV_TYPE_TURBO3 ? 3
                                             : 2) /
                   8 +
               dim / group * 2;
    }
}

static int64_t sum_of_entry_bytes(const struct kv_geometry *g, const struct kv_class *kind)
{
    int64_t bytes =
        4 + sum_of_part_bytes(kind->type_k, g->dim_k) + sum_of_part_bytes(kind->type_v, g->dim_v);
    bytes += (g->index & KV_INDEX_NORM) != 0 ? 4 : 0;
    bytes += (g->index & KV_INDEX_UNIT8) != 0 ? (g->dim_k + 3) / 4 * 4 + 4 : 0;
    bytes += (g->index & KV_INDEX_COLUMNS) != 0 ? 2 * g->dim_k : 0;
    bytes += (g->index & KV_INDEX_PROJ) != 0 ? 2 * g->index_dim : 0;
    return bytes;
}

/* The bytes of a full page beside its entries. */
static int64_t sum_of_page_bytes(const struct kv_geometry *g)
{
    int64_t bytes = (g->index & KV_INDEX_BOUNDS) != 0 ? 8 * g->dim_k : 0;
    return bytes + ((g->index & KV_INDEX_VALUE_SUM) != 0 ? 4 * g->dim_v : 0);
}

/* Adds a class's counts by the tables to the expected statistics. */
static void check_class(const struct kv_cache *cache, const struct kv_class *kind,
                        const struct count *count, pith_kv_stats *want)
{
    int64_t page = (int64_t)kind->layout.bytes, n_used = 0, n_resident = 0;
    bool below_free = true;
    for (int32_t p = 0; p < kind->n_page; p++) {
        bool taken = (kind->taken[p / 64] >> (p % 64) & 1) != 0;
        bool resident = (kind->resident[p / 64] >> (p % 64) & 1) != 0;
        struct count c = count[p];
        assert_int_equal(kind->n_ref[p], c.n_ref + c.n_held);
        assert_int_equal(kind->n_held[p], c.n_held);
        assert_int_equal(taken, c.n_ref + c.n_held > 0);
        assert_int_equal(kind->n_entry[p], 0);
        assert_true(resident || !taken || cache->n_kind == 1);
        below_free = below_free && taken;
        if (p / 64 < kind->low_word)
            assert_true(below_free);
        n_used += taken;
        n_resident += resident;
        want->shared_bytes += c.n_ref > 1 ? page : 0;
        want->saved_bytes += c.n_ref > 1 ? page * (c.n_ref - 1) : 0;
        if (kind == cache->state) {
            want->live_bytes += c.n_entry * page;
            continue;
        }
        want->live_bytes += c.n_entry * sum_of_entry_bytes(&cache->g, kind) +
                            (c.n_entry == cache->g.page_len ? sum_of_page_bytes(&cache->g) : 0);
    }
    assert_int_equal(kind->n_used, n_used);
    assert_int_equal(kind->n_resident, n_resident);
    want->used_bytes += n_used * page;
    if (kind == cache->state)
        return;
    want->n_page_used += n_used;
    want->page_bytes = pi_max(want->page_bytes, page);
}

void kv_check_account(const struct kv_cache *cache, int64_t other_table_bytes)
{
    struct counts c;
    pith_kv_stats stats, want = {0};
    int64_t resident = 0;
    for (int32_t i = 0; i < cache->n_kind; i++)
        c.page[i] = calloc((size_t)cache->kind[i].n_page, sizeof(*c.page[i]));
    kv_cache_stats(cache, &stats);
    assert_int_equal(stats.n_seq, count_tables(cache, &c));
    for (int32_t i = 0; i < cache->n_kind; i++) {
        check_class(cache, &cache->kind[i], c.page[i], &want);
        resident += kv_pages_bytes(&cache->kind[i], cache->kind[i].n_resident);
        free(c.page[i]);
    }
    assert_int_equal(stats.reserved_bytes, cache->budget);
    assert_int_equal(stats.page_bytes, want.page_bytes);
    assert_int_equal(stats.n_page_used, want.n_page_used);
    assert_int_equal(stats.n_page, want.n_page_used + kv_free_bytes(cache) / want.page_bytes);
    assert_int_equal(stats.used_bytes, want.used_bytes);
    assert_int_equal(stats.live_bytes, want.live_bytes);
    assert_int_equal(stats.shared_bytes, want.shared_bytes);
    assert_int_equal(stats.saved_bytes, want.saved_bytes);
    assert_int_equal(stats.table_bytes, pi_mem_used(PI_MEM_TABLE) - other_table_bytes);
    assert_true(stats.live_bytes <= stats.used_bytes);
    assert_true(stats.used_bytes <= stats.peak_bytes);
    assert_true(stats.peak_bytes <= stats.reserved_bytes);
    assert_true(resident <= stats.reserved_bytes);
}

static void add_page(struct pi_sum *hash, const struct kv_class *kind, int32_t page)
{
    size_t size = kind->layout.stride;
    uint8_t *room = malloc(size);
    struct pi_at at = pi_at_add(kind->pool, (size_t)page * size);
    pi_sum_add(hash, kind->device->download(NULL, at, size, room), size);
    free(room);
    pi_sum_add(hash, kv_page_pos(kind, page), (size_t)kind->page_len * sizeof(int32_t));
}

uint64_t kv_check_digest(const struct kv_cache *cache)
{
    struct pi_sum hash;
    pith_kv_stats stats;
    pi_sum_start(&hash);
    kv_cache_stats(cache, &stats);
    pi_sum_add(&hash, &stats, sizeof(stats));
    for (int32_t i = 0; i < cache->n_kind; i++)
        pi_sum_add(&hash, cache->kind[i].n_ref,
                   (size_t)cache->kind[i].n_page * sizeof(*cache->kind[i].n_ref));
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        for (int32_t l = 0; l < kv_lane_count(cache); l++) {
            const struct kv_lane *lane = &seq->lane[l];
            const int32_t counts[] = {lane->n_page, lane->n_live,    lane->len,
                                      lane->ragged, lane->unordered, lane->victim};
            pi_sum_add(&hash, counts, sizeof(counts));
            pi_sum_add(&hash, lane->table, (size_t)lane->n_page * sizeof(*lane->table));
            for (int32_t i = 0; i < lane->n_live; i++)
                add_page(&hash, lane->kind, lane->table[i].page);
        }
    return pi_sum_value(&hash);
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
                assert_int_equal(lane_a->table[i].n_folded, lane_b->table[i].n_folded);
                assert_int_equal(lane_a->table[i].closed, lane_b->table[i].closed);
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
    assert_int_equal(cache->budget, budget);
    return cache;
}

int32_t kv_check_free(const struct kv_cache *cache)
{
    return (int32_t)((cache->budget - cache->used) / (int64_t)kv_page_bytes(&cache->g));
}

static float saturate(float x, float limit)
{
    if (isnan(x))
        return 0.0f;
    return x > limit ? limit : x < -limit ? -limit : x;
}

static float half_of(float x)
{
    return pi_f32_from_f16(pi_f16_from_f32(x));
}

/* A block of 32 of q8_0 or q4_0. */
static void store_block(enum kv_type type, const float *row, float *out)
{
    float limit = type == KV_TYPE_Q8_0 ? 65504.0f * 127.0f : 65504.0f * 8.0f, most = 0.0f;
    for (int32_t i = 0; i < 32; i++)
        if (fabsf(saturate(row[i], limit)) > fabsf(most))
            most = saturate(row[i], limit);
    float d = type == KV_TYPE_Q8_0 ? fabsf(most) / 127.0f : most / -8.0f;
    float inverse = half_of(d) != 0.0f ? 1.0f / d : 0.0f;
    for (int32_t i = 0; i < 32; i++) {
        float x = saturate(row[i], limit) * inverse;
        /* a code has no negative zero, however the compiler folds */
        float code = type == KV_TYPE_Q8_0 ? 0.0f + roundf(x) : fminf(15.0f, truncf(x + 8.5f)) - 8;
        out[i] = (half_of(d) != 0.0f ? half_of(d) : 0.0f) * code;
    }
}

/* Stores a group of a turbo type. The transform and the centroids are the library's, which
   test_kv_turbo checks. So are the sums that choose a stretch, which test_vec checks. */
static void store_group(enum kv_type type, const float *row, int32_t group, float *out)
{
    static const float stretch[] = {1.0f, 0.8f, 0.9f, 1.1f, 1.2f};
    const float *table = kv_codec_table(type, group);
    int32_t n_code = type == KV_TYPE_TURBO4 ? 16 : type == KV_TYPE_TURBO3 ? 8 : 4;
    float x[128], along = 0.0f, most = -1.0f, best = 0.0f;
    double norm = 0.0;
    for (int32_t i = 0; i < group; i++) {
        x[i] = saturate(row[i], 65504.0f);
        norm += (double)x[i] * (double)x[i];
    }
    kv_wht(x, group, group, false);
    for (size_t s = 0; s < PI_LEN(stretch); s++) {
        float xc, cc;
        pi_kernels()->vec.table_fit(x, group, table, n_code, (float)sqrt(norm) * stretch[s], &xc,
                                    &cc);
        if (xc * xc > most * cc) {
            most = xc * xc / cc;
            along = xc;
            best = (float)sqrt(norm) * stretch[s];
        }
    }
    float scale = (float)(norm / (double)along);
    scale = norm <= 1e-20 ? 0.0f : half_of(fminf(scale, 65504.0f));
    for (int32_t i = 0; i < group; i++) {
        int32_t code = 0;
        for (int32_t c = 1; c < n_code; c++)
            if (x[i] >= 0.5f * (table[c - 1] + table[c]) * best)
                code = c;
        out[i] = scale * table[code];
    }
    kv_wht(out, group, group, true);
}

/* The nearest of 8 bits, ties to even, by way of a double; nothing below 2^-40, and finite. */
static float bf16_of(float x)
{
    int exponent;
    if (!(fabsf(x) >= 0x1p-40f)) /* NaN, too */
        return 0.0f;
    if (fabsf(x) >= 0x1.fep127f)
        return copysignf(0x1.fep127f, x);
    double part = frexp((double)x, &exponent);
    return (float)ldexp(rint(ldexp(part, 8)), exponent - 8);
}

void kv_check_stored(enum kv_type type, const float *row, int32_t n, float *out)
{
    int32_t group = 128;
    while (n % group != 0)
        group /= 2;
    for (int32_t i = 0; i < n; i++)
        if (type == KV_TYPE_F32)
            out[i] = saturate(row[i], FLT_MAX);
        else if (type == KV_TYPE_F16)
            out[i] = half_of(saturate(row[i], 65504.0f));
        else if (type == KV_TYPE_BF16)
            out[i] = bf16_of(row[i]);
        else if (type <= KV_TYPE_Q4_0 && i % 32 == 0)
            store_block(type, row + i, out + i);
        else if (type > KV_TYPE_Q4_0 && i % group == 0)
            store_group(type, row + i, group, out + i);
}
