/*
 * recall.c - recall's side of an engine: what an evaluation brings back and when, the room for it,
 * and what was evicted on its way to where it is kept. What comes back is the tier's choice
 * (recall/), what is found as text the store's.
 *
 * Recalls come with the last tokens of an evaluation of several, or with each Nth that is evaluated
 * alone, and a pass is cut for them. Their queries are remembered, and choose again after a round
 * that comes before the next: it evicts entries that they passed over, since they were in the lane.
 *
 * Invariant: when recalls come, and by which queries, depends on the sequence and its evaluations
 * alone. Guests never change what rounds see.
 */
#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "engine/text_embed.h"

static const struct recall_kv_options *options_of(const struct pith_engine *e)
{
    return &e->policies.recall.kv;
}

static size_t lane_of(const struct pith_engine *e, int32_t layer, int32_t head)
{
    return (size_t)layer * (size_t)kv_cache_geometry(e->kv)->n_head + (size_t)head;
}

static size_t lane_count(const struct pith_engine *e)
{
    return (size_t)e->lanes.n_layer * (size_t)e->lanes.n_head;
}

/* ---- an engine's ---- */

/* Queries of a lane's group, of one token. */
static size_t group_len(const struct pith_engine *e)
{
    const struct pi_hparams *hp = &e->model->hp;
    return (size_t)(hp->n_head / hp->n_head_kv) * (size_t)hp->dim_k;
}

/* What is remembered of a lane. */
static float *asked_of(const struct pith_seq *seq, int32_t layer, int32_t head)
{
    const struct pith_engine *e = seq->engine;
    return seq->recall.asked + lane_of(e, layer, head) * (size_t)options_of(e)->last * group_len(e);
}

/* Chooses the guests of a lane by the queries that are remembered of it. */
static void choose_lane(struct pith_seq *seq, int32_t layer, int32_t head, int32_t n_tok,
                        int32_t pos0, int32_t thread)
{
    const struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    const struct recall_query query = {
        .layer = layer,
        .head = head,
        .n_tok = n_tok,
        .n_group = e->model->hp.n_head / e->model->hp.n_head_kv,
        .pos0 = pos0,
        .q = asked_of(seq, layer, head),
        .q_stride = group_len(e),
        .own = seq->memory.kv,
    };
    double start = pi_time_s();
    int32_t n_most =
        recall_take_at(&e->policies.recall, &e->policies.keep, &e->lanes, layer, head, r->room);
    recall_store_choose(r->store, &query, r->guests, n_most, thread);
    if (options_of(e)->ask > 0.0)
        r->found[lane_of(e, layer, head)] =
            recall_tier_best(e->recall->tier, thread) >= (float)options_of(e)->ask;
    r->seconds[lane_of(e, layer, head)] += pi_time_s() - start;
}

/* A token that is evaluated alone chooses for a lane in which the last turn found something, where
   it misses something there: what it looks for is mostly where the turn's match was, or follows
   what has been said meanwhile. */
static void ask_alone(struct pith_seq *seq, struct recall_query *query, int32_t thread)
{
    const struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    size_t lane = lane_of(e, query->layer, query->head);
    double start = pi_time_s();
    if (!r->found[lane] ||
        recall_store_missed(r->store, query, r->guests, thread) < (float)options_of(e)->ask)
        return;
    int32_t n_most = recall_take_at(&e->policies.recall, &e->policies.keep, &e->lanes, query->layer,
                                    query->head, r->room);
    recall_store_choose(r->store, query, r->guests, n_most, thread);
    r->seconds[lane] += pi_time_s() - start;
}

/* Without guests nothing was evicted so far: queries are remembered for what will be. */
static void choose_guests(void *user, const struct pi_pass_item *item, int32_t layer, int32_t head,
                          const float *q, size_t q_stride, int32_t thread)
{
    const struct pith_engine *e = user;
    struct pith_seq *seq = (struct pith_seq *)item->owner;
    float *asked = asked_of(seq, layer, head);
    if (seq->recall.alone) {
        struct recall_query query = {
            .layer = layer,
            .head = head,
            .n_tok = 1,
            .n_group = e->model->hp.n_head / e->model->hp.n_head_kv,
            .pos0 = item->pos0,
            .q = q,
            .q_stride = q_stride,
            .own = item->kv,
        };
        ask_alone(seq, &query, thread);
        return;
    }
    for (int32_t t = 0; t < item->n_tok; t++)
        memcpy(asked + (size_t)t * group_len(e), q + (size_t)t * q_stride,
               group_len(e) * sizeof(*asked));
    if (item->guests != NULL)
        choose_lane(seq, layer, head, item->n_tok, item->pos0, thread);
}

