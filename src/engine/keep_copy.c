/*
 * keep_copy.c - the way back of an evaluation that can be stopped: copies of the state that the
 * keep policy changes beside entries. That is its block and the entries' marks.
 */
#include "base/mem.h"
#include "engine/engine.h"

static void move_marks(const struct pith_engine *e, struct pith_seq *seq, float *copy, bool back)
{
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            for (int32_t i = 0; i < e->traits.n_mark; i++) {
                size_t n = (size_t)kv_lane_len(seq->memory.kv, l, h);
                float *marks = n > 0 ? kv_lane_marks(seq->memory.kv, l, h, i) : NULL;
                if (n > 0)
                    memcpy(back ? marks : copy, back ? copy : marks, n * sizeof(*copy));
                copy += n;
            }
}

static size_t count_marks(const struct pith_engine *e, const struct pith_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    size_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            n += (size_t)kv_lane_len(seq->memory.kv, l, h);
    return n * (size_t)e->traits.n_mark;
}

static pith_status save_states(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                               pith_error *err)
{
    struct pi_keep *k = &e->keep;
    if (e->traits.state_size == 0)
        return PITH_OK;
    if (n > k->n_state) {
        struct keep_block *grown =
            pi_mem_grow(PI_MEM_SCRATCH, k->states, (size_t)n, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the policy's state of %d items", n);
        k->states = grown;
    }
    while (k->n_state < n) {
        PI_TRY(keep_block_make(k->handle, &k->states[k->n_state], err));
        k->n_state++;
    }
    for (int32_t i = 0; i < n; i++) {
        e->batch.state[i].keep.block = &k->states[i];
        keep_block_copy(k->handle, &items[i].seq->keep.block, &k->states[i]);
    }
    return PITH_OK;
}

static pith_status save_marks(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                              pith_error *err)
{
    size_t n_float = 0;
    if (e->traits.n_mark == 0)
        return PITH_OK;
    for (int32_t i = 0; i < n; i++) {
        e->batch.state[i].keep.marks = n_float;
        n_float += count_marks(e, items[i].seq);
    }
    if (n_float > e->keep.cap_marks) {
        float *grown =
            pi_mem_grow(PI_MEM_SCRATCH, e->keep.marks, n_float + n_float / 2, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a copy of %zu marks", n_float);
        e->keep.marks = grown;
        e->keep.cap_marks = n_float + n_float / 2;
    }
    for (int32_t i = 0; n_float > 0 && i < n; i++)
        move_marks(e, items[i].seq, e->keep.marks + e->batch.state[i].keep.marks, false);
    e->keep.has_marks = n_float > 0;
    return PITH_OK;
}

pith_status pi_keep_copy(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                         pith_error *err)
{
    PI_TRY(save_states(e, items, n, err));
    return save_marks(e, items, n, err);
}

void pi_keep_restore(struct pith_engine *e, struct pith_seq *seq, const struct pi_item_keep *copy)
{
    if (copy->block != NULL)
        keep_block_copy(e->keep.handle, copy->block, &seq->keep.block);
    if (e->keep.has_marks)
        move_marks(e, seq, e->keep.marks + copy->marks, true);
}
