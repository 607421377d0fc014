/*
 * keep.c - the keep policy's side of an evaluation: what it is shown of the pass (attention
 * weights), what it remembers on the way back, and rounds that the caller asks for. When rounds
 * come by themselves is eval.c's and policy/keep/budget.c's.
 *
 * Invariant: a round begins only when its memory is there, so that a sequence is cut whole or not
 * at all; and a pass is shown to the policy with memory that was reserved before it.
 */
#include "base/mem.h"
#include "engine/engine.h"

pith_status pi_seq_round(struct pith_seq *seq, int32_t n_token, pith_error *err)
{
    struct keep_view view = pi_seq_view(seq, n_token);
    pi_seq_witness(seq);
    pith_status status = keep_round(seq->engine->keep, seq->memory.kv, &view, &seq->tally, err);
    keep_set_witness(seq->engine->keep, NULL);
    if (status == PITH_OK)
        pi_seq_note_share_round(seq);
    return status;
}

pith_status pith_seq_keep_round(pith_seq *seq, pith_error *err)
{
    struct keep *keep = seq->engine->keep;
    struct keep_point at = pi_seq_point(seq, 0);
    if (!seq->engine->traits.evicts || !keep_over_budget(keep, seq->memory.kv, at))
        return PITH_OK;
    PI_TRY(keep_prepare_round(keep, seq->memory.kv, at, err));
    PI_TRY(pi_seq_round(seq, at.n_token, err));
    pi_seq_update_text(seq);
    return PITH_OK;
}

pith_status pi_engine_read_budget(const struct pith_engine *e, const char *budget, double *scale,
                                  pith_error *err)
{
    *scale = 0.0;
    return budget != NULL ? policy_set_read_scale(&e->policies, &e->lanes, budget, scale, err)
                          : PITH_OK;
}

pith_status pith_seq_set_budget(pith_seq *seq, const char *budget, pith_error *err)
{
    double scale;
    if (seq->n_token > 0)
        return pi_fail(err, PITH_INVALID, "budget: %.32s: the sequence has %d tokens already",
                       budget != NULL ? budget : "", seq->n_token);
    PI_TRY(pi_engine_read_budget(seq->engine, budget, &scale, err));
    pi_seq_set_scale(seq, scale);
    return PITH_OK;
}

void pi_seq_set_scale(struct pith_seq *seq, double scale)
{
    const struct pith_engine *e = seq->engine;
    seq->budget_scale = scale;
    if (e->traits.evicts)
        keep_expect(&e->policies.keep, &e->lanes, scale, seq->memory.kv);
}

struct keep_point pi_seq_point(const struct pith_seq *seq, int32_t n_done)
{
    return (struct keep_point){seq->n_token + n_done, seq->n_prompt, seq->budget_scale};
}

struct keep_view pi_seq_view(const struct pith_seq *seq, int32_t n_token)
{
    return (struct keep_view){.kv = seq->memory.kv,
                              .tokens = seq->tokens,
                              .n_token = n_token,
                              .n_prompt = seq->n_prompt,
                              .pinned = seq->pinned,
                              .scale = seq->budget_scale,
                              .state = seq->keep_state};
}

/* ---- what is written ---- */

static void show_written(void *user, const struct pi_pass_written *w)
{
    const struct pith_engine *e = user;
    struct keep_view view = pi_seq_view(w->item->owner, w->item->pos0);
    keep_written(e->keep, &view, w);
}

pith_status pi_engine_start_write(struct pith_engine *e, pith_error *err)
{
    struct pi_pass_writer writer = {e, show_written};
    if ((e->traits.needs & KEEP_NEED_WRITTEN) == 0)
        return PITH_OK;
    return pi_pass_set_writer(e->pass, &writer, err);
}

/* ---- attention weights ---- */

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
    keep_attended(e->keep, &view, &a, e->step_of[in->item - e->pass_item], thread);
}

