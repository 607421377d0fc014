/*
 * run.c - a lane read page by page: for whoever scores or copies many entries at once. It decodes
 * what is stored and knows nothing of what it is for. Invariant: the runs of a lane, one after the
 * other, are its slots.
 */
#include "cpu/kernels.h"
#include "kv/store.h"

int32_t kv_lane_runs(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->n_live;
}

struct kv_run kv_lane_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(i >= 0 && i < lane->n_live);
    struct kv_run run = {.n = lane->table[i].n, .delta = lane->table[i].delta};
    if (lane->ragged)
        for (int32_t p = 0; p < i; p++)
            run.slot += lane->table[p].n;
    else
        run.slot = i * seq->cache->g.page_len;
    return run;
}

/* Table entry i of a lane as kernels see it. */
static struct pi_attend_page page_of(const struct kv_seq *seq, int32_t layer, int32_t head,
                                     int32_t i)
{
    const struct kv_cache *cache = seq->cache;
    const struct kv_page_ref *ref = &kv_lane_at(seq, layer, head)->table[i];
    const uint8_t *page = kv_page_at(cache, ref->page);
    return (struct pi_attend_page){
        .k = page + cache->layout.k,
        .k_scale = (const uint16_t *)(const void *)(page + cache->layout.k_scale),
        .v = page + cache->layout.v,
        .v_scale = (const uint16_t *)(const void *)(page + cache->layout.v_scale),
        .pos = kv_page_pos(cache, ref->page),
        .page_len = cache->g.page_len,
        .n = ref->n,
        .columns = cache->layout.side_by_side,
        .dim_k = cache->g.dim_k,
        .dim_v = cache->g.dim_v,
    };
}

/* Bytes from the page of table entry i to the one behind it, which a lane that is read through
   comes to next: pages lie scattered, so that the processor cannot guess it. Kernels ask for the
   values as they go; the scales are asked for here. */
static ptrdiff_t ask_for_next(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    const struct kv_cache *cache = seq->cache;
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    if (i + 1 >= lane->n_live)
        return 0;
    const uint8_t *next = kv_page_at(cache, lane->table[i + 1].page);
    pi_kernels()->attend.prefetch(next + cache->layout.k_scale,
                                  cache->layout.v - cache->layout.k_scale);
    return next - kv_page_at(cache, lane->table[i].page);
}

void kv_lane_run_keys(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out)
{
    const struct kv_geometry *g = &seq->cache->g;
    struct pi_attend_page page = page_of(seq, layer, head, i);
    page.next = ask_for_next(seq, layer, head, i);
    pi_kernels()->attend.decode_k[g->type_k](&page, out);
}

void kv_lane_run_values(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                        float *out)
{
    const struct kv_geometry *g = &seq->cache->g;
    struct pi_attend_page page = page_of(seq, layer, head, i);
    if (g->type_v == KV_TYPE_F32)
        memcpy(out, page.v, (size_t)g->dim_v * (size_t)g->page_len * sizeof(*out));
    else
        pi_kernels()->attend.decode_v[g->type_v](&page, out);
}
