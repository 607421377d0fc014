/*
 * test_kv_index.c - the parts of pages beside their entries. Each part is checked by its
 * definition, and follows the entries through every operation. The account counts it, files do not
 * hold it.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "folder.h"
#include "kv_by_page.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

TEST_GROUP(make_folder, remove_folder);

static const uint32_t all_parts = KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS |
                                  KV_INDEX_PROJ | KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM;

/* ---- definitions ---- */

static void fill(float *x, int32_t n, uint64_t *rng, float factor)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = factor * rng_float(rng);
}

static const float *floats_at(const uint8_t *page, size_t offset)
{
    return (const float *)(const void *)(page + offset);
}

static float half_at(const uint8_t *page, size_t offset, size_t i)
{
    return pi_f32_from_f16(((const uint16_t *)(const void *)(page + offset))[i]);
}

static void assert_near(double got, double want, double error, const char *what)
{
    if (!(fabs(got - want) <= error))
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
}

static void check_entry(const struct kv_cache *cache, const uint8_t *page, int32_t e,
                        const float *k, const float *matrix)
{
    const struct kv_geometry *g = &cache->g;
    const struct kv_page_layout *at = &cache->kind[0].layout;
    size_t dim = (size_t)g->dim_k, n = (size_t)e;
    double square = 0, max = 0;
    for (size_t d = 0; d < dim; d++) {
        square += (double)k[d] * (double)k[d];
        max = fmax(max, fabs((double)k[d]));
    }
    double inverse = square > 0 ? 1 / sqrt(square) : 0;
    assert_near((double)floats_at(page, at->norm)[e], inverse, inverse * 1e-7, "norm");
    double scale = (double)floats_at(page, at->unit_scale)[e];
    assert_near(scale, max * inverse / 127, max * inverse * 1e-7, "scale");
    for (size_t d = 0; d < pi_align(dim, 4); d++) {
        double u = d < dim ? (double)k[d] * inverse : 0;
        int code = page[at->unit + n * pi_align(dim, 4) + d] - 128;
        assert_true(code >= -127 && code <= 127);
        assert_near(code * scale, u, 0.5001 * scale, "code");
    }
    for (size_t d = 0; d < dim; d++)
        assert_near((double)half_at(page, at->columns, d * (size_t)g->page_len + n), (double)k[d],
                    fabs((double)k[d]) * 0x1p-11 + 1e-7, "column");
    for (int32_t r = 0; r < g->index_dim; r++) {
        double x = 0, sum = 0;
        for (size_t d = 0; d < dim; d++) {
            x += (double)matrix[(size_t)r * dim + d] * (double)k[d];
            sum += fabs((double)matrix[(size_t)r * dim + d] * (double)k[d]);
        }
        assert_near((double)half_at(page, at->proj, n * (size_t)g->index_dim + (size_t)r), x,
                    sum * 1e-6 + fabs(x) * 0x1p-11 + 1e-7, "projection");
    }
}

static void check_page(const struct kv_cache *cache, const struct kv_seq *seq, const uint8_t *page)
{
    const struct kv_geometry *g = &cache->g;
    const float *least = floats_at(page, cache->kind[0].layout.bounds), *most = least + g->dim_k;
    const float *sum = floats_at(page, cache->kind[0].layout.value_sum);
    float k[256], v[256], low[256], high[256], total[256];
    for (int32_t s = 0; s < g->page_len; s++) {
        kv_lane_key(seq, 0, 0, s, k);
        kv_lane_value(seq, 0, 0, s, v);
        for (int32_t d = 0; d < g->dim_k; d++) {
            low[d] = s == 0 || k[d] < low[d] ? k[d] : low[d];
            high[d] = s == 0 || k[d] > high[d] ? k[d] : high[d];
        }
        for (int32_t d = 0; d < g->dim_v; d++)
            total[d] = s == 0 ? v[d] : total[d] + v[d];
    }
    assert_memory_equal(least, low, (size_t)g->dim_k * sizeof(float));
    assert_memory_equal(most, high, (size_t)g->dim_k * sizeof(float));
    assert_memory_equal(sum, total, (size_t)g->dim_v * sizeof(float));
}