static pith_status start_tier(struct pith_engine *e, const struct policy_model *model,
                              pith_error *err)
{
    const struct recall_kv_options *o = options_of(e);
    const struct pi_pass_recaller recaller = {e, choose_guests};
    if (o->last > e->chunk)
        return pi_fail(err, PITH_INVALID,
                       "recall: last: %d tokens choose together, which a pass of at most %d tokens "
                       "(the engine's chunk) does not hold",
                       o->last, e->chunk);
    /* Guests have lanes of all layers, of which those with a window stay empty. */
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    e->recall->take =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)g->n_layer * (size_t)g->n_head, sizeof(int32_t));
    if (e->recall->take == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for recall");
    pi_pass_set_recaller(e->pass, &recaller);
    return recall_tier_create(o, model, e->n_thread, &e->recall->tier, err);
}

pith_status pi_engine_start_recall(struct pith_engine *e, const struct policy_model *model,
                                   pith_error *err)
{
    if (!e->traits.recalls_kv && !e->traits.recalls_text)
        return PITH_OK;
    e->recall = pi_mem_alloc(PI_MEM_OTHER, sizeof(*e->recall));
    if (e->recall == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for recall");
    if (e->traits.recalls_text)
        return recall_text_open(&e->policies.recall.text, e->model, pi_text_embed_open, e->n_thread,
                                &e->recall->text, err);
    return start_tier(e, model, err);
}

void pi_engine_stop_recall(struct pith_engine *e)
{
    if (e->recall == NULL)
        return;
    recall_text_close(e->recall->text);
    if (e->recall->tier != NULL)
        recall_tier_free(e->recall->tier);
    pi_mem_free(e->recall->take);
    pi_mem_free(e->recall);
}

/* ---- a sequence's ---- */

pith_status pi_seq_start_recall(struct pith_seq *seq, pith_error *err)
{
    struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    if (e->traits.recalls_text)
        return recall_text_seq_create(e->recall->text, &r->text, err);
    if (!e->traits.recalls_kv)
        return PITH_OK;
    r->seconds = pi_mem_alloc_n(PI_MEM_OTHER, lane_count(e), sizeof(*r->seconds));
    r->found = pi_mem_alloc_n(PI_MEM_OTHER, lane_count(e), sizeof(*r->found));
    if (r->seconds == NULL || r->found == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for what a sequence recalls");
    return recall_store_create(e->recall->tier, &r->store, err);
}

static void free_guests(struct pith_seq *seq)
{
    struct pi_seq_recall *r = &seq->recall;
    if (r->guests == NULL)
        return;
    seq->engine->recall->n_guest_seq--;
    kv_seq_free(r->guests);
    r->guests = NULL;
}

void pi_seq_stop_recall(struct pith_seq *seq)
{
    struct pi_seq_recall *r = &seq->recall;
    free_guests(seq);
    if (r->store != NULL)
        recall_store_free(r->store);
    recall_text_seq_free(r->text);
    pi_mem_free(r->asked);
    pi_mem_free(r->found);
    pi_mem_free(r->seconds);
    *r = (struct pi_seq_recall){0};
}

/* Room for the queries that ask. */
static pith_status reserve_asked(struct pith_seq *seq, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    size_t n = lane_count(e) * (size_t)options_of(e)->last * group_len(e);
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
           lane_count(e) * (size_t)options_of(e)->last * group_len(e) * sizeof(float));
    return PITH_OK;
}

pith_status pi_seq_fork_recall(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    const struct pi_seq_recall *a = &from->recall;
    struct pi_seq_recall *b = &to->recall;
    if (from->engine->traits.recalls_text) {
        recall_text_seq_free(b->text);
        b->text = NULL;
        b->n_recall = a->n_recall;
        b->n_found = a->n_found;
        return recall_text_seq_fork(a->text, &b->text, err);
    }
    if (!from->engine->traits.recalls_kv)
        return PITH_OK;
    recall_store_free(b->store);
    b->store = NULL;
    PI_TRY(recall_store_fork(a->store, &b->store, err));
    if (a->guests != NULL) {
        PI_TRY(kv_seq_fork(a->guests, &b->guests, err));
        to->engine->recall->n_guest_seq++;
    }
    PI_TRY(fork_asked(from, to, err));
    memcpy(b->found, a->found, lane_count(from->engine) * sizeof(*a->found));
    memcpy(b->seconds, a->seconds, lane_count(from->engine) * sizeof(*a->seconds));
    b->room = a->room;
    b->n_recall = a->n_recall;
    b->n_step = a->n_step;
    b->end = a->end;
    return PITH_OK;
}

void pi_seq_truncate_recall(struct pith_seq *seq, int32_t n_token, bool whole)
{
    struct pi_seq_recall *r = &seq->recall;
    if (seq->engine->traits.recalls_text)
        recall_text_seq_truncate(r->text, n_token);
    if (seq->engine->traits.recalls_kv)
        recall_store_truncate(r->store, n_token);
    if (n_token < r->end) {
        free_guests(seq);
        r->end = 0;
        r->n_step = 0;
        r->n_asked = 0;
    }
    if (whole && seq->engine->traits.recalls_kv) {
        r->n_recall = 0;
        memset(r->seconds, 0, lane_count(seq->engine) * sizeof(*r->seconds));
    }
}

/* ---- what is evicted ---- */

static void remember(void *user, const struct kv_seq *kv, int32_t layer, int32_t head,
                     const int32_t *slots, int32_t n_kept, int32_t thread)
{
    struct pith_seq *seq = user;
    double start = pi_time_s();
    (void)thread;
    recall_store_remember(seq->recall.store, kv, layer, head, slots, n_kept);
    seq->recall.seconds[lane_of(seq->engine, layer, head)] += pi_time_s() - start;
}

void pi_seq_witness(struct pith_seq *seq)
{
    const struct keep_witness witness = {seq, remember};
    if (seq->engine->traits.recalls_kv)
        keep_set_witness(seq->engine->keep, &witness);
}

void pi_seq_remember_aims(struct pith_seq *seq)
{
    const struct kv_geometry *g = &seq->engine->lanes;
    if (!seq->engine->traits.recalls_kv)
        return;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t slot = kv_lane_aim(seq->memory.kv, l, h);
            if (slot >= 0)
                recall_store_remember_one(seq->recall.store, seq->memory.kv, l, h, slot);
        }
}

