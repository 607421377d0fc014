/*
 * page.c - entries in a page that stores them one after the other: writing rows, reading them back,
 * and moving entries as stored. columns.c has transposed keys. It knows no lanes and no counts; the
 * caller owns the page alone.
 */
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

/* ---- rows ---- */

/* Where a plane has dimension d of the entry at a slot. Only offsets of whole bytes are asked for:
   d is a multiple of the group. */
static size_t plane_at(const struct kv_part *part, int32_t plane, int32_t slot, int32_t d)
{
    const struct kv_plane *p = &part->plane[plane];
    return p->at + (size_t)slot * p->pitch + p->row * (size_t)d / (size_t)part->dim;
}

static struct kv_stored_row stored_row(const struct kv_part *part, const uint8_t *page,
                                       int32_t slot, int32_t d)
{
    return (struct kv_stored_row){
        .low = page + plane_at(part, KV_PLANE_LOW, slot, d),
        .high = page + plane_at(part, KV_PLANE_HIGH, slot, d),
        .scale = (const uint16_t *)(const void *)(page + plane_at(part, KV_PLANE_SCALE, slot, d)),
    };
}

static void write_rows(const struct kv_part *part, uint8_t *page, int32_t slot, int32_t n,
                       const float *rows, size_t stride)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < part->dim; d += KV_CODEC_MAX) {
            const struct kv_row row = {
                .low = page + plane_at(part, KV_PLANE_LOW, slot + i, d),
                .high = page + plane_at(part, KV_PLANE_HIGH, slot + i, d),
                .scale = (uint16_t *)(void *)(page + plane_at(part, KV_PLANE_SCALE, slot + i, d)),
            };
            kv_coders[part->type].encode(rows + (size_t)i * stride + d,
                                         (int32_t)pi_min(KV_CODEC_MAX, part->dim - d), part->group,
                                         &row);
        }
}

void kv_page_read_part(const struct kv_part *part, const uint8_t *page, int32_t slot, int32_t d,
                       int32_t n, float *out)
{
    const struct kv_stored_row row = stored_row(part, page, slot, d);
    kv_coders[part->type].decode(&row, n, part->group, out);
    if (part->codec->rotated)
        kv_wht(out, n, part->group, true);
}

static void read_row(const struct kv_part *part, const uint8_t *page, int32_t slot, float *out)
{
    for (int32_t d = 0; d < part->dim; d += KV_CODEC_MAX)
        kv_page_read_part(part, page, slot, d, (int32_t)pi_min(KV_CODEC_MAX, part->dim - d),
                          out + d);
}

void kv_page_write_keys(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                        int32_t slot, int32_t n, const float *rows, size_t stride)
{
    if (kind->layout.side_by_side)
        kv_columns_write(cache, kind, page, slot, n, rows, stride);
    else
        write_rows(&kind->k, page, slot, n, rows, stride);
}

void kv_page_write_values(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                          int32_t slot, int32_t n, const float *rows, size_t stride)
{
    (void)cache;
    write_rows(&kind->v, page, slot, n, rows, stride);
}

void kv_page_read_key(const struct kv_cache *cache, const struct kv_class *kind,
                      const uint8_t *page, int32_t slot, float *out)
{
    if (kind->layout.side_by_side)
        kv_columns_read(cache, kind, page, slot, out);
    else
        read_row(&kind->k, page, slot, out);
}

void kv_page_read_value(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, int32_t slot, float *out)
{
    (void)cache;
    read_row(&kind->value, page, slot, out);
}

/* ---- entries as stored ---- */

/* The rows of a plane that belong to one entry lie together, or as columns. */
static void get_plane(const struct kv_class *kind, const struct kv_plane *p, bool beside,
                      const uint8_t *page, int32_t slot, uint8_t *out)
{
    if (beside)
        kv_columns_get(p, page, kind->page_len, slot, out);
    else
        memcpy(out, page + p->at + (size_t)slot * p->row, p->row);
}

static void put_plane(const struct kv_class *kind, const struct kv_plane *p, bool beside,
                      uint8_t *page, int32_t slot, const uint8_t *bytes)
{
    if (beside)
        kv_columns_put(p, page, kind->page_len, slot, bytes);
    else
        memcpy(page + p->at + (size_t)slot * p->row, bytes, p->row);
}

void kv_page_get_side(const struct kv_class *kind, enum kv_side side, const uint8_t *page,
                      int32_t slot, uint8_t *out)
{
    const struct kv_part *part = side == KV_SIDE_K ? &kind->k : &kind->v;
    bool beside = side == KV_SIDE_K && kind->layout.side_by_side;
    for (const struct kv_plane *p = part->plane; p < part->plane + KV_N_PLANE; out += p++->row)
        get_plane(kind, p, beside, page, slot, out);
}

void kv_page_put_side(const struct kv_class *kind, enum kv_side side, uint8_t *page, int32_t slot,
                      const uint8_t *bytes)
{
    const struct kv_part *part = side == KV_SIDE_K ? &kind->k : &kind->v;
    bool beside = side == KV_SIDE_K && kind->layout.side_by_side;
    for (const struct kv_plane *p = part->plane; p < part->plane + KV_N_PLANE; bytes += p++->row)
        put_plane(kind, p, beside, page, slot, bytes);
}

/* ---- moving ---- */

void kv_page_move_rows(const struct kv_class *kind, int32_t to, const struct kv_page_part *part,
                       int32_t n_part, size_t offset, size_t size)
{
    uint8_t *at = kv_page_at(kind, to) + offset;
    for (int32_t i = 0; i < n_part && size > 0; i++)
        memmove(at + (size_t)part[i].to_slot * size,
                kv_page_at(kind, part[i].from) + offset + (size_t)part[i].from_slot * size,
                (size_t)part[i].n * size);
}

static void move_part(const struct kv_class *kind, const struct kv_part *p, int32_t to,
                      const struct kv_page_part *part, int32_t n_part)
{
    for (int32_t i = 0; i < KV_N_PLANE; i++)
        kv_page_move_rows(kind, to, part, n_part, p->plane[i].at, p->plane[i].row);
}

void kv_page_move_bytes(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                        const struct kv_page_part *part, int32_t n_part)
{
    if (kind->layout.side_by_side)
        kv_columns_move(cache, kind, to, part, n_part);
    else
        move_part(kind, &kind->k, to, part, n_part);
    move_part(kind, &kind->v, to, part, n_part);
    kv_index_move(cache, kind, to, part, n_part);
}