/* Every part of a page and of its entries, for all types and odd head sizes. */
TEST(each_part_is_what_it_is_defined_to_be)
{
    const struct kv_geometry shapes[] = {
        {1,
         1,
         64,
         96,
         16,
         KV_TYPE_F16,
         KV_TYPE_F32,
         all_parts,
         20,
         {0},
         {0},
         NULL,
         0,
         0,
         0,
         NULL,
         {0}},
        {1,
         1,
         130,
         33,
         32,
         KV_TYPE_F32,
         KV_TYPE_F16,
         all_parts,
         130,
         {0},
         {0},
         NULL,
         0,
         0,
         0,
         NULL,
         {0}},
        {1,
         1,
         160,
         160,
         16,
         KV_TYPE_Q8_0,
         KV_TYPE_Q8_0,
         all_parts,
         1,
         {0},
         {0},
         NULL,
         0,
         0,
         0,
         NULL,
         {0}},
        {1,
         1,
         3,
         1,
         64,
         KV_TYPE_F16,
         KV_TYPE_F16,
         all_parts,
         2,
         {0},
         {0},
         NULL,
         0,
         0,
         0,
         NULL,
         {0}},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct kv_geometry *g = &shapes[i];
        struct kv_cache *cache = kv_check_cache(g, 4);
        struct kv_seq *seq;
        uint64_t rng = i;
        float k[64 * 160], v[64 * 160], matrix[130 * 130], key[160];
        fill(k, g->page_len * g->dim_k, &rng, 3.0f);
        fill(v, g->page_len * g->dim_v, &rng, 3.0f);
        fill(matrix, g->index_dim * g->dim_k, &rng, 0.5f);
        memset(k, 0, (size_t)g->dim_k * sizeof(*k)); /* no direction */
        for (int32_t d = 0; d < g->dim_k; d++)       /* as small as numbers get */
            k[g->dim_k + d] = g->type_k == KV_TYPE_F32 ? 1e-45f : 1e-7f;
        kv_cache_set_projection(cache, matrix);
        assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
        assert_int_equal(kv_seq_reserve(seq, g->page_len, NULL), PITH_OK);
        kv_seq_append(seq, 0, 0, 0, g->page_len, k, (size_t)g->dim_k, v, (size_t)g->dim_v);
        const uint8_t *page = kv_page_at(cache->kind, seq->lane[0].table[0].page);
        for (int32_t e = 0; e < g->page_len; e++) {
            kv_lane_key(seq, 0, 0, e, key);
            if (e != 1 || g->type_k != KV_TYPE_F32)
                check_entry(cache, page, e, key, matrix);
        }
        assert_true(isfinite(floats_at(page, cache->kind[0].layout.norm)[1]));
        check_page(cache, seq, page);
        kv_seq_free(seq);
        kv_cache_free(cache);
    }
}

/* ---- that it follows the entries ---- */

enum { N_SEQ = 4, N_LAYER = 2, N_HEAD = 2, N_LANE = N_LAYER * N_HEAD };

struct zoo {
    struct kv_cache *cache;
    struct kv_seq *seq[N_SEQ];
    int32_t pos; /* above every position */
    uint64_t rng;
    uint8_t *fresh; /* a page */
    int32_t n_shared, n_folded;
};

/* Compares n rows of `size` bytes from an offset on. */
static void assert_rows(const uint8_t *page, const uint8_t *fresh, size_t offset, size_t size,
                        int32_t n, const char *what)
{
    if (memcmp(page + offset, fresh + offset, size * (size_t)n) != 0)
        fail_msg("%s of %d rows is not what it would be, made anew", what, n);
}

