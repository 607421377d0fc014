/*
 * columns.c - keys of a page that lie side by side: writing and reading rows, moving entries as
 * stored. A column is an entry, and a row holds the same element of all entries: a value of f16 or
 * f32, or four codes of q8_0. So writing a key is a transposition, done in tiles that stay in the
 * first level of cache. It knows no lanes and no counts.
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

/* ---- transposing elements: out[d * out_row + i] = in[i * in_row + d] for i < n, d < dim ---- */

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

static void transpose(const void *in, int32_t in_row, void *out, int32_t out_row, int32_t n,
                      int32_t dim, size_t size)
{
    if (size == sizeof(uint16_t))
        transpose_2(in, in_row, out, out_row, n, dim);
    else
        transpose_4(in, in_row, out, out_row, n, dim);
}

/* ---- where things lie ---- */

/* Bytes of an element. */
static size_t element_size(const struct kv_codec *codec)
{
    return codec->value_bytes == 2 ? 2 : 4;
}

/* Elements of `dim` dimensions. */
static int32_t count_elements(const struct kv_codec *codec, int32_t dim)
{
    return (int32_t)((size_t)(dim * codec->value_bytes) / element_size(codec));
}

/* Dimension d, the first of an element, of the key at a slot. */
static size_t key_at(const struct kv_cache *cache, int32_t d, int32_t slot)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    size_t row = (size_t)count_elements(codec, d) * (size_t)cache->g.page_len;
    return cache->layout.k + (row + (size_t)slot) * element_size(codec);
}

static size_t scale_at(const struct kv_cache *cache, int32_t d, int32_t slot)
{
    size_t row = (size_t)(d / kv_codecs[cache->g.type_k].block) * (size_t)cache->g.page_len;
    return cache->layout.k_scale + (row + (size_t)slot) * sizeof(uint16_t);
}

/* ---- writing ---- */

/* Dimensions d0 .. d0 + dim of at most TILE_ENTRIES keys. */
static void write_tile(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                       const float *rows, size_t stride, int32_t d0, int32_t dim)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    int32_t n_block = codec->scale_bytes > 0 ? dim / codec->block : 0;
    uint32_t values[TILE_ENTRIES * KV_CODEC_MAX]; /* room for the widest type */
    uint16_t scales[TILE_ENTRIES * KV_CODEC_MAX / 32];
    for (int32_t i = 0; i < n; i++)
        codec->encode(rows + (size_t)i * stride + (size_t)d0, dim,
                      (uint8_t *)values + (size_t)(i * KV_CODEC_MAX * codec->value_bytes),
                      scales + i * n_block);
    transpose(values, count_elements(codec, KV_CODEC_MAX), page + key_at(cache, d0, slot),
              cache->g.page_len, n, count_elements(codec, dim), element_size(codec));
    if (n_block > 0)
        transpose_2(scales, n_block, (uint16_t *)(void *)(page + scale_at(cache, d0, slot)),
                    cache->g.page_len, n, n_block);
}

void kv_columns_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                      const float *rows, size_t stride)
{
    for (int32_t i = 0; i < n; i += TILE_ENTRIES)
        for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX)
            write_tile(cache, page, slot + i, (int32_t)pi_min(TILE_ENTRIES, n - i),
                       rows + (size_t)i * stride, stride, d,
                       (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d));
}

/* ---- reading ---- */

/* Copies elements of one entry, which lie `len` elements apart. */
static void take_column(const uint8_t *from, size_t len, int32_t n, size_t size, uint8_t *to)
{
    for (int32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * size, from + (size_t)i * len * size, size);
}

void kv_columns_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    size_t len = (size_t)cache->g.page_len;
    uint32_t values[KV_CODEC_MAX];
    uint16_t scales[KV_CODEC_MAX / 32];
    for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d);
        take_column(page + key_at(cache, d, slot), len, count_elements(codec, n),
                    element_size(codec), (uint8_t *)values);
        if (codec->scale_bytes > 0)
            take_column(page + scale_at(cache, d, slot), len, n / codec->block, sizeof(*scales),
                        (uint8_t *)scales);
        codec->decode(values, scales, n, out + d);
    }
}

/* ---- moving ---- */

/* Moves the parts of n rows, in each of which P elements of `size` bytes lie side by side. */
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
    pi_kernels()->move.columns(&m);
}

void kv_columns_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                     int32_t n_part)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    size_t len = (size_t)cache->g.page_len;
    move_columns(to, part, n_part, cache->layout.k, count_elements(codec, cache->g.dim_k), len,
                 element_size(codec));
    if (codec->scale_bytes > 0)
        move_columns(to, part, n_part, cache->layout.k_scale, cache->g.dim_k / codec->block, len,
                     (size_t)codec->scale_bytes);
}

/* ---- from and to rows ---- */

void kv_columns_from_rows(const struct kv_cache *cache, uint8_t *page, const uint8_t *rows)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    int32_t len = cache->g.page_len, n = count_elements(codec, cache->g.dim_k);
    size_t k = cache->layout.k, scale = cache->layout.k_scale;
    transpose(rows + k, n, page + k, len, len, n, element_size(codec));
    if (codec->scale_bytes > 0)
        transpose(rows + scale, cache->g.dim_k / codec->block, page + scale, len, len,
                  cache->g.dim_k / codec->block, sizeof(uint16_t));
}

void kv_columns_to_rows(const struct kv_cache *cache, const uint8_t *page, uint8_t *rows)
{
    const struct kv_codec *codec = &kv_codecs[cache->g.type_k];
    int32_t len = cache->g.page_len, n = count_elements(codec, cache->g.dim_k);
    size_t k = cache->layout.k, scale = cache->layout.k_scale;
    transpose(page + k, len, rows + k, n, n, len, element_size(codec));
    if (codec->scale_bytes > 0)
        transpose(page + scale, len, rows + scale, cache->g.dim_k / codec->block,
                  cache->g.dim_k / codec->block, len, sizeof(uint16_t));
}
