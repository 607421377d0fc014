/*
 * columns.c - transposed keys of a page: writing and reading rows, moving entries as stored. A
 * column is an entry. A row holds the same element of all entries: a value of f16, bf16 or f32, or
 * some codes (kv/class.h). So writing a key is a transposition, done in tiles that stay in the
 * first level of cache. It knows no lanes and no counts.
 */
#include "cpu/kernels.h"
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

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

/* Elements of an entry's row. */
static int32_t count_elements(const struct kv_plane *p)
{
    return (int32_t)(p->row / p->element);
}

/* The element that dimension d, the first of a group, of the key at a slot begins. */
static size_t element_at(const struct kv_part *k, int32_t plane, int32_t page_len, int32_t d,
                         int32_t slot)
{
    const struct kv_plane *p = &k->plane[plane];
    size_t first = p->row * (size_t)d / (size_t)k->dim / p->element;
    return p->at + (first * (size_t)page_len + (size_t)slot) * p->element;
}

/* ---- writing ---- */

/* Encoded rows of a tile: KV_CODEC_MAX dimensions of each key, even if fewer are used. */
struct tile {
    uint32_t low[TILE_ENTRIES * KV_CODEC_MAX]; /* room for the widest type */
    uint16_t high[TILE_ENTRIES * KV_CODEC_MAX / 16];
    uint16_t scale[TILE_ENTRIES * KV_CODEC_MAX / KV_CODEC_GROUP];
};

/* Prefetches, for writing, the lines of n_row rows from `at` on, `row` bytes apart. Each element of
   an entry lies in another row. */
static void ask_rows(const uint8_t *at, size_t row, int32_t n_row)
{
    for (int32_t i = 0; i < n_row; i++)
        __builtin_prefetch(at + (size_t)i * row, 1);
}

/* Dimensions d0 .. d0 + dim of at most TILE_ENTRIES keys. */
static void write_tile(const struct kv_part *k, int32_t page_len, uint8_t *page, int32_t slot,
                       int32_t n, const float *rows, size_t stride, int32_t d0, int32_t dim)
{
    struct tile tile;
    uint8_t *const base[KV_N_PLANE] = {(uint8_t *)tile.low, (uint8_t *)tile.high,
                                       (uint8_t *)tile.scale};
    int32_t most = (int32_t)pi_min(KV_CODEC_MAX, k->dim);
    size_t row[KV_N_PLANE];
    int32_t n_element[KV_N_PLANE]; /* of a key's row */
    uint8_t *to[KV_N_PLANE];
    for (int32_t p = 0; p < KV_N_PLANE; p++) {
        size_t size = k->plane[p].element;
        row[p] = k->plane[p].row * (size_t)most / (size_t)k->dim;
        if (row[p] == 0)
            continue;
        n_element[p] = (int32_t)(row[p] * (size_t)dim / (size_t)most / size);
        to[p] = page + element_at(k, p, page_len, d0, slot);
        ask_rows(to[p], (size_t)page_len * size, n_element[p]);
    }
    for (int32_t i = 0; i < n; i++) {
        const struct kv_row out = {.low = base[0] + (size_t)i * row[0],
                                   .high = base[1] + (size_t)i * row[1],
                                   .scale = (uint16_t *)(void *)(base[2] + (size_t)i * row[2])};
        kv_coders[k->type].encode(rows + (size_t)i * stride + (size_t)d0, dim, k->group, &out);
    }
    for (int32_t p = 0; p < KV_N_PLANE; p++) {
        size_t size = k->plane[p].element;
        if (row[p] > 0)
            transpose(base[p], (int32_t)(row[p] / size), to[p], page_len, n, n_element[p], size);
    }
}

void kv_columns_write(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                      int32_t slot, int32_t n, const float *rows, size_t stride)
{
    for (int32_t i = 0; i < n; i += TILE_ENTRIES)
        for (int32_t d = 0; d < cache->g.dim_k; d += KV_CODEC_MAX)
            write_tile(&kind->k, cache->g.page_len, page, slot + i,
                       (int32_t)pi_min(TILE_ENTRIES, n - i), rows + (size_t)i * stride, stride, d,
                       (int32_t)pi_min(KV_CODEC_MAX, cache->g.dim_k - d));
}

/* ---- reading ---- */

