/*
 * lanes.c - the lanes of a sequence as callers look at them: lengths and positions, entries as
 * floats and as they are stored. It changes nothing.
 */
#include "base/mem.h"
#include "engine/engine.h"
#include "policy/rows.h"

static bool has_lane(const struct kv_geometry *g, int32_t layer, int32_t head)
{
    return layer >= 0 && layer < g->n_layer && head >= 0 && head < g->n_head;
}

static bool has_entries(const struct pith_seq *seq, int32_t layer, int32_t head, int32_t from,
                        int32_t n)
{
    return has_lane(kv_cache_geometry(seq->engine->kv), layer, head) && from >= 0 && n >= 0 &&
           n <= kv_lane_len(seq->memory.kv, layer, head) - from;
}

pith_status pith_seq_lane(const pith_seq *seq, int32_t layer, int32_t head, pith_lane_info *out,
                          int32_t *positions, int32_t cap)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    if (!has_lane(g, layer, head))
        return PITH_INVALID;
    int32_t n = kv_lane_len(seq->memory.kv, layer, head);
    out->n_entry = n;
    out->n_page = kv_lane_pages(seq->memory.kv, layer, head);
    out->bytes = (int64_t)out->n_page * (int64_t)kv_layer_page_bytes(g, layer);
    if (cap > 0)
        keep_positions(seq->engine->keep.handle, seq->memory.kv, layer, head, positions,
                       (int32_t)pi_min(n, cap));
    return PITH_OK;
}

pith_status pith_seq_lane_entries(const pith_seq *seq, int32_t layer, int32_t head, int32_t from,
                                  int32_t n, float *k, float *v)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    if (!has_entries(seq, layer, head, from, n))
        return PITH_INVALID;
    float *page = pi_mem_alloc_n(PI_MEM_SCRATCH, policy_rows_page(g), sizeof(*page));
    if (page == NULL)
        return PITH_NOMEM;
    struct policy_model model = pi_engine_policy_model(seq->engine);
    model.g = *g; /* with the layers that have a window */
    policy_rows(&model, seq->memory.kv, layer, head, from, n, page, k, v);
    pi_mem_free(page);
    return PITH_OK;
}

pith_status pith_seq_lane_raw(const pith_seq *seq, int32_t layer, int32_t head, int32_t from,
                              int32_t n, pith_lane_form *out, uint8_t *k, uint8_t *v)
{
    struct kv_form form;
    if (!has_entries(seq, layer, head, from, n))
        return PITH_INVALID;
    kv_lane_form(seq->memory.kv, layer, head, &form);
    if (n > 0 && (k != NULL || v != NULL)) {
        uint8_t *page = pi_mem_alloc(PI_MEM_SCRATCH, form.page_bytes);
        if (page == NULL)
            return PITH_NOMEM;
        kv_lane_raw(seq->memory.kv, layer, head, from, n, page, k, v);
        pi_mem_free(page);
    }
    if (out != NULL)
        *out = (pith_lane_form){.type_k = kv_type_name(form.type_k),
                                .type_v = kv_type_name(form.type_v),
                                .k_bytes = (int32_t)form.k_bytes,
                                .v_bytes = (int32_t)form.v_bytes,
                                .group_k = form.group_k,
                                .group_v = form.group_v,
                                .rotated_k = kv_type_is_rotated(form.type_k),
                                .rotated_v = kv_type_is_rotated(form.type_v)};
    return PITH_OK;
}