void pi_seq_update_text(struct pith_seq *seq)
{
    if (seq->engine->traits.recalls_text)
        recall_text_update(seq->recall.text, seq->memory.kv, seq->tokens, seq->n_token);
}

/* ---- when ---- */

/* Whether something is there to come back when the next token is, or an entry of it is overwritten
   by then. */
static bool holds_any(const struct pith_seq *seq)
{
    struct recall_counts counts;
    recall_store_count(seq->recall.store, &counts);
    return counts.n_stored > 0 || keep_count_aims(seq->engine->keep, seq->memory.kv) > 0;
}

/* The first token of an item's that recalls; an item of several tokens. Of a part of a prompt it may
   come in a later one. */
static int32_t first_of(const struct pith_engine *e, const pith_batch_item *item)
{
    return (int32_t)pi_max(0, (int64_t)pi_item_tokens(item) - options_of(e)->last);
}

/* Whether a round is due before the item's last token is there. */
static bool round_comes(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    int32_t left = pi_item_tokens(item) - n_done;
    return !keep_waits(e->keep, pi_item_tokens(item)) &&
           keep_room(e->keep, item->seq->memory.kv, pi_seq_point(item->seq, n_done), left) < left;
}

/* Whether it is the turn of a token that is evaluated alone. */
static bool step_recalls(const struct pith_engine *e, const struct pith_seq *seq)
{
    int32_t every = options_of(e)->every;
    return every > 0 && seq->recall.n_step + 1 >= every;
}

/* Whether a token that is evaluated alone may ask where it misses something. */
static bool may_ask(const struct pith_engine *e, const struct pith_seq *seq)
{
    return options_of(e)->ask > 0.0 && seq->recall.guests != NULL && seq->recall.n_asked > 0;
}

bool pi_engine_recalls(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    if (!e->traits.recalls_kv)
        return false;
    if (pi_item_tokens(item) == 1)
        return (step_recalls(e, item->seq) && holds_any(item->seq)) || may_ask(e, item->seq);
    /* What is read in chunks is not cut for queries that nothing is there for. */
    return n_done >= first_of(e, item) && (!e->traits.reads_parts || holds_any(item->seq));
}