static void assert_fresh(struct zoo *z, int32_t lane, const struct kv_page_ref *ref)
{
    const struct kv_geometry *g = &z->cache->g;
    const struct kv_page_layout *at = &z->cache->kind[0].layout;
    const uint8_t *page = kv_page_at(z->cache->kind, ref->page);
    size_t dim = (size_t)g->dim_k;
    memset(z->fresh, 0xaa, at->stride);
    memcpy(z->fresh, page, at->stored);
    kv_index_write(z->cache, z->cache->kind, lane, z->fresh, 0, ref->n);
    assert_rows(page, z->fresh, at->norm, sizeof(float), ref->n, "norm");
    assert_rows(page, z->fresh, at->unit, kv_unit_dim(g), ref->n, "unit");
    assert_rows(page, z->fresh, at->unit_scale, sizeof(float), ref->n, "unit_scale");
    assert_rows(page, z->fresh, at->proj, (size_t)g->index_dim * 2, ref->n, "proj");
    for (size_t d = 0; d < dim; d++)
        assert_rows(page, z->fresh, at->columns + d * (size_t)g->page_len * 2, 2, ref->n, "column");
    if (ref->n < g->page_len)
        return;
    kv_index_finish(z->cache, z->cache->kind, z->fresh);
    assert_rows(page, z->fresh, at->bounds, 2 * dim * sizeof(float), 1, "bounds");
    assert_rows(page, z->fresh, at->value_sum, (size_t)g->dim_v * sizeof(float), 1, "value_sum");
}

static void assert_all_fresh(struct zoo *z)
{
    for (int i = 0; i < N_SEQ; i++)
        for (int32_t l = 0; l < N_LANE && z->seq[i] != NULL; l++)
            for (int32_t p = 0; p < z->seq[i]->lane[l].n_live; p++)
                assert_fresh(z, l, &z->seq[i]->lane[l].table[p]);
}

static void do_append(struct zoo *z, struct kv_seq *seq, bool overwrites)
{
    int32_t n = 1 + (int32_t)rng_below(&z->rng, 50);
    for (int32_t l = 0; l < N_LANE && overwrites; l++) {
        int32_t len = kv_lane_len(seq, l / N_HEAD, l % N_HEAD);
        if (len == 0)
            continue;
        int32_t slot = (int32_t)rng_below(&z->rng, (uint64_t)len);
        if (kv_lane_can_overwrite(seq, l / N_HEAD, l % N_HEAD, slot))
            kv_seq_set_victim(seq, l / N_HEAD, l % N_HEAD, slot);
    }
    if (kv_check_append(seq, rng_next(&z->rng), z->pos, n) == PITH_OK)
        z->pos += n;
}

static void do_compact(struct zoo *z, struct kv_seq *seq)
{
    int32_t slots[4096], l = (int32_t)rng_below(&z->rng, N_LANE), n = 0;
    int32_t len = kv_lane_len(seq, l / N_HEAD, l % N_HEAD);
    uint64_t keep = 1 + rng_below(&z->rng, 40);
    for (int32_t s = 0; s < len && n < 4096; s++)
        if (rng_below(&z->rng, 40) < keep)
            slots[n++] = s;
    (void)kv_seq_compact(seq, l / N_HEAD, l % N_HEAD, slots, n, NULL);
}

static void do_reload(struct zoo *z, struct kv_seq **seq)
{
    struct kv_seq *loaded;
    void *extra;
    size_t extra_size;
    const char *path = in_folder("a.snapshot");
    assert_int_equal(kv_seq_save(*seq, "x", 1, path, NULL), PITH_OK);
    if (kv_seq_load(z->cache, path, &loaded, &extra, &extra_size, NULL) != PITH_OK)
        return;
    pi_mem_free(extra);
    kv_seq_free(*seq);
    *seq = loaded;
}

