/*
 * page.c - entries in a page: writing rows, reading them back, moving entries as stored. Keys lie
 * with entries side by side, so writing them is a transposition, done in tiles that stay in the
 * first level of cache. It knows no lanes and no counts; the caller owns the page alone.
 */
#include "cpu/kernels.h"
#include "kv/store.h"

#define TILE_ENTRIES 16

static inline uint64_t load64(const void *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/* ---- transposing: out[d * out_row + i] = in[i * in_row + d] for i < n, d < dim ---- */

static void transpose_4(const uint32_t *restrict in, int32_t in_row, uint32_t *restrict out,
                        int32_t out_row, int32_t n, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++)
        for (int32_t i = 0; i < n; i++)
            out[d * out_row + i] = in[i * in_row + d];
}

/* Blocks of 4 x 4 in general registers: neighbours change places in pairs, then pairs do. */
static void transpose_2_block(const uint16_t *restrict in, int32_t in_row, uint16_t *restrict out,
                              int32_t out_row)
{
    const uint64_t even = 0x0000ffff0000ffffu, low = 0x00000000ffffffffu;
    uint64_t a = load64(in), b = load64(in + in_row);
    uint64_t c = load64(in + 2 * in_row), d = load64(in + 3 * in_row);
    uint64_t ab0 = (a & even) | (b & even) << 16, ab1 = (a >> 16 & even) | (b & ~even);
    uint64_t cd0 = (c & even) | (d & even) << 16, cd1 = (c >> 16 & even) | (d & ~even);
    const uint64_t rows[4] = {(ab0 & low) | cd0 << 32, (ab1 & low) | cd1 << 32,
                              ab0 >> 32 | (cd0 & ~low), ab1 >> 32 | (cd1 & ~low)};
    for (int32_t r = 0; r < 4; r++)
        memcpy(out + r * out_row, &rows[r], sizeof(rows[r]));
}

static void transpose_2(const uint16_t *restrict in, int32_t in_row, uint16_t *restrict out,
                        int32_t out_row, int32_t n, int32_t dim)
{
    int32_t n4 = n & ~3, dim4 = dim & ~3;
    for (int32_t d = 0; d < dim4; d += 4)
        for (int32_t i = 0; i < n4; i += 4)
            transpose_2_block(in + i * in_row + d, in_row, out + d * out_row + i, out_row);
    for (int32_t d = 0; d < dim; d++)
        for (int32_t i = d < dim4 ? n4 : 0; i < n; i++)
            out[d * out_row + i] = in[i * in_row + d];
}

/* Swaps, in 8 rows of 8 bytes, the upper half of each group of 2 * width bytes in one row with the
   lower half of the same group in the row `width` below. */
static void swap_halves(uint64_t rows[8], int32_t width, uint64_t lower)
{
    for (int32_t i = 0; i < 8; i++) {
        if ((i & width) != 0)
            continue;
        uint64_t a = rows[i], b = rows[i + width];
        rows[i] = (a & lower) | (b & lower) << (8 * width);
        rows[i + width] = (a >> (8 * width) & lower) | (b & ~lower);
    }
}

/* Blocks of 8 x 8, by halves of 1, 2 and 4. */
static void transpose_1_block(const uint8_t *restrict in, int32_t in_row, uint8_t *restrict out,
                              int32_t out_row)
{
    uint64_t rows[8];
    for (int32_t i = 0; i < 8; i++)
        rows[i] = load64(in + i * in_row);
    swap_halves(rows, 1, 0x00ff00ff00ff00ffu);
    swap_halves(rows, 2, 0x0000ffff0000ffffu);
    swap_halves(rows, 4, 0x00000000ffffffffu);
    for (int32_t i = 0; i < 8; i++)
        memcpy(out + i * out_row, &rows[i], sizeof(rows[i]));
}

static void transpose_1(const uint8_t *restrict in, int32_t in_row, uint8_t *restrict out,
                        int32_t out_row, int32_t n, int32_t dim)
{
    int32_t n8 = n & ~7, dim8 = dim & ~7;
    for (int32_t d = 0; d < dim8; d += 8)
        for (int32_t i = 0; i < n8; i += 8)
            transpose_1_block(in + i * in_row + d, in_row, out + d * out_row + i, out_row);
    for (int32_t d = 0; d < dim; d++)
        for (int32_t i = d < dim8 ? n8 : 0; i < n; i++)
            out[d * out_row + i] = in[i * in_row + d];
}

/* ---- writing ---- */