int32_t pi_engine_until_recall(const struct pith_engine *e, const pith_batch_item *item,
                               int32_t n_done, int32_t most)
{
    if (!e->traits.recalls_kv || pi_item_tokens(item) == 1 || n_done >= first_of(e, item))
        return most;
    if (e->traits.reads_parts && !holds_any(item->seq) && !round_comes(e, item, n_done))
        return most;
    return (int32_t)pi_min(most, first_of(e, item) - n_done);
}

bool pi_engine_rounds_early(const struct pith_engine *e, const pith_batch_item *item,
                            int32_t n_done)
{
    return e->traits.recalls_kv && pi_item_tokens(item) > 1 && n_done == first_of(e, item) &&
           round_comes(e, item, n_done) &&
           keep_over_budget(e->keep, item->seq->memory.kv, pi_seq_point(item->seq, n_done));
}

/* ---- room ---- */

/* Whether an evaluation can recall: something was evicted, or is going to be. */
static bool can_recall(const struct pith_engine *e, const pith_batch_item *item)
{
    if (item->n_token == 1 && !step_recalls(e, item->seq))
        return false;
    return holds_any(item->seq) || round_comes(e, item, 0) ||
           keep_step_due(e->keep, item->seq->memory.kv, pi_seq_point(item->seq, 0));
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
    return keep_room(e->keep, item->seq->memory.kv, at, (int32_t)pi_min(most, INT32_MAX)) < most ||
           keep_step_due(e->keep, item->seq->memory.kv, at);
}

static pith_status reserve_guests(struct pith_seq *seq, pith_error *err)
{
    struct pith_engine *e = seq->engine;
    const struct kv_geometry *g = &e->lanes;
    struct pi_seq_recall *r = &seq->recall;
    if (r->guests == NULL) {
        PI_TRY(kv_seq_create(e->kv, &r->guests, err));
        e->recall->n_guest_seq++;
    }
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            e->recall->take[lane_of(e, l, h)] =
                recall_take_at(&e->policies.recall, &e->policies.keep, g, l, h, r->room);
    return kv_seq_reserve_whole(r->guests, e->recall->take, err);
}

pith_status pi_engine_reserve_guests(struct pith_engine *e, const pith_batch_item *item,
                                     pith_error *err)
{
    struct pi_seq_recall *r = &item->seq->recall;
    if (!e->traits.recalls_kv)
        return PITH_OK;
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
    PI_TRY(recall_tier_reserve(e->recall->tier, (int32_t)pi_min(n_tok, options_of(e)->last), err));
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
        choose_lane(seq, (int32_t)(i / n_head), (int32_t)(i % n_head), seq->recall.n_asked,
                    seq->recall.asked_pos, thread);
}

void pi_seq_ask_again(struct pith_seq *seq)
{
    struct pi_seq_recall *r = &seq->recall;
    if (r->n_asked > 0 && r->guests != NULL)
        pi_parallel_items(seq->engine->n_thread, (int64_t)lane_count(seq->engine), choose_again,
                          seq);
}

void pi_seq_note_recall(struct pith_seq *seq, const struct pi_pass_item *part, bool step)
{
    struct pi_seq_recall *r = &seq->recall;
    if (part->recall && !r->alone) {
        r->n_recall += part->guests != NULL && holds_any(seq);
        r->end = part->pos0 + part->n_tok;
        r->n_step = 0;
        r->n_asked = part->n_tok;
        r->asked_pos = part->pos0;
    } else if (step) {
        r->n_step++;
    }
}

/* Guests that a stopped evaluation replaced are not there any more, nor what asked before. */
void pi_seq_finish_recall(struct pith_seq *seq, const struct pi_recall_point *before, bool undone)
{
    struct pi_seq_recall *r = &seq->recall;
    bool replaced = r->n_recall != before->n_recall || r->alone, asked = r->end != before->end;
    if (undone) {
        r->n_recall = before->n_recall;
        r->n_step = before->n_step;
        r->end = asked ? 0 : before->end;
        r->n_asked = asked ? 0 : r->n_asked;
    }
    if (r->guests != NULL && ((undone && replaced) || count_guests(seq) == 0))
        free_guests(seq);
}

