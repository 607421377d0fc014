/*
 * page.c - entries in a page: writing rows, reading them back, moving entries as stored, where they
 * lie one entry after the other; keys that lie side by side are columns.c's. It knows no lanes and
 * no counts; the caller owns the page alone.
 */
#include "kv/store.h"

/* The keys or values of a page's entries. */
struct part {
    const struct kv_codec *codec;
    size_t dim;
    size_t values; /* offset in the page */
    size_t scales;
};

static struct part part_of_keys(const struct kv_cache *cache)
{
    return (struct part){&kv_codecs[cache->g.type_k], (size_t)cache->g.dim_k, cache->layout.k,
                         cache->layout.k_scale};
}

static struct part part_of_values(const struct kv_cache *cache)
{
    return (struct part){&kv_codecs[cache->g.type_v], (size_t)cache->g.dim_v, cache->layout.v,
                         cache->layout.v_scale};
}

/* Offsets of an entry's values and scales. */
static size_t values_at(const struct part *p, int32_t slot)
{
    return p->values + (size_t)slot * p->dim * (size_t)p->codec->value_bytes;
}

static size_t scales_at(const struct part *p, int32_t slot)
{
    return p->scales +
           (size_t)slot * (p->dim / (size_t)p->codec->block) * (size_t)p->codec->scale_bytes;
}

/* ---- writing ---- */

static void write_rows(const struct part *p, uint8_t *page, int32_t slot, int32_t n,
                       const float *rows, size_t stride)
{
    const struct kv_codec *codec = p->codec;
    for (int32_t i = 0; i < n; i++) {
        uint8_t *values = page + values_at(p, slot + i);
        uint16_t *scales = (uint16_t *)(void *)(page + scales_at(p, slot + i));
        for (size_t d = 0; d < p->dim; d += KV_CODEC_MAX)
            codec->encode(rows + (size_t)i * stride + d, (int32_t)pi_min(KV_CODEC_MAX, p->dim - d),
                          values + d * (size_t)codec->value_bytes,
                          codec->scale_bytes > 0 ? scales + d / (size_t)codec->block : NULL);
    }
}

void kv_page_write_keys(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    if (cache->layout.side_by_side) {
        kv_columns_write(cache, page, slot, n, rows, stride);
        return;
    }
    struct part p = part_of_keys(cache);
    write_rows(&p, page, slot, n, rows, stride);
}

void kv_page_write_values(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                          const float *rows, size_t stride)
{
    struct part p = part_of_values(cache);
    write_rows(&p, page, slot, n, rows, stride);
}

/* ---- reading ---- */

static void read_row(const struct part *p, const uint8_t *page, int32_t slot, float *out)
{
    p->codec->decode(page + values_at(p, slot),
                     (const uint16_t *)(const void *)(page + scales_at(p, slot)), (int32_t)p->dim,
                     out);
}

void kv_page_read_key(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    if (cache->layout.side_by_side) {
        kv_columns_read(cache, page, slot, out);
        return;
    }
    struct part p = part_of_keys(cache);
    read_row(&p, page, slot, out);
}

void kv_page_read_value(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    struct part p = part_of_values(cache);
    read_row(&p, page, slot, out);
}

/* ---- moving ---- */

/* Copies the rows of `size` bytes that lie from an offset on. */
static void move_rows(uint8_t *to, const struct kv_page_part *part, int32_t n_part, size_t offset,
                      size_t size)
{
    for (int32_t i = 0; i < n_part && size > 0; i++)
        memmove(to + offset + (size_t)part[i].to_slot * size,
                part[i].from + offset + (size_t)part[i].from_slot * size, (size_t)part[i].n * size);
}

static void move_part(const struct part *p, uint8_t *to, const struct kv_page_part *part,
                      int32_t n_part)
{
    move_rows(to, part, n_part, p->values, p->dim * (size_t)p->codec->value_bytes);
    move_rows(to, part, n_part, p->scales,
              p->dim / (size_t)p->codec->block * (size_t)p->codec->scale_bytes);
}

void kv_page_move(const struct kv_cache *cache, uint8_t *to, const struct kv_page_part *part,
                  int32_t n_part)
{
    struct part k = part_of_keys(cache), v = part_of_values(cache);
    if (cache->layout.side_by_side)
        kv_columns_move(cache, to, part, n_part);
    else
        move_part(&k, to, part, n_part);
    move_part(&v, to, part, n_part);
    move_rows(to, part, n_part, cache->layout.pos, sizeof(int32_t));
    kv_index_move(cache, to, part, n_part);
}
