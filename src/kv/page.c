/*
 * page.c - pages that the host moves and copies as they are: positions here, the rest on the
 * device.
 */
#include "kv/page.h"
#include "device/device.h"

static size_t pos_bytes(const struct kv_class *kind)
{
    return (size_t)kind->page_len * sizeof(int32_t);
}

void kv_page_move_pos(const struct kv_class *kind, int32_t to, const struct kv_page_part *part,
                      int32_t n_part)
{
    for (int32_t i = 0; i < n_part; i++)
        memmove(kv_page_pos(kind, to) + part[i].to_slot,
                kv_page_pos(kind, part[i].from) + part[i].from_slot,
                (size_t)part[i].n * sizeof(int32_t));
}

void kv_page_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  const struct kv_page_part *part, int32_t n_part)
{
    kind->device->move(cache, kind, to, part, n_part);
    kv_page_move_pos(kind, to, part, n_part);
}

void kv_page_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  int32_t from)
{
    kind->device->copy(cache, kind, to, from);
    if (kind->pos != NULL)
        memcpy(kv_page_pos(kind, to), kv_page_pos(kind, from), pos_bytes(kind));
}

/* ---- as one stretch of bytes ---- */

void kv_page_export(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    uint8_t *out)
{
    kind->device->read_page(cache, kind, page, KV_PAGE_AS_IT_IS, out);
    memcpy(out + kind->layout.stored, kv_page_pos(kind, page), pos_bytes(kind));
}

void kv_page_import(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    const uint8_t *bytes)
{
    memcpy(kv_page_pos(kind, page), bytes + kind->layout.stored, pos_bytes(kind));
    kind->device->write_page(cache, kind, page, KV_PAGE_AS_IT_IS, bytes);
}

void kv_page_save(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                  uint8_t *out)
{
    kind->device->read_page(cache, kind, page, KV_PAGE_SAVED, out);
    memcpy(out + kind->layout.stored, kv_page_pos(kind, page), pos_bytes(kind));
}

void kv_page_load(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                  int32_t page, const uint8_t *bytes)
{
    memcpy(kv_page_pos(kind, page), bytes + kind->layout.stored, pos_bytes(kind));
    kind->device->write_page(cache, kind, page, KV_PAGE_SAVED, bytes);
    kind->device->index(cache, kind, lane, page, 0, cache->g.page_len);
    kind->device->finish(cache, kind, page);
}
