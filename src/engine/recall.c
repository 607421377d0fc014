/*
 * recall.c - recall of entries in an engine: which entries an evaluation brings back and when, and
 * the room for them. It also takes evicted entries on their way to the tier. The tier chooses the
 * entries that come back (recall/).
 *
 * Recalls come with the last tokens of an evaluation of several, or with each Nth that is evaluated
 * alone. A pass is cut for them. Their queries are remembered, and choose again after a round that
 * comes before the next recall. It evicts entries that they passed over, since these were in the
 * lane.
 *
 * Invariant: when recalls come, and by which queries, depends on the sequence and its evaluations
 * alone. Guests never change what rounds see.
 */
#include <math.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"
#include "engine/recall_ask.h"

static const struct recall_kv_options *options_of(const struct pith_engine *e)
{
    return &e->policies.recall.kv;
}

static size_t lane_count(const struct pith_engine *e)
{
    return (size_t)e->lanes.n_layer * (size_t)e->lanes.n_head;
}

/* ---- the engine ---- */

/* INVALID: more tokens that choose together than a chunk has. The statuses of the tier. */
static pith_status open_tier(struct pith_engine *e, const pith_engine_params *params,
                             const struct policy_model *model, pith_error *err)
{
    (void)params;
    const struct recall_kv_options *o = options_of(e);
    const struct pi_pass_recaller recaller = pi_recall_recaller(e);
    if (o->last > e->chunk)
        return pi_fail(err, PITH_INVALID,
                       "recall: last: %d tokens choose together, which a pass of at most %d tokens "
                       "(the engine's chunk) does not hold",
                       o->last, e->chunk);
    /* Guests have lanes of all layers, of which those with a window stay empty. */
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    e->recall.take =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)g->n_layer * (size_t)g->n_head, sizeof(int32_t));
    e->recall.asked = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->chunk * (size_t)g->n_head,
                                     sizeof(*e->recall.asked));
    if (e->recall.take == NULL || e->recall.asked == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for recall");
    pi_pass_set_recaller(e->pass, &recaller);
    return recall_tier_create(o, model, e->kv, e->n_worker, &e->recall.tier, err);
}

static void close_tier(struct pith_engine *e)
{
    if (e->recall.tier != NULL)
        recall_tier_free(e->recall.tier);
    pi_mem_free(e->recall.take);
    pi_mem_free(e->recall.asked);
    e->recall = (struct pi_recall){0};
}

static void count_tier(const struct pith_engine *e, pith_memory_stats *out)
{
    struct recall_parts tier = {0};
    recall_tier_parts(e->recall.tier, &tier);
    out->tier_bytes += tier.pages;
    out->tier_device_bytes += tier.there;
    out->table_bytes += tier.tables;
    out->file_bytes += tier.file;
    out->work_bytes += tier.work;
}

/* ---- a sequence ---- */

static pith_status start_seq(struct pith_seq *seq, pith_error *err)
{
    struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    r->seconds = pi_mem_alloc_n(PI_MEM_OTHER, lane_count(e), sizeof(*r->seconds));
    r->found = pi_mem_alloc_n(PI_MEM_OTHER, lane_count(e), sizeof(*r->found));
    r->missed = pi_mem_alloc_n(PI_MEM_OTHER, lane_count(e), sizeof(*r->missed));
    if (r->seconds == NULL || r->found == NULL || r->missed == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the recall of a sequence");
    return recall_store_create(e->recall.tier, &r->store, err);
}

static void free_guests(struct pith_seq *seq)
{
    struct pi_seq_recall *r = &seq->recall;
    if (r->guests == NULL)
        return;
    seq->engine->recall.n_guest_seq--;
    kv_seq_free(r->guests);
    r->guests = NULL;
}

static void stop_seq(struct pith_seq *seq)
{
    struct pi_seq_recall *r = &seq->recall;
    free_guests(seq);
    if (r->store != NULL)
        recall_store_free(r->store);
    pi_mem_free(r->asked);
    pi_mem_free(r->found);
    pi_mem_free(r->missed);
    pi_mem_free(r->seconds);
    *r = (struct pi_seq_recall){0};
}

/* Room for the queries that ask. */
static pith_status reserve_asked(struct pith_seq *seq, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    size_t n = lane_count(e) * (size_t)options_of(e)->last * pi_recall_group_len(e);
    if (seq->recall.asked == NULL)
        seq->recall.asked = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(float));
    return seq->recall.asked != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for the queries of %d tokens",
                         options_of(e)->last);
}

