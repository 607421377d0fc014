/*
 * index.c - the parts of a page beside its entries, for scoring without reading all of K
 * (kv/index.h). It must not know lanes, nor the use of the parts. Invariant: a part is a function
 * of the keys or values as the page stores them. So it is the same whether an entry was appended,
 * moved, copied or loaded. The parts of an entry are correct for every entry of a page, the parts
 * of the page for every page with page_len entries.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "device/cpu/pages.h"

/* ---- what belongs to an entry ---- */

/* The measures of a key, from which the parts follow. */
struct measure {
    double length; /* |k| */
    float max;     /* the largest |k[d]| */
};

static struct measure measure_key(const struct kv_cache *cache, const struct kv_class *kind,
                                  const uint8_t *page, int32_t slot)
{
    float row[KV_CODEC_MAX];
    double square = 0;
    struct measure m = {0};
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        kv_page_read_part(&kind->k, page, slot, d, n, row);
        square += pi_kernels()->vec.sum(row, n, 0.0, true);
        for (int32_t i = 0; i < n; i++)
            m.max = fabsf(row[i]) > m.max ? fabsf(row[i]) : m.max;
    }
    m.length = sqrt(square);
    return m;
}

/* Codes of k / |k|: the largest is 127 or -127, so that code * scale is k[d] / |k|, to half a
   scale. Stored + 128, and padded with codes 0. */
static void write_unit(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                       int32_t slot, const struct measure *m)
{
    float row[KV_CODEC_MAX];
    size_t unit_dim = kv_unit_dim(&cache->g);
    uint8_t *code = page + kind->layout.unit + (size_t)slot * unit_dim;
    double inverse = m->max > 0.0f ? 127.0 / (double)m->max : 0.0;
    float scale = m->max > 0.0f ? (float)((double)m->max / m->length / 127.0) : 0.0f;
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        kv_page_read_part(&kind->k, page, slot, d, n, row);
        for (int32_t i = 0; i < n; i++)
            code[d + i] = (uint8_t)(pi_score_code(row[i], inverse) + 128);
    }
    memset(code + cache->g.dim_k, 128, unit_dim - (size_t)cache->g.dim_k);
    kv_page_floats(page, kind->layout.unit_scale)[slot] = scale;
}

static uint16_t *halves_at(uint8_t *page, size_t offset)
{
    return (uint16_t *)(void *)(page + offset);
}

/* Values above the largest half float become the largest. */
static void write_half(float x, uint16_t *out)
{
    *out = pi_f16_from_f32(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

static void write_columns(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                          int32_t slot)
{
    float row[KV_CODEC_MAX];
    uint16_t *column = halves_at(page, kind->layout.columns) + slot;
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        kv_page_read_part(&kind->k, page, slot, d, n, row);
        for (int32_t i = 0; i < n; i++)
            write_half(row[i], column + (size_t)(d + i) * (size_t)cache->g.page_len);
    }
}

void kv_index_project(const struct kv_cache *cache, int32_t lane, const float *x, float *out)
{
    const struct kv_geometry *g = &cache->g;
    float row[KV_INDEX_DIM_MAX], product[KV_INDEX_DIM_MAX + 16];
    assert(cache->projection != NULL);
    pi_score_pack(x, 1, g->dim_k, row);
    struct pi_score_keys rows = {
        .k = cache->projection + (size_t)lane * (size_t)g->index_dim * (size_t)g->dim_k,
        .n = g->index_dim,
        .dim = g->dim_k,
    };
    const struct pi_score_vectors vector = {1, row};
    pi_kernels()->score.dot[PI_ATTEND_F32](&rows, &vector, product);
    memcpy(out, product, (size_t)g->index_dim * sizeof(*out));
}

static void write_proj(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                       uint8_t *page, int32_t slot)
{
    float key[KV_INDEX_DIM_MAX], product[KV_INDEX_DIM_MAX];
    size_t n = (size_t)cache->g.index_dim;
    uint16_t *to = halves_at(page, kind->layout.proj) + (size_t)slot * n;
    kv_page_read_key(cache, kind, page, slot, key);
    kv_index_project(cache, lane, key, product);
    for (size_t i = 0; i < n; i++)
        write_half(product[i], to + i);
}

void kv_index_write(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                    uint8_t *page, int32_t slot, int32_t n)
{
    /* Nothing is chosen of a lane with a window, and no projection is there for it. */
    bool chosen = kv_layer_window(&cache->g, lane / cache->g.n_head) == 0;
    uint32_t index = chosen ? cache->g.index : 0;
    for (int32_t s = slot; index != 0 && s < slot + n; s++) {
        struct measure m = {0};
        if ((index & (KV_INDEX_NORM | KV_INDEX_UNIT8)) != 0)
            m = measure_key(cache, kind, page, s);
        if ((index & KV_INDEX_NORM) != 0)
            kv_page_floats(page, kind->layout.norm)[s] =
                m.length > 0 ? (float)fmin(1.0 / m.length, FLT_MAX) : 0.0f;
        if ((index & KV_INDEX_UNIT8) != 0)
            write_unit(cache, kind, page, s, &m);
        if ((index & KV_INDEX_COLUMNS) != 0)
            write_columns(cache, kind, page, s);
        if ((index & KV_INDEX_PROJ) != 0)
            write_proj(cache, kind, lane, page, s);
    }
}

void kv_index_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                   const struct kv_page_part *part, int32_t n_part)
{
    const struct kv_geometry *g = &cache->g;
    const struct kv_page_layout *at = &kind->layout;
    size_t column = (size_t)g->page_len * sizeof(uint16_t);
    if ((g->index & KV_INDEX_NORM) != 0)
        kv_page_move_rows(kind, to, part, n_part, at->norm, sizeof(float));
    if ((g->index & KV_INDEX_UNIT8) != 0) {
        kv_page_move_rows(kind, to, part, n_part, at->unit, kv_unit_dim(g));
        kv_page_move_rows(kind, to, part, n_part, at->unit_scale, sizeof(float));
    }
    if ((g->index & KV_INDEX_PROJ) != 0)
        kv_page_move_rows(kind, to, part, n_part, at->proj,
                          (size_t)g->index_dim * sizeof(uint16_t));
    for (int32_t d = 0; (g->index & KV_INDEX_COLUMNS) != 0 && d < g->dim_k; d++)
        kv_page_move_rows(kind, to, part, n_part, at->columns + (size_t)d * column,
                          sizeof(uint16_t));
}