/* Some entries are shared with another sequence and begin and end anywhere in pages. */
static void do_share(struct zoo *z, struct kv_seq *seq, const struct kv_seq *from)
{
    int32_t l = (int32_t)rng_below(&z->rng, N_LANE), layer = l / N_HEAD, head = l % N_HEAD;
    int32_t len = kv_lane_len(seq, layer, head), n_run = kv_lane_runs(from, layer, head);
    if (len == 0 || n_run == 0)
        return;
    int32_t slot = (int32_t)rng_below(&z->rng, (uint64_t)len), n = len - slot;
    struct kv_run run = page_find(from, layer, head, (int32_t)rng_below(&z->rng, (uint64_t)n_run));
    if (n > 60 || rng_below(&z->rng, 2))
        n = 1 + (int32_t)rng_below(&z->rng, (uint64_t)pi_min(n, 60));
    assert_int_equal(kv_seq_reserve_runs(seq, n_run, NULL), PITH_OK);
    z->n_shared += kv_seq_share_span(seq, layer, head, slot, n, from, run.slot, 0, NULL) == PITH_OK;
}

static void do_split(struct zoo *z, struct kv_seq *seq)
{
    int32_t l = (int32_t)rng_below(&z->rng, N_LANE), len = kv_lane_len(seq, l / N_HEAD, l % N_HEAD);
    if (kv_seq_reserve_table(seq, 64, NULL) == PITH_OK)
        (void)kv_seq_split(seq, l / N_HEAD, l % N_HEAD,
                           (int32_t)rng_below(&z->rng, (uint64_t)len + 1), NULL);
}

/* Ends pages, or lets one count for what follows it. */
static void do_fold(struct zoo *z, struct kv_seq *seq)
{
    int32_t l = (int32_t)rng_below(&z->rng, N_LANE), layer = l / N_HEAD, head = l % N_HEAD;
    int32_t n = kv_lane_runs(seq, layer, head);
    struct kv_run into = page_find(seq, layer, head, (int32_t)rng_below(&z->rng, (uint64_t)n + 1));
    int32_t behind = kv_lane_len(seq, layer, head) - into.slot - 2 * into.n;
    if (behind < 0 || into.n == 0)
        pages_close(seq);
    else
        z->n_folded +=
            kv_seq_fold_span(seq, layer, head,
                             into.slot + into.n + (int32_t)rng_below(&z->rng, (uint64_t)behind + 1),
                             into.n, into.slot, NULL) == PITH_OK;
}

static void do_swap(struct kv_seq *seq)
{
    struct kv_swapped *out;
    assert_int_equal(kv_seq_swap_out(seq, &out, NULL), PITH_OK);
    assert_int_equal(kv_seq_swap_in(seq, out, NULL), PITH_OK);
}

static void do_something(struct zoo *z)
{
    struct kv_seq **seq = &z->seq[rng_below(&z->rng, N_SEQ)];
    struct kv_seq *other = z->seq[rng_below(&z->rng, N_SEQ)];
    uint64_t what = rng_below(&z->rng, 14);
    if (*seq == NULL) {
        if (other == NULL || kv_seq_fork(other, seq, NULL) != PITH_OK)
            assert_int_equal(kv_seq_create(z->cache, seq, NULL), PITH_OK);
    } else if (what < 4) {
        do_append(z, *seq, what == 0);
    } else if (what < 7) {
        do_compact(z, *seq);
    } else if (what == 7) {
        kv_seq_truncate(*seq, (int32_t)rng_below(&z->rng, (uint64_t)z->pos + 1));
    } else if (what == 8) {
        do_reload(z, seq);
    } else if (what == 9 && other != NULL) {
        do_share(z, *seq, other);
    } else if (what == 10) {
        do_split(z, *seq);
    } else if (what == 11) {
        do_fold(z, *seq);
    } else if (what == 12 && kv_cache_free_bytes(z->cache) >= z->cache->used) {
        do_swap(*seq);
    } else if (rng_below(&z->rng, 3) == 0) {
        kv_seq_free(*seq);
        *seq = NULL;
    }
}