static pith_status fork_asked(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    const struct pith_engine *e = from->engine;
    to->recall.n_asked = from->recall.n_asked;
    to->recall.asked_pos = from->recall.asked_pos;
    if (from->recall.n_asked == 0)
        return PITH_OK;
    PI_TRY(reserve_asked(to, err));
    memcpy(to->recall.asked, from->recall.asked,
           lane_count(e) * (size_t)options_of(e)->last * pi_recall_group_len(e) * sizeof(float));
    return PITH_OK;
}

static pith_status fork_seq(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    const struct pi_seq_recall *a = &from->recall;
    struct pi_seq_recall *b = &to->recall;
    recall_store_free(b->store);
    b->store = NULL;
    PI_TRY(recall_store_fork(a->store, &b->store, err));
    if (a->guests != NULL) {
        PI_TRY(kv_seq_fork(a->guests, &b->guests, err));
        to->engine->recall.n_guest_seq++;
    }
    PI_TRY(fork_asked(from, to, err));
    memcpy(b->found, a->found, lane_count(from->engine) * sizeof(*a->found));
    memcpy(b->seconds, a->seconds, lane_count(from->engine) * sizeof(*a->seconds));
    b->room = a->room;
    b->point = a->point;
    return PITH_OK;
}

static void truncate_seq(struct pith_seq *seq, int32_t n_token, bool whole)
{
    struct pi_seq_recall *r = &seq->recall;
    recall_store_truncate(r->store, n_token);
    if (n_token < r->point.end) {
        free_guests(seq);
        r->point.end = 0;
        r->point.n_step = 0;
        r->n_asked = 0;
    }
    if (whole) {
        r->point.n_recall = 0;
        memset(r->seconds, 0, lane_count(seq->engine) * sizeof(*r->seconds));
    }
}

static struct kv_seq *guests_of(const struct pith_seq *seq)
{
    return seq->recall.guests;
}

static int64_t remembered(const struct pith_seq *seq)
{
    const struct pi_seq_recall *r = &seq->recall;
    return (int64_t)(pi_mem_size(r->asked) + pi_mem_size(r->found) + pi_mem_size(r->missed) +
                     pi_mem_size(r->seconds));
}

/* ---- what is evicted ---- */

static void remember(void *user, const struct kv_seq *kv, int32_t layer, int32_t head,
                     const int32_t *slots, int32_t n_kept, int32_t thread)
{
    struct pith_seq *seq = user;
    double start = pi_time_s();
    recall_store_remember(seq->recall.store, kv, layer, head, slots, n_kept, thread);
    seq->recall.seconds[pi_recall_lane(seq->engine, layer, head)] += pi_time_s() - start;
}

/* Entries that the round evicts are remembered. */
static void witness_round(struct pith_seq *seq)
{
    const struct keep_witness witness = {seq, remember};
    keep_set_witness(seq->engine->keep.handle, &witness);
}

/* So are entries that the next token overwrites. */
static void remember_overwritten(struct pith_seq *seq)
{
    const struct kv_geometry *g = &seq->engine->lanes;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t slot = kv_lane_victim(seq->memory.kv, l, h);
            if (slot >= 0)
                recall_store_remember_one(seq->recall.store, seq->memory.kv, l, h, slot);
        }
}

/* ---- when ---- */

/* Whether something is there to come back when the next token is, or an entry of it is overwritten
   by then. */
static bool holds_any(const struct pith_seq *seq)
{
    struct recall_counts counts;
    recall_store_count(seq->recall.store, &counts);
    return counts.n_stored > 0 || keep_count_victims(seq->engine->keep.handle, seq->memory.kv) > 0;
}

/* The first token of an item's that recalls; an item of several tokens. Of a part of a prompt it
   may come in a later one. */
static int32_t first_of(const struct pith_engine *e, const pith_batch_item *item)
{
    return (int32_t)pi_max(0, (int64_t)pi_item_tokens(item) - options_of(e)->last);
}

/* Whether a round is due before the item's last token is there. */
static bool round_comes(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    int32_t left = pi_item_tokens(item) - n_done;
    return !keep_waits(e->keep.handle, pi_item_tokens(item)) &&
           keep_room(e->keep.handle, item->seq->memory.kv, pi_seq_point(item->seq, n_done), left) <
               left;
}