/* ---- what belongs to a page ---- */

void kv_index_bounds(const struct kv_cache *cache, const struct kv_class *kind, const uint8_t *page,
                     int32_t n, float *out)
{
    float row[KV_CODEC_MAX], *least = out, *most = out + cache->g.dim_k;
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n_dim = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        kv_page_read_part(&kind->k, page, 0, d, n_dim, least + d);
        memcpy(most + d, least + d, (size_t)n_dim * sizeof(*most));
        for (int32_t s = 1; s < n; s++) {
            kv_page_read_part(&kind->k, page, s, d, n_dim, row);
            for (int32_t i = 0; i < n_dim; i++) {
                least[d + i] = row[i] < least[d + i] ? row[i] : least[d + i];
                most[d + i] = row[i] > most[d + i] ? row[i] : most[d + i];
            }
        }
    }
}

void kv_index_value_sum(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, int32_t n, int32_t d, int32_t n_dim, float *out)
{
    (void)cache;
    float row[KV_CODEC_MAX];
    kv_page_read_part(&kind->value, page, 0, d, n_dim, out);
    for (int32_t s = 1; s < n; s++) {
        kv_page_read_part(&kind->value, page, s, d, n_dim, row);
        for (int32_t i = 0; i < n_dim; i++)
            out[i] += row[i];
    }
}

void kv_index_finish(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page)
{
    const struct kv_geometry *g = &cache->g;
    if ((g->index & KV_INDEX_BOUNDS) != 0)
        kv_index_bounds(cache, kind, page, g->page_len, kv_page_floats(page, kind->layout.bounds));
    for (int32_t d = 0; (g->index & KV_INDEX_VALUE_SUM) != 0 && d < g->dim_v; d += KV_CODEC_MAX)
        kv_index_value_sum(cache, kind, page, g->page_len, d,
                           (int32_t)pi_min(KV_CODEC_MAX, g->dim_v - d),
                           kv_page_floats(page, kind->layout.value_sum) + d);
}

void cpu_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out)
{
    const struct kv_cache *cache = seq->cache;
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    const struct kv_class *kind = lane->kind;
    int32_t dim = cache->g.dim_v;
    assert(n >= 0 && n <= lane->len);
    memset(out, 0, (size_t)dim * sizeof(*out));
    for (int32_t i = 0, slot = 0; slot < n; slot += lane->table[i++].n) {
        const uint8_t *page = kv_page_at(kind, lane->table[i].page);
        int32_t n_here = (int32_t)pi_min(lane->table[i].n, n - slot);
        bool known = (cache->g.index & KV_INDEX_VALUE_SUM) != 0 && n_here == cache->g.page_len;
        for (int32_t d = 0; d < dim; d += KV_CODEC_MAX) {
            int32_t n_dim = (int32_t)pi_min(KV_CODEC_MAX, dim - d);
            float row[KV_CODEC_MAX];
            const float *sum = (const float *)(const void *)(page + kind->layout.value_sum) + d;
            if (!known)
                kv_index_value_sum(cache, kind, page, n_here, d, n_dim, row);
            for (int32_t j = 0; j < n_dim; j++)
                out[d + j] += known ? sum[j] : row[j];
        }
    }
}