TEST(the_index_follows_its_entries)
{
    for (int t = 0; t < KV_N_TYPE; t += TEST_STRIDE) {
        const struct kv_geometry g = {N_LAYER,
                                      N_HEAD,
                                      32,
                                      32,
                                      t == 1 ? 32 : 16,
                                      (enum kv_type)t,
                                      (enum kv_type)((t + 1) % KV_N_TYPE),
                                      all_parts,
                                      12,
                                      {0},
                                      {0},
                                      NULL,
                                      0,
                                      0,
                                      0,
                                      NULL,
                                      {0}};
        struct zoo z = {.cache = kv_check_cache(&g, 220), .rng = (uint64_t)t + 1};
        float matrix[N_LANE * 12 * 32];
        fill(matrix, N_LANE * 12 * 32, &z.rng, 0.5f);
        kv_cache_set_projection(z.cache, matrix);
        z.fresh = test_malloc(z.cache->kind[0].layout.stride);
        for (int i = 0; i < 600; i++) {
            do_something(&z);
            assert_all_fresh(&z);
        }
        kv_check_account(z.cache, 0);
        assert_true(z.n_shared >= 10 && z.n_folded >= 3);
        for (int i = 0; i < N_SEQ; i++)
            kv_seq_free(z.seq[i]);
        kv_cache_free(z.cache);
        test_free(z.fresh);
    }
}

/* ---- the account, files, refusals ---- */

TEST(the_index_is_counted)
{
    const struct kv_geometry plain = KV_SHAPE(1, 2, 64, 48, 16, KV_TYPE_F16, KV_TYPE_F16);
    struct kv_geometry g = plain;
    const struct {
        uint32_t part;
        size_t entry; /* bytes of an entry */
        size_t page;  /* bytes of a page, all parts aligned */
        size_t whole; /* bytes of a full page that are no entry's */
    } parts[] = {
        {KV_INDEX_NORM, 4, 64, 0},        {KV_INDEX_UNIT8, 68, 1024 + 64, 0},
        {KV_INDEX_COLUMNS, 128, 2048, 0}, {KV_INDEX_PROJ, 10, 192, 0},
        {KV_INDEX_BOUNDS, 0, 512, 512},   {KV_INDEX_VALUE_SUM, 0, 192, 192},
    };
    const size_t page = kv_page_bytes(&plain), entry = (64 + 48) * 2 + 4;
    float matrix[2 * 5 * 64] = {0};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        pith_kv_stats stats;
        struct kv_seq *seq;
        g.index = parts[i].part;
        g.index_dim = parts[i].part == KV_INDEX_PROJ ? 5 : 0;
        assert_int_equal(kv_page_bytes(&g), page + parts[i].page);
        assert_int_equal(kv_bytes_for_tokens(&g, 17), 4 * (int64_t)(page + parts[i].page));
        struct kv_cache *cache = kv_check_cache(&g, 8);
        if (g.index_dim > 0)
            kv_cache_set_projection(cache, matrix);
        assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
        assert_int_equal(kv_check_append(seq, 1, 0, 17), PITH_OK);
        kv_cache_stats(cache, &stats);
        assert_int_equal(stats.live_bytes,
                         2 * (int64_t)(17 * (entry + parts[i].entry) + parts[i].whole));
        assert_int_equal(stats.used_bytes, 4 * (int64_t)(page + parts[i].page));
        kv_seq_free(seq);
        kv_cache_free(cache);
    }
}