/* Elements have 2 or 4 bytes. A length that the compiler knows makes no call of memcpy. */
static inline void copy_element(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size == sizeof(uint16_t))
        memcpy(to, from, sizeof(uint16_t));
    else
        memcpy(to, from, sizeof(uint32_t));
}

/* Copies n elements of one entry, which lie page_len elements apart. */
static void take_column(const uint8_t *from, int32_t page_len, int32_t n, size_t size, uint8_t *to)
{
    for (int32_t i = 0; i < n; i++)
        copy_element(to + (size_t)i * size, from + (size_t)i * (size_t)page_len * size, size);
}

void kv_columns_get(const struct kv_plane *plane, const uint8_t *page, int32_t page_len,
                    int32_t slot, uint8_t *row)
{
    take_column(page + plane->at + (size_t)slot * plane->element, page_len, count_elements(plane),
                plane->element, row);
}

void kv_columns_put(const struct kv_plane *plane, uint8_t *page, int32_t page_len, int32_t slot,
                    const uint8_t *row)
{
    size_t size = plane->element;
    uint8_t *to = page + plane->at + (size_t)slot * size;
    for (int32_t i = 0; i < count_elements(plane); i++)
        copy_element(to + (size_t)i * (size_t)page_len * size, row + (size_t)i * size, size);
}

void kv_columns_read(const struct kv_cache *cache, const struct kv_class *kind, const uint8_t *page,
                     int32_t slot, float *out)
{
    const struct kv_part *k = &kind->k;
    int32_t page_len = cache->g.page_len;
    struct tile tile;
    const struct kv_stored_row row = {(uint8_t *)tile.low, (uint8_t *)tile.high, tile.scale};
    uint8_t *const base[KV_N_PLANE] = {(uint8_t *)tile.low, (uint8_t *)tile.high,
                                       (uint8_t *)tile.scale};
    for (int32_t d = 0; d < k->dim; d += KV_CODEC_MAX) {
        int32_t n = (int32_t)pi_min(KV_CODEC_MAX, k->dim - d);
        for (int32_t p = 0; p < KV_N_PLANE; p++) {
            size_t bytes = k->plane[p].row * (size_t)n / (size_t)k->dim;
            take_column(page + element_at(k, p, page_len, d, slot), page_len,
                        (int32_t)(bytes / k->plane[p].element), k->plane[p].element, base[p]);
        }
        kv_coders[k->type].decode(&row, n, k->group, out + d);
    }
    if (k->codec->rotated)
        kv_wht(out, k->dim, k->group, true);
}

/* ---- moving ---- */

/* Moves the parts of n rows, in each of which P elements of `size` bytes lie side by side. */
static void move_columns(const struct kv_class *kind, int32_t to, const struct kv_page_part *part,
                         int32_t n_part, size_t offset, int32_t n, size_t size)
{
    struct pi_move_part parts[KV_PAGE_LEN_MAX];
    const struct pi_move m = {kv_page_at(kind, to) + offset, parts, n_part, n,
                              (size_t)kind->page_len * size};
    for (int32_t i = 0; i < n_part; i++)
        parts[i] = (struct pi_move_part){
            .from = kv_page_at(kind, part[i].from) + offset,
            .from_at = (size_t)part[i].from_slot * size,
            .to_at = (size_t)part[i].to_slot * size,
            .n = (size_t)part[i].n * size,
        };
    pi_kernels()->move.columns(&m);
}

void kv_columns_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                     const struct kv_page_part *part, int32_t n_part)
{
    (void)cache;
    for (const struct kv_plane *p = kind->k.plane; p < kind->k.plane + KV_N_PLANE; p++)
        if (p->row > 0)
            move_columns(kind, to, part, n_part, p->at, count_elements(p), p->element);
}

/* ---- from and to rows ---- */

void kv_columns_from_rows(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                          const uint8_t *rows)
{
    int32_t len = cache->g.page_len;
    for (const struct kv_plane *p = kind->k.plane; p < kind->k.plane + KV_N_PLANE; p++)
        if (p->row > 0)
            transpose(rows + p->at, count_elements(p), page + p->at, len, len, count_elements(p),
                      p->element);
}

void kv_columns_to_rows(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, uint8_t *rows)
{
    int32_t len = cache->g.page_len;
    for (const struct kv_plane *p = kind->k.plane; p < kind->k.plane + KV_N_PLANE; p++)
        if (p->row > 0)
            transpose(page + p->at, len, rows + p->at, count_elements(p), count_elements(p), len,
                      p->element);
}