/* Dimensions d0 .. d0 + dim of at most TILE_ENTRIES keys. */
static void write_key_tile(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                           const float *rows, size_t stride, int32_t d0, int32_t dim)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    int32_t len = cache->g.page_len, n_block = codec->scale_bytes > 0 ? dim / codec->block : 0;
    uint32_t values[TILE_ENTRIES * KV_CODEC_MAX]; /* room for the widest type */
    uint16_t scales[TILE_ENTRIES * KV_CODEC_MAX / 32];
    uint8_t *bytes = (uint8_t *)values;
    for (int32_t i = 0; i < n; i++)
        codec->encode(rows + (size_t)i * stride + (size_t)d0, dim,
                      bytes + (size_t)(i * KV_CODEC_MAX * codec->value_bytes),
                      scales + i * n_block);
    uint8_t *at = page + cache->layout.k + (size_t)((d0 * len + slot) * codec->value_bytes);
    if (codec->value_bytes == 4)
        transpose_4(values, KV_CODEC_MAX, (uint32_t *)(void *)at, len, n, dim);
    else if (codec->value_bytes == 2)
        transpose_2((const uint16_t *)(const void *)values, KV_CODEC_MAX, (uint16_t *)(void *)at,
                    len, n, dim);
    else
        transpose_1(bytes, KV_CODEC_MAX, at, len, n, dim);
    if (codec->scale_bytes > 0) {
        uint16_t *scale = (uint16_t *)(void *)(page + cache->layout.k_scale);
        for (int32_t b = 0; b < n_block; b++)
            for (int32_t i = 0; i < n; i++)
                scale[(d0 / codec->block + b) * len + slot + i] = scales[i * n_block + b];
    }
}

void kv_page_write_keys(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    for (int32_t i = 0; i < n; i += TILE_ENTRIES)
        for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX)
            write_key_tile(cache, page, slot + i, (int32_t)pi_min(TILE_ENTRIES, n - i),
                           rows + (size_t)i * stride, stride, d,
                           (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d));
}

void kv_page_write_values(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                          const float *rows, size_t stride)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_v];
    int32_t dim = cache->g.dim_v, n_block = dim / codec->block;
    uint16_t *scales = (uint16_t *)(void *)(page + cache->layout.v_scale);
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < dim; d += KV_CODEC_MAX)
            codec->encode(
                rows + (size_t)i * stride + (size_t)d, (int32_t)pi_min(KV_CODEC_MAX, dim - d),
                page + cache->layout.v + (size_t)(((slot + i) * dim + d) * codec->value_bytes),
                codec->scale_bytes > 0 ? scales + (slot + i) * n_block + d / codec->block : NULL);
}

/* ---- reading ---- */

/* Copies values of one entry that lie `stride` values apart. */
static void gather(const uint8_t *from, size_t stride, int32_t n, size_t value_bytes, uint8_t *to)
{
    for (int32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * value_bytes, from + (size_t)i * stride * value_bytes, value_bytes);
}

void kv_page_read_key(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    size_t len = (size_t)cache->g.page_len, value_bytes = (size_t)codec->value_bytes;
    uint32_t values[KV_CODEC_MAX];
    uint16_t scales[KV_CODEC_MAX / 32];
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        gather(page + cache->layout.k + ((size_t)d * len + (size_t)slot) * value_bytes, len, n,
               value_bytes, (uint8_t *)values);
        if (codec->scale_bytes > 0)
            gather(page + cache->layout.k_scale +
                       ((size_t)(d / codec->block) * len + (size_t)slot) * sizeof(*scales),
                   len, n / codec->block, sizeof(*scales), (uint8_t *)scales);
        codec->decode(values, scales, n, out + d);
    }
}

void kv_page_read_value(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_v];
    int32_t dim = cache->g.dim_v;
    const uint16_t *scales = (const uint16_t *)(const void *)(page + cache->layout.v_scale);
    codec->decode(page + cache->layout.v + (size_t)(slot * dim * codec->value_bytes),
                  scales + slot * (dim / codec->block), dim, out);
}

/* ---- moving ---- */

/* Moves the parts of n rows, in each of which P entries of `size` bytes lie side by side. */
static void move_columns(uint8_t *to, const struct kv_page_part *part, int32_t n_part,
                         size_t offset, int32_t n, size_t len, size_t size)
{
    struct pi_move_part parts[KV_PAGE_LEN_MAX];
    const struct pi_move m = {to + offset, parts, n_part, n, len * size};
    for (int32_t i = 0; i < n_part; i++)
        parts[i] = (struct pi_move_part){
            .from = part[i].from + offset,
            .from_at = (size_t)part[i].from_slot * size,
            .to_at = (size_t)part[i].to_slot * size,
            .n = (size_t)part[i].n * size,
        };
    if (size > 0)
        pi_kernels()->move.columns(&m);
}

/* The same of entries that lie one after the other. */
static void move_entries(uint8_t *to, const struct kv_page_part *part, int32_t n_part,
                         size_t offset, size_t size)
{
    for (int32_t i = 0; i < n_part && size > 0; i++)
        memmove(to + offset + (size_t)part[i].to_slot * size,
                part[i].from + offset + (size_t)part[i].from_slot * size, (size_t)part[i].n * size);
}

void kv_page_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                  int32_t n_part)
{
    const struct kv_geometry *g = &cache->g;
    const struct kv_page_layout *at = &cache->layout;
    const struct kv_codec *k = &kv_codecs[g->type_k], *v = &kv_codecs[g->type_v];
    size_t len = (size_t)g->page_len;
    move_columns(to, part, n_part, at->k, g->dim_k, len, (size_t)k->value_bytes);
    move_columns(to, part, n_part, at->k_scale, g->dim_k / k->block, len, (size_t)k->scale_bytes);
    move_entries(to, part, n_part, at->v, (size_t)(g->dim_v * v->value_bytes));
    move_entries(to, part, n_part, at->v_scale, (size_t)(g->dim_v / v->block * v->scale_bytes));
    move_entries(to, part, n_part, at->pos, sizeof(int32_t));
}
