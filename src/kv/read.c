/*
 * read.c - reads a lane's entries as floats: page by page or one by one. It also attends to them
 * and scores them. The device does it. Invariant: the runs of a lane, one after the other, are its
 * slots.
 */
#include "kv/read.h"
#include "device/device.h"
#include "kv/attend.h"
#include "kv/lane_internal.h"
#include "kv/page.h"
#include "kv/read_internal.h"
#include "kv/score.h"

int32_t kv_lane_runs(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->n_live;
}

struct kv_run kv_lane_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(i >= 0 && i < lane->n_live);
    const struct kv_page_ref *ref = &lane->table[i];
    struct kv_run run = {.n = ref->n, .delta = ref->delta, .count = 1 + ref->n_folded};
    if (lane->ragged)
        for (int32_t p = 0; p < i; p++)
            run.slot += lane->table[p].n;
    else
        run.slot = i * seq->cache->g.page_len;
    return run;
}

static struct pi_device *device_of(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->kind->device;
}

void kv_lane_run_keys(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out)
{
    device_of(seq, layer, head)->decode_run(seq, layer, head, i, KV_SIDE_K, out);
}

void kv_lane_run_values(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                        float *out)
{
    device_of(seq, layer, head)->decode_run(seq, layer, head, i, KV_SIDE_V, out);
}

/* ---- as they are stored ---- */

void kv_lane_form(const struct kv_seq *seq, int32_t layer, int32_t head, struct kv_form *out)
{
    const struct kv_class *kind = kv_lane_at(seq, layer, head)->kind;
    *out = (struct kv_form){.type_k = kind->type_k,
                            .type_v = kind->type_v,
                            .k_bytes = kv_part_bytes(&kind->k),
                            .v_bytes = kv_part_bytes(&kind->v),
                            .group_k = kind->group_k,
                            .group_v = kind->group_v,
                            .page_bytes = kind->layout.saved};
}

/* Entry `slot` of a page whose keys stand entry by entry; returns the end of the row. */
static uint8_t *copy_row(const struct kv_part *part, const uint8_t *page, int32_t slot,
                         uint8_t *out)
{
    for (int32_t p = 0; p < KV_N_PLANE; p++) {
        const struct kv_plane *x = &part->plane[p];
        memcpy(out, page + x->at + (size_t)slot * x->row, x->row);
        out += x->row;
    }
    return out;
}

void kv_lane_raw(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t from, int32_t n,
                 uint8_t *page, uint8_t *k, uint8_t *v)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    for (int32_t i = 0; i < lane->n_live; i++) {
        struct kv_run run = kv_lane_run(seq, layer, head, i);
        int32_t begin = (int32_t)pi_max(from, run.slot);
        int32_t end = (int32_t)pi_min(from + n, run.slot + run.n);
        if (begin >= end)
            continue;
        kv_page_save(seq->cache, lane->kind, lane->table[i].page, page);
        for (int32_t s = begin - run.slot; s < end - run.slot; s++) {
            k = k != NULL ? copy_row(&lane->kind->k, page, s, k) : NULL;
            v = v != NULL ? copy_row(&lane->kind->v, page, s, v) : NULL;
        }
    }
}

void kv_lane_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out)
{
    device_of(seq, layer, head)->value_sum(seq, layer, head, n, out);
}

/* ---- one by one ---- */

struct kv_place kv_place_of(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot)
{
    struct kv_place p = {
        .cache = seq->cache, .kind = lane->kind, .lane = kv_lane_number(seq, lane)};
    p.page = lane->table[kv_lane_find(seq->cache, lane, slot, &p.slot)].page;
    return p;
}

void kv_lane_key(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out)
{
    const struct kv_place p = kv_place_of(seq, kv_lane_at(seq, layer, head), slot);
    p.kind->device->decode_entry(&p, KV_SIDE_K, out);
}

void kv_lane_value(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out)
{
    const struct kv_place p = kv_place_of(seq, kv_lane_at(seq, layer, head), slot);
    p.kind->device->decode_entry(&p, KV_SIDE_V, out);
}

/* ---- attention and scores ---- */

/* Device i of a geometry's; NULL: there are no more. */
static struct pi_device *device_at(const struct kv_geometry *g, int32_t i)
{
    if (g->devices.n == 0)
        return i == 0 ? kv_geometry_device(g) : NULL;
    return i < g->devices.n ? g->devices.part[i].device : NULL;
}

size_t kv_attend_scratch_bytes(const struct kv_geometry *g, int32_t n_row)
{
    size_t most = 0;
    for (int32_t i = 0; device_at(g, i) != NULL; i++) {
        size_t size = device_at(g, i)->attend_scratch(g, n_row);
        most = size > most ? size : most;
    }
    return most;
}

int32_t kv_attend_tile(const struct kv_geometry *g, int32_t n_group)
{
    return kv_geometry_device(g)->attend_tile(n_group);
}

void kv_attend(const struct kv_attend_job *job, void *scratch)
{
    device_of(job->seq, job->layer, job->head)->attend_one(job, scratch);
}

size_t kv_score_scratch_bytes(const struct kv_geometry *g, int32_t n_q)
{
    size_t most = 0;
    for (int32_t i = 0; device_at(g, i) != NULL; i++) {
        size_t size = device_at(g, i)->score_scratch(g, n_q);
        most = size > most ? size : most;
    }
    return most;
}

void kv_score(const struct kv_score_job *job, void *scratch)
{
    device_of(job->seq, job->layer, job->head)->score_one(job, scratch);
}