struct pi_recall_point pi_seq_recall_point(const struct pith_seq *seq)
{
    const struct pi_seq_recall *r = &seq->recall;
    return (struct pi_recall_point){r->n_recall, r->n_step, r->end};
}

int32_t pi_engine_recall_reusable(const struct pith_engine *e, int32_t same, int32_t n_token)
{
    if (!e->traits.recalls_kv)
        return same;
    int32_t last = (int32_t)pi_max(2, options_of(e)->last); /* one token would be no turn */
    return (int32_t)pi_max(0, pi_min(same, (int64_t)n_token - last));
}

/* ---- the public part ---- */

void pith_seq_recall_stats(const pith_seq *seq, pith_recall_stats *out)
{
    const struct pi_seq_recall *r = &seq->recall;
    *out = (pith_recall_stats){.recalls = r->n_recall};
    if (seq->engine->traits.recalls_text) {
        struct recall_text_counts counts;
        recall_text_count(r->text, &counts);
        out->stored = counts.n_span;
        out->guests = r->n_found;
        out->seconds = counts.seconds;
    }
    if (seq->engine->traits.recalls_kv) {
        struct recall_counts counts;
        recall_store_count(r->store, &counts);
        out->stored = counts.n_stored;
        out->lost = counts.n_lost;
        out->ram_bytes = counts.ram_bytes;
        out->file_bytes = counts.file_bytes;
        out->guests = count_guests(seq);
        out->guest_bytes = r->guests != NULL ? kv_seq_held_bytes(r->guests) : 0;
        for (size_t i = 0; i < lane_count(seq->engine); i++)
            out->seconds += r->seconds[i];
    }
}

/* Tokens of text that may be put in front of the next n_rest ones, and how many before it are
   pinned with it. What is pinned stays where the budget holds it; or no round comes until the
   question is read, as in a sequence that is young. A quarter of what is pinned is left to the
   answer. */
static int32_t room_before(const struct pith_seq *seq, int32_t n_rest, int32_t *n_before)
{
    const struct pith_engine *e = seq->engine;
    const struct keep_config *config = &e->policies.keep;
    struct keep_point at = pi_seq_point(seq, 0);
    int32_t most = keep_pinnable(config, &e->lanes, at);
    *n_before = (int32_t)pi_min(config->rules.window, most / 4);
    int64_t pinned = (int64_t)most - *n_before - n_rest;
    int64_t quiet = (int64_t)keep_room(e->keep, seq->memory.kv, at, INT32_MAX / 2) - 1 - n_rest;
    return (int32_t)pi_max(0, pi_max(pinned - pinned / 4, quiet));
}

pith_status pi_seq_find_text(struct pith_seq *seq, const char *question, size_t len, int32_t n_rest,
                             char **text, int32_t *n_before, pith_error *err)
{
    struct pi_seq_recall *r = &seq->recall;
    int32_t n = 0;
    *text = NULL;
    *n_before = 0;
    if (!seq->engine->traits.recalls_text)
        return PITH_OK;
    /* What the next round would drop is to be found, too. */
    pith_status status = pith_seq_keep_round(seq, err);
    if (status != PITH_OK && status != PITH_KV_FULL)
        return status;
    int32_t room = room_before(seq, n_rest, n_before);
    PI_TRY(recall_text_find(r->text, seq->memory.kv, seq->tokens, seq->n_token, question, len, room,
                            text, &n, err));
    r->n_recall += *text != NULL;
    r->n_found = n;
    return PITH_OK;
}

/* Tokens of a message's question and of a template, by guess: few texts have less than three bytes
   to a token. */
#define TEMPLATE_TOKENS 32
#define BYTES_PER_TOKEN 3

pith_status pith_seq_recall_text(pith_seq *seq, const char *question, size_t len, char **text,
                                 pith_error *err)
{
    char *found = NULL;
    int32_t n_before;
    if (question == NULL || text == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_seq_recall_text: question and text must not be NULL");
    int64_t n_rest = TEMPLATE_TOKENS + (int64_t)(len / BYTES_PER_TOKEN);
    PI_TRY(pi_seq_find_text(seq, question, len, (int32_t)pi_min(n_rest, INT32_MAX / 2), &found,
                            &n_before, err));
    *text = found;
    return PITH_OK;
}

void pith_recall_free(char *text)
{
    pi_mem_free(text);
}