/* Whether it is the turn of a token that is evaluated alone. */
static bool step_recalls(const struct pith_engine *e, const struct pith_seq *seq)
{
    int32_t every = options_of(e)->every;
    return every > 0 && seq->recall.point.n_step + 1 >= every;
}

/* Whether a token that is evaluated alone may ask where it misses something. */
static bool may_ask(const struct pith_engine *e, const struct pith_seq *seq)
{
    return options_of(e)->ask > 0.0 && seq->recall.guests != NULL && seq->recall.n_asked > 0;
}

/* Whether the item's tokens from n_done on choose guests: they are a part of one pass up to its
   next round. */
static bool recalls(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    if (pi_item_tokens(item) == 1)
        return (step_recalls(e, item->seq) && holds_any(item->seq)) || may_ask(e, item->seq);
    /* Chunks are not cut for queries that nothing is there for. */
    return n_done >= first_of(e, item) && (!pi_engine_reads_chunks(e) || holds_any(item->seq));
}

/* Of an item's next `most` tokens those before its recall: its last tokens are not cut from each
   other but by a round. */
static int32_t until_recall(const struct pith_engine *e, const pith_batch_item *item,
                            int32_t n_done, int32_t most)
{
    if (pi_item_tokens(item) == 1 || n_done >= first_of(e, item))
        return most;
    if (pi_engine_reads_chunks(e) && !holds_any(item->seq) && !round_comes(e, item, n_done))
        return most;
    return (int32_t)pi_min(most, first_of(e, item) - n_done);
}

static void plan_recall(struct pith_engine *e, const pith_batch_item *item,
                        struct pi_item_plan *plan)
{
    plan->until = until_recall(e, item, plan->n_done, plan->until);
    plan->recall = plan->together = plan->stays = recalls(e, item, plan->n_done);
    plan->guests = item->seq->recall.guests;
}

bool pi_item_rounds_early(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    return e->recall.tier != NULL && pi_item_tokens(item) > 1 && n_done == first_of(e, item) &&
           round_comes(e, item, n_done) &&
           keep_over_budget(e->keep.handle, item->seq->memory.kv, pi_seq_point(item->seq, n_done));
}

/* ---- room ---- */

/* Whether an evaluation can recall: something was evicted, or is going to be. */
static bool can_recall(const struct pith_engine *e, const pith_batch_item *item)
{
    if (item->n_token == 1 && !step_recalls(e, item->seq))
        return false;
    return holds_any(item->seq) || round_comes(e, item, 0) ||
           keep_step_due(e->keep.handle, item->seq->memory.kv, pi_seq_point(item->seq, 0));
}

/* Whether what asked last may choose again on the way: a round may come. */
static bool can_ask_again(const struct pith_engine *e, const pith_batch_item *item)
{
    struct keep_point at = pi_seq_point(item->seq, 0);
    int64_t most = (int64_t)item->n_token + 1; /* and one behind the last token */
    if (item->n_token == 1 && item->seq->recall.n_asked == 0)
        return false;
    if (item->n_token == 1 && may_ask(e, item->seq))
        return true;
    return keep_room(e->keep.handle, item->seq->memory.kv, at, (int32_t)pi_min(most, INT32_MAX)) <
               most ||
           keep_step_due(e->keep.handle, item->seq->memory.kv, at);
}

static pith_status reserve_guests(struct pith_seq *seq, pith_error *err)
{
    struct pith_engine *e = seq->engine;
    const struct kv_geometry *g = &e->lanes;
    struct pi_seq_recall *r = &seq->recall;
    if (r->guests == NULL) {
        PI_TRY(kv_seq_create(e->kv, &r->guests, err));
        e->recall.n_guest_seq++;
    }
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            e->recall.take[pi_recall_lane(e, l, h)] =
                recall_take_at(&e->policies.recall, &e->policies.keep, g, l, h, r->room);
    return kv_seq_reserve_whole(r->guests, e->recall.take, err);
}

/* Room for the guests of an item that can recall, for the tier to choose them, and for the queries
   that are remembered. KV_FULL, NOMEM. */