static void finish_layer(void *user, const struct pi_pass_item *item, int32_t layer)
{
    const struct pith_engine *e = user;
    const struct pith_seq *seq = item->owner;
    struct keep_view view = pi_seq_view(seq, item->pos0 + item->n_tok);
    int32_t step = e->step_of[item - e->pass_item];
    if (step >= 0)
        keep_choose_victims(e->keep, seq->memory.kv, &view, layer, step, seq->uneven);
}

pith_status pi_engine_start_watch(struct pith_engine *e, pith_error *err)
{
    struct pi_pass_watch watch = {e, show_attention, finish_layer, false};
    uint32_t wanted = KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS;
    if ((e->traits.needs & wanted) == 0)
        return PITH_OK;
    watch.parts = (e->traits.needs & KEEP_NEED_PARTS) != 0;
    return pi_pass_set_watch(e->pass, &watch, err);
}

bool pi_engine_watches(const struct pith_engine *e, int32_t n_token)
{
    uint32_t needs = e->traits.needs;
    return (needs & KEEP_NEED_WEIGHTS) != 0 ||
           ((needs & KEEP_NEED_STEP_WEIGHTS) != 0 && n_token == 1);
}

pith_status pi_engine_reserve_watch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                    pith_error *err)
{
    int64_t longest = 0, longest_step = 0;
    int32_t n_step = 0;
    bool uneven = false;
    for (int32_t i = 0; i < n; i++) {
        const struct pith_seq *seq = items[i].seq;
        if (!pi_engine_watches(e, items[i].n_token))
            continue;
        int64_t of_item =
            keep_longest(e->keep, seq->memory.kv, pi_seq_point(seq, 0), items[i].n_token);
        longest = pi_max(longest, of_item);
        if (items[i].n_token > 1 || !e->traits.overwrites)
            continue;
        longest_step = pi_max(longest_step, of_item);
        uneven = uneven || seq->uneven;
        n_step++;
    }
    if (n_step > 0)
        PI_TRY(keep_steps_reserve(e->keep, (int32_t)pi_min(n_step, e->chunk), longest_step, uneven,
                                  err));
    return pi_pass_reserve_watch(e->pass, longest, err);
}

/* ---- the way back ---- */

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
    size_t size = e->traits.state_size;
    if (size == 0)
        return PITH_OK;
    if (n > e->n_keep_state) {
        uint8_t *grown = pi_mem_grow(PI_MEM_SCRATCH, e->keep_states, (size_t)n, size);
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the policy's state of %d items", n);
        e->keep_states = grown;
        e->n_keep_state = n;
    }
    for (int32_t i = 0; i < n; i++) {
        e->state[i].keep_state = e->keep_states + (size_t)i * size;
        memcpy(e->state[i].keep_state, items[i].seq->keep_state, size);
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
        e->state[i].marks = n_float;
        n_float += count_marks(e, items[i].seq);
    }
    if (n_float > e->cap_marks) {
        float *grown = pi_mem_grow(PI_MEM_SCRATCH, e->marks, n_float + n_float / 2, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a copy of %zu marks", n_float);
        e->marks = grown;
        e->cap_marks = n_float + n_float / 2;
    }
    for (int32_t i = 0; n_float > 0 && i < n; i++)
        move_marks(e, items[i].seq, e->marks + e->state[i].marks, false);
    e->has_marks = n_float > 0;
    return PITH_OK;
}

pith_status pi_engine_save(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                           pith_error *err)
{
    PI_TRY(save_states(e, items, n, err));
    return save_marks(e, items, n, err);
}

void pi_engine_restore(struct pith_engine *e, struct pith_seq *seq,
                       const struct pi_item_state *state)
{
    if (state->keep_state != NULL)
        memcpy(seq->keep_state, state->keep_state, e->traits.state_size);
    if (e->has_marks)
        move_marks(e, seq, e->marks + state->marks, true);
}