/* A file is the same with an index and without, and is read into caches with any. */
TEST(files_are_the_same_with_and_without_an_index)
{
    const struct kv_geometry plain =
        KV_SHAPE(N_LAYER, N_HEAD, 32, 32, 16, KV_TYPE_F16, KV_TYPE_F16);
    const struct kv_geometry indexed = {N_LAYER,     N_HEAD,    32, 32,   16,  KV_TYPE_F16,
                                        KV_TYPE_F16, all_parts, 7,  {0},  {0}, NULL,
                                        0,           0,         0,  NULL, {0}};
    struct kv_cache *a = kv_check_cache(&plain, 60), *b = kv_check_cache(&indexed, 60);
    float matrix[N_LANE * 7 * 32];
    uint64_t rng = 9;
    struct zoo z = {.cache = b, .fresh = test_malloc(b->kind[0].layout.stride)};
    struct kv_seq *first, *second;
    const char *path = in_folder("b.snapshot");
    void *extra;
    size_t size;
    fill(matrix, N_LANE * 7 * 32, &rng, 0.5f);
    kv_cache_set_projection(b, matrix);
    assert_int_equal(kv_seq_create(a, &first, NULL), PITH_OK);
    assert_int_equal(kv_check_append(first, 1, 5, 41), PITH_OK);
    assert_int_equal(kv_seq_save(first, NULL, 0, path, NULL), PITH_OK);
    assert_int_equal(kv_seq_load(b, path, &z.seq[0], &extra, &size, NULL), PITH_OK);
    pi_mem_free(extra);
    assert_all_fresh(&z);
    assert_int_equal(kv_seq_save(z.seq[0], NULL, 0, path, NULL), PITH_OK);
    assert_int_equal(kv_seq_load(a, path, &second, &extra, &size, NULL), PITH_OK);
    pi_mem_free(extra);
    kv_check_same(first, second);
    kv_seq_free(first);
    kv_seq_free(second);
    kv_seq_free(z.seq[0]);
    kv_cache_free(a);
    kv_cache_free(b);
    test_free(z.fresh);
}

TEST(refuses_bad_parts)
{
    const struct {
        struct kv_geometry g;
        pith_status status;
        const char *names;
    } cases[] = {
        {{1, 1, 32, 32, 16, KV_TYPE_F16, KV_TYPE_F16, 128, 0, {0}, {0}, NULL, 0, 0, 0, NULL, {0}},
         PITH_INVALID,
         "index: 128"},
        {{1, 1, 32, 32, 16, KV_TYPE_F16, KV_TYPE_F16, 0, 4, {0}, {0}, NULL, 0, 0, 0, NULL, {0}},
         PITH_INVALID,
         "index_dim: 4"},
        {{1,
          1,
          32,
          32,
          16,
          KV_TYPE_F16,
          KV_TYPE_F16,
          KV_INDEX_PROJ,
          0,
          {0},
          {0},
          NULL,
          0,
          0,
          0,
          NULL,
          {0}},
         PITH_INVALID,
         "index_dim: 0"},
        {{1,
          1,
          32,
          32,
          16,
          KV_TYPE_F16,
          KV_TYPE_F16,
          KV_INDEX_PROJ,
          33,
          {0},
          {0},
          NULL,
          0,
          0,
          0,
          NULL,
          {0}},
         PITH_INVALID,
         "index_dim: 33"},
        {{1,
          1,
          1025,
          32,
          16,
          KV_TYPE_F16,
          KV_TYPE_F16,
          KV_INDEX_PROJ,
          8,
          {0},
          {0},
          NULL,
          0,
          0,
          0,
          NULL,
          {0}},
         PITH_UNSUPPORTED,
         "1025 dimensions"},
        {{1,
          1,
          1025,
          32,
          16,
          KV_TYPE_F16,
          KV_TYPE_F16,
          KV_INDEX_NORM,
          0,
          {0},
          {0},
          NULL,
          0,
          0,
          0,
          NULL,
          {0}},
         PITH_OK,
         ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        err = (pith_error){0};
        assert_int_equal(kv_geometry_check(&cases[i].g, &err), cases[i].status);
        assert_non_null(strstr(err.message, cases[i].names));
    }
}