static pith_status reserve_item(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    struct pi_seq_recall *r = &item->seq->recall;
    if (item->n_rest >= options_of(e)->last) { /* nothing of it recalls */
        r->alone = false;
        return PITH_OK;
    }
    bool recalls = can_recall(e, item), again = !recalls && can_ask_again(e, item);
    r->alone = item->n_token == 1 && !step_recalls(e, item->seq);
    if (item->n_token > 1 || recalls)
        PI_TRY(reserve_asked(item->seq, err));
    if (!recalls && !again)
        return PITH_OK;
    int64_t n_tok = pi_max(item->n_token, r->n_asked);
    PI_TRY(recall_tier_reserve(e->recall.tier, (int32_t)pi_min(n_tok, options_of(e)->last), err));
    if (recalls || r->guests == NULL)
        r->room = pi_seq_point(item->seq, item->n_token);
    return reserve_guests(item->seq, err);
}

static int64_t count_guests(const struct pith_seq *seq)
{
    const struct kv_geometry *g = &seq->engine->lanes;
    int64_t n = 0;
    for (int32_t l = 0; seq->recall.guests != NULL && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            n += kv_lane_len(seq->recall.guests, l, h);
    return n;
}

static void choose_again(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pith_seq *seq = ctx;
    int32_t n_head = kv_cache_geometry(seq->engine->kv)->n_head;
    for (int64_t i = begin; i < end; i++)
        pi_recall_choose_lane(seq, (int32_t)(i / n_head), (int32_t)(i % n_head),
                              seq->recall.n_asked, seq->recall.asked_pos, thread);
}

/* After a round behind the last token of an evaluation, or at a step, the queries that asked
   last choose again. They passed over the entries that it evicted. Before a turn's last tokens
   they need not: those tokens' own queries will. */
static void ask_again(struct pith_seq *seq, const pith_batch_item *item, int32_t left)
{
    struct pi_seq_recall *r = &seq->recall;
    if (item == NULL || (left + item->n_rest != 0 && pi_item_tokens(item) != 1))
        return;
    if (r->n_asked > 0 && r->guests != NULL)
        pi_parallel_items(seq->engine->n_worker, (int64_t)lane_count(seq->engine), choose_again,
                          seq);
}

static void note_point(const struct pith_seq *seq, struct pi_item_state *state)
{
    state->recall = seq->recall.point;
}

/* The mean over the lanes that looked for evicted entries at a step; 0: none did. */
static float doubt_of(const struct pith_seq *seq)
{
    const struct pi_seq_recall *r = &seq->recall;
    double sum = 0.0;
    int32_t n = 0;
    for (size_t lane = 0; lane < lane_count(seq->engine); lane++) {
        sum += r->found[lane] ? (double)r->missed[lane] : 0.0;
        n += r->found[lane];
    }
    return n > 0 ? (float)(sum / n) : 0.0f;
}

static void note_pass(const pith_batch_item *item, const struct pi_pass_item *part)
{
    struct pi_seq_recall *r = &item->seq->recall;
    if (part->recall && !r->alone) {
        r->point.n_recall += part->guests != NULL && holds_any(item->seq);
        r->point.end = part->pos0 + part->n_tok;
        r->point.n_step = 0;
        r->point.doubt = 0.0f;
        r->n_asked = part->n_tok;
        r->asked_pos = part->pos0;
    } else if (item->n_token == 1) {
        r->point.n_step++;
        if (part->recall && r->alone)
            r->point.doubt = fmaxf(r->point.doubt, doubt_of(item->seq));
    }
}

/* Guests that a stopped evaluation replaced are not there any more, nor what asked before. */
static void finish_item(const pith_batch_item *item, const struct pi_item_state *state)
{
    struct pi_seq_recall *r = &item->seq->recall;
    const struct pi_recall_point *before = &state->recall;
    bool undone = !state->stays, asked = r->point.end != before->end;
    bool replaced = r->point.n_recall != before->n_recall || r->alone;
    if (undone) {
        r->point = *before;
        r->point.end = asked ? 0 : before->end;
        r->n_asked = asked ? 0 : r->n_asked;
    }
    if (r->guests != NULL && ((undone && replaced) || count_guests(item->seq) == 0))
        free_guests(item->seq);
}

/* One token would be no turn. */
static int32_t leaves(const struct pith_engine *e, int32_t same, int32_t n_token)
{
    int32_t last = (int32_t)pi_max(2, options_of(e)->last);
    return (int32_t)pi_max(0, pi_min(same, (int64_t)n_token - last));
}

static int32_t reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    return leaves(seq->engine, same, n_token);
}

