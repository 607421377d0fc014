/*
 * keep_watch.c - shows a pass to the keep policy: rows of its tokens, entries that it wrote, and
 * attention weights. The memory for these was reserved before the pass.
 */
#include "base/mem.h"
#include "base/threads.h"
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

static uint32_t wanted_rows(const struct pith_seq *seq, int32_t pos0, int32_t layer)
{
    const struct pith_engine *e = seq->engine;
    struct keep_view view = pi_seq_view(seq, pos0);
    if (layer >= e->lanes.n_layer || !keep_observes(e->keep.handle, &view, layer))
        return 0;
    return e->policies.keep.policy->learns_before_rope ? PI_TAP_Q_PRE : PI_TAP_Q;
}

/* The same by the device. */
static void learn_there(void *user, struct pi_stream *stream, const struct pi_pass_rows *rows)
{
    const struct pith_engine *e = user;
    struct kv_learn_list list = {.jobs = e->keep.learn};
    if (rows->layer >= e->lanes.n_layer)
        return;
    for (int32_t i = 0; i < rows->n_item; i++) {
        const struct pith_seq *seq = rows->items[i].owner;
        if (seq == NULL) /* a repetition */
            continue;
        struct keep_view view = pi_seq_view(seq, rows->items[i].pos0);
        keep_learn(e->keep.handle, &view, rows, i, &e->keep.learn[list.n++]);
    }
    if (list.n > 0)
        stream->device->learn(stream, &list);
}

static pith_status watch_rows(struct pith_engine *e, pith_error *err)
{
    const struct pi_pass_learner learner = {e, e->policies.keep.policy->learns_before_rope,
                                            learn_there};
    if (keep_learns(e->keep.handle))
        return pi_pass_set_learner(e->pass, &learner, err);
    e->tap.learn = learn_rows;
    e->tap.wants = wanted_rows;
    return PITH_OK;
}

/* ---- what is written ---- */

/* A layer's lanes on their way to the policy. */
struct turn {
    const struct pith_engine *e;
    const struct pi_pass_written *written;
    const struct pi_pass_watched *watched;
};

/* Multiplications that a policy takes for a number of a new entry, about. */
#define WRITTEN_WORK 64

static void show_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const struct pi_pass_written *w = &t->written[i];
        struct keep_view view = pi_seq_view(w->item->owner, w->item->pos0);
        keep_written(t->e->keep.handle, &view, w);
    }
}

static void show_written(void *user, const struct pi_pass_written *lanes, int32_t n)
{
    const struct pith_engine *e = user;
    struct turn t = {.e = e, .written = lanes};
    int64_t n_token = 0;
    for (int32_t i = 0; i < n; i++)
        n_token += lanes[i].item->n_tok;
    int64_t work = n_token * (e->lanes.dim_k + e->lanes.dim_v) * WRITTEN_WORK;
    int32_t n_thread = keep_is_alone(e->keep.handle) ? 1 : pi_threads_worth(e->n_thread, work);
    pi_parallel_ranges(n_thread, n, show_lanes, &t);
}

static void predict_there(void *user, struct pi_stream *stream, const struct pi_pass_entries *rows)
{
    const struct pith_engine *e = user;
    int32_t n_head = e->lanes.n_head;
    const struct kv_predict_list list = {e->keep.predict, rows->n_item * n_head};
    for (int32_t i = 0; i < list.n; i++) {
        const struct pi_pass_item *item = &rows->items[i / n_head];
        struct keep_view view = pi_seq_view(item->owner, item->pos0);
        keep_predict(e->keep.handle, &view, rows, i, &e->keep.predict[i]);
    }
    stream->device->predict(stream, &list);
}

/* ---- attention weights ---- */

static int32_t step_of(const struct pith_engine *e, const struct pi_pass_item *part)
{
    return e->keep.step_of[part - e->batch.part];
}

static void plan_lanes(void *user, struct pi_pass_watched *lanes, int32_t n)
{
    const struct pith_engine *e = user;
    for (int32_t i = 0; i < n; i++) {
        const struct pi_pass_item *item = lanes[i].item;
        struct keep_view view = pi_seq_view(item->owner, item->pos0 + item->n_tok);
        keep_plan_lane(e->keep.handle, &view, step_of(e, item), &lanes[i]);
    }
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
        .out = in->out,
        .slot = in->slot,
    };
    keep_attended(e->keep.handle, &view, &a, step_of(e, in->item), thread);
}

/* Victims of items, one per item of the loop. */
static void choose_victims(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const struct pi_pass_watched *lane = &t->watched[i * t->e->lanes.n_head];
        const struct pi_pass_item *item = lane->item;
        const struct pith_seq *seq = item->owner;
        struct keep_view view = pi_seq_view(seq, item->pos0 + item->n_tok);
        int32_t step = step_of(t->e, item);
        if (step >= 0)
            keep_choose_victims(t->e->keep.handle, seq->memory.kv, &view, lane->layer, step,
                                seq->keep.may_disagree);
    }
}

/* Asks the device for the victims of all items. */
static void find_victims(const struct pith_engine *e, struct pi_stream *stream,
                         const struct pi_pass_watched *lanes, int32_t n)
{
    for (int32_t i = 0; i < n; i += e->lanes.n_head) {
        const struct pi_pass_item *item = lanes[i].item;
        struct keep_view view = pi_seq_view(item->owner, item->pos0 + item->n_tok);
        if (step_of(e, item) >= 0)
            keep_list_victims(e->keep.handle, item->kv, &view, lanes[i].layer, step_of(e, item));
    }
    keep_find_victims(e->keep.handle, stream);
}

void pi_keep_learn_victims(struct pith_engine *e, int32_t n_pass)
{
    if (e->keep.handle == NULL || !e->traits.overwrites)
        return;
    keep_learn_victims(e->keep.handle);
    for (int32_t p = 0; p < n_pass; p++)
        if (e->keep.step_of[p] >= 0)
            keep_set_victims(e->keep.handle, e->batch.part[p].kv, e->keep.step_of[p]);
}

static void finish_lanes(void *user, struct pi_stream *stream, const struct pi_pass_watched *lanes,
                         int32_t n)
{
    const struct pith_engine *e = user;
    find_victims(e, stream, lanes, n);
    struct turn t = {.e = e, .watched = lanes};
    int64_t work = 0;
    for (int32_t i = 0; i < n; i++)
        work += (int64_t)kv_lane_len(lanes[i].item->kv, lanes[i].layer, lanes[i].head);
    work *= e->model->hp.n_head / e->model->hp.n_head_kv * 2;
    pi_parallel_items(pi_threads_worth(e->n_thread, work), n / e->lanes.n_head, choose_victims, &t);
}

pith_status pi_keep_watch(struct pith_engine *e, pith_error *err)
{
    const struct pi_pass_writer writer = {e, show_written,
                                          keep_predicts(e->keep.handle) ? predict_there : NULL};
    const struct pi_pass_watch watch = {e, plan_lanes, show_attention, finish_lanes, e->n_worker};
    uint32_t needs = e->traits.needs;
    if ((needs & KEEP_NEED_ROWS) != 0)
        PI_TRY(watch_rows(e, err));
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
