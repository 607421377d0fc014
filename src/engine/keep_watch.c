/*
 * keep_watch.c - the data that a pass shows to the keep policy: rows of its tokens, entries that it
 * wrote, and attention weights. The memory for these was reserved before the pass.
 */
#include "base/mem.h"
#include "engine/engine.h"

/* ---- rows ---- */

static void learn_rows(struct pith_seq *seq, const struct pi_pass_tap_rows *rows)
{
    const struct pith_engine *e = seq->engine;
    if (rows->layer >= e->lanes.n_layer)
        return;
    struct keep_view view = pi_seq_view(seq, rows->item->pos0);
    keep_observe(e->keep.handle, &view, rows);
}

/* ---- what is written ---- */

static void show_written(void *user, const struct pi_pass_written *w)
{
    const struct pith_engine *e = user;
    struct keep_view view = pi_seq_view(w->item->owner, w->item->pos0);
    keep_written(e->keep.handle, &view, w);
}

/* ---- attention weights ---- */

static int32_t step_of(const struct pith_engine *e, const struct pi_pass_item *part)
{
    return e->keep.step_of[part - e->batch.part];
}

static void show_attention(void *user, const struct pi_pass_attention *in, int32_t thread)
{
    const struct pith_engine *e = user;
    int32_t pos = in->item->pos0 + in->t;
    struct keep_view view = pi_seq_view(in->item->owner, pos + 1);
    struct keep_attention a = {
        .layer = in->layer,
        .head = in->head,
        .n = in->n,
        .pos = pos,
        .n_group = e->model->hp.n_head / e->model->hp.n_head_kv,
        .weight = in->weight,
        .stride = in->stride,
        .parts = in->parts,
        .out = in->out,
        .slot = in->slot,
        .max = in->max,
        .sum = in->sum,
    };
    keep_attended(e->keep.handle, &view, &a, step_of(e, in->item), thread);
}

static void finish_layer(void *user, const struct pi_pass_item *item, int32_t layer)
{
    const struct pith_engine *e = user;
    const struct pith_seq *seq = item->owner;
    struct keep_view view = pi_seq_view(seq, item->pos0 + item->n_tok);
    int32_t step = step_of(e, item);
    if (step >= 0)
        keep_choose_victims(e->keep.handle, seq->memory.kv, &view, layer, step,
                            seq->keep.may_disagree);
}

pith_status pi_keep_watch(struct pith_engine *e, pith_error *err)
{
    const struct pi_pass_writer writer = {e, show_written};
    struct pi_pass_watch watch = {e, show_attention, finish_layer, false};
    uint32_t needs = e->traits.needs;
    watch.parts = (needs & KEEP_NEED_PARTS) != 0;
    if ((needs & KEEP_NEED_ROWS) != 0)
        e->tap.learn = learn_rows;
    if ((needs & (KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS)) != 0)
        PI_TRY(pi_pass_set_watch(e->pass, &watch, err));
    return (needs & KEEP_NEED_WRITTEN) != 0 ? pi_pass_set_writer(e->pass, &writer, err) : PITH_OK;
}

bool pi_keep_watches(const struct pith_engine *e, int32_t n_token)
{
    uint32_t needs = e->traits.needs;
    return (needs & KEEP_NEED_WEIGHTS) != 0 ||
           ((needs & KEEP_NEED_STEP_WEIGHTS) != 0 && n_token == 1);
}

pith_status pi_keep_reserve_watch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                  pith_error *err)
{
    int64_t longest = 0, longest_step = 0;
    int32_t n_step = 0;
    bool may_disagree = false;
    for (int32_t i = 0; i < n; i++) {
        const struct pith_seq *seq = items[i].seq;
        if (!pi_keep_watches(e, items[i].n_token))
            continue;
        int64_t of_item = pi_item_longest(e, &items[i]);
        longest = pi_max(longest, of_item);
        if (items[i].n_token > 1 || !e->traits.overwrites)
            continue;
        longest_step = pi_max(longest_step, of_item);
        may_disagree = may_disagree || seq->keep.may_disagree;
        n_step++;
    }
    if (n_step > 0)
        PI_TRY(keep_steps_reserve(e->keep.handle, (int32_t)pi_min(n_step, e->chunk), longest_step,
                                  may_disagree, err));
    return pi_pass_reserve_watch(e->pass, longest, err);
}