/* ---- the account ---- */

static bool has_recall(const struct engine_traits *traits)
{
    return traits->recalls_kv;
}

static int64_t tier_at(const struct pi_account *a, int32_t n_token)
{
    const struct kv_geometry full = kv_full_lanes(a->g);
    if (full.n_layer == 0)
        return 0;
    return a->ram != RECALL_RAM_AUTO
               ? a->ram
               : recall_tier_bytes_at(&a->policies->recall, &full, a->n_group, n_token);
}

#define OF_LANE ((int64_t)(sizeof(double) + sizeof(float) + sizeof(bool))) /* what it was found */

/* Guests of the lane that has most. */
static int32_t most_guests(const struct pi_account *a, int32_t n_token)
{
    const struct kv_geometry *g = &a->model->g;
    int32_t most = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            most =
                (int32_t)pi_max(most, recall_take_at(&a->policies->recall, &a->policies->keep, g, l,
                                                     h, (struct keep_point){.n_token = n_token}));
    return most;
}

/* Tables of the guests, and remembered queries. */
static int64_t own_at(const struct pi_account *a, int32_t n_token)
{
    const struct recall_kv_options *o = &a->policies->recall.kv;
    const struct kv_geometry *g = &a->model->g;
    int64_t n_lane = (int64_t)g->n_layer * g->n_head;
    int64_t asked = o->last * (int64_t)a->n_group * g->dim_k * (int64_t)sizeof(float);
    return kv_seq_bytes_at(a->g, a->mark_size, most_guests(a, n_token),
                           n_lane * most_guests(a, n_token)) +
           n_lane * (asked + OF_LANE);
}

/* And the tier's lists, which are the engine's. */
static int64_t beside_at(const struct pi_account *a, int32_t n_token)
{
    return recall_tables_at(&a->policies->recall.kv, a->model, n_token) + own_at(a, n_token);
}

static int64_t work_at(const struct pi_account *a, int32_t n_token, int32_t n_worker)
{
    int64_t bytes = 0;
    if (a->ram != RECALL_RAM_AUTO) /* a longer text fills the same tier */
        n_token = pi_account_reach(a, n_token);
    /* Statistics that cannot be read are refused when the engine is made. */
    (void)recall_work_at(&a->policies->recall.kv, a->model, n_worker, n_token,
                         most_guests(a, n_token), &bytes, NULL);
    return bytes;
}

const struct seq_hooks pi_recall_hooks = {
    .name = "recall of entries",
    .has = has_recall,
    .tier_at = tier_at,
    .beside_at = beside_at,
    .work_at = work_at,
    .own_at = own_at,
    .open = open_tier,
    .close = close_tier,
    .count = count_tier,
    .leaves = leaves,
    .start = start_seq,
    .stop = stop_seq,
    .fork = fork_seq,
    .truncate = truncate_seq,
    .reusable = reusable,
    .beside = guests_of,
    .remembered = remembered,
    .note = note_point,
    .reserve = reserve_item,
    .plan = plan_recall,
    .overwrite = remember_overwritten,
    .passed = note_pass,
    .before_round = witness_round,
    .after_round = ask_again,
    .after = finish_item,
};

bool pi_engine_ends_together(const struct pith_engine *e)
{
    return e->recall.tier != NULL;
}

/* ---- the public part ---- */

void pith_seq_recall_stats(const pith_seq *seq, pith_recall_stats *out)
{
    const struct pi_seq_recall *r = &seq->recall;
    *out = (pith_recall_stats){0};
    if (seq->text.store != NULL)
        pi_text_stats(seq, out);
    if (r->store == NULL)
        return;
    struct recall_counts counts;
    recall_store_count(r->store, &counts);
    out->recalls = r->point.n_recall;
    out->stored = counts.n_stored;
    out->lost = counts.n_lost;
    out->ram_bytes = counts.ram_bytes;
    out->file_bytes = counts.file_bytes;
    out->guests = count_guests(seq);
    out->doubt = (double)r->point.doubt;
    out->guest_bytes = r->guests != NULL ? kv_seq_held_bytes(r->guests) : 0;
    for (size_t i = 0; i < lane_count(seq->engine); i++)
        out->seconds += r->seconds[i];
}
