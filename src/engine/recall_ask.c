/*
 * recall_ask.c - recall of entries within a pass: which queries ask, and what comes back to their
 * lanes. Where a layer and its part of the tier are on a GPU, that scores (recall_tier_ask): all
 * lanes of a sequence with one wait. It must not know when recalls come.
 *
 * Invariant: whether a GPU scores depends on the lane and its stored entries alone.
 */
#include "engine/recall_ask.h"

#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"

static const struct recall_kv_options *options_of(const struct pith_engine *e)
{
    return &e->policies.recall.kv;
}

size_t pi_recall_group_len(const struct pith_engine *e)
{
    const struct pi_hparams *hp = &e->model->hp;
    return (size_t)(hp->n_head / hp->n_head_kv) * (size_t)hp->dim_k;
}

/* The queries that are remembered of a lane. */
static float *asked_of(const struct pith_seq *seq, int32_t layer, int32_t head)
{
    const struct pith_engine *e = seq->engine;
    return seq->recall.asked +
           pi_recall_lane(e, layer, head) * (size_t)options_of(e)->last * pi_recall_group_len(e);
}

static struct recall_query query_of(const struct pith_seq *seq, int32_t layer, int32_t head,
                                    int32_t n_tok, int32_t pos0)
{
    const struct pi_hparams *hp = &seq->engine->model->hp;
    return (struct recall_query){.layer = layer,
                                 .head = head,
                                 .n_tok = n_tok,
                                 .n_group = hp->n_head / hp->n_head_kv,
                                 .pos0 = pos0,
                                 .own = seq->memory.kv};
}

static int32_t most_of(const struct pith_seq *seq, int32_t layer, int32_t head)
{
    const struct pith_engine *e = seq->engine;
    return recall_take_at(&e->policies.recall, &e->policies.keep, &e->lanes, layer, head,
                          seq->recall.room);
}

/* ---- lanes ---- */

/* finds: whether something was found decides who asks at later steps. */
static void choose(struct pith_seq *seq, const struct recall_query *query, bool finds,
                   int32_t thread)
{
    const struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    size_t lane = pi_recall_lane(e, query->layer, query->head);
    double start = pi_time_s();
    recall_store_choose(r->store, query, r->guests, most_of(seq, query->layer, query->head),
                        thread);
    if (options_of(e)->ask > 0.0 && finds)
        r->found[lane] = recall_tier_best(e->recall.tier, thread) >= (float)options_of(e)->ask;
    r->seconds[lane] += pi_time_s() - start;
}

void pi_recall_choose_lane(struct pith_seq *seq, int32_t layer, int32_t head, int32_t n_tok,
                           int32_t pos0, int32_t thread)
{
    struct recall_query query = query_of(seq, layer, head, n_tok, pos0);
    query.q = asked_of(seq, layer, head);
    query.q_stride = pi_recall_group_len(seq->engine);
    choose(seq, &query, true, thread);
}

/* A token that is evaluated alone chooses for a lane in which the last turn found something,
   where it misses something there. Mostly that is where the turn's match was, or follows later
   text. */
static void ask_alone(struct pith_seq *seq, const struct recall_query *query, int32_t thread)
{
    const struct pith_engine *e = seq->engine;
    struct pi_seq_recall *r = &seq->recall;
    size_t lane = pi_recall_lane(e, query->layer, query->head);
    double start = pi_time_s();
    r->missed[lane] = recall_store_missed(r->store, query, r->guests, thread);
    if (r->missed[lane] < (float)options_of(e)->ask)
        return;
    recall_store_choose(r->store, query, r->guests, most_of(seq, query->layer, query->head),
                        thread);
    /* Doubt is about the rest, for which there was no room. */
    r->missed[lane] = recall_store_missed(r->store, query, r->guests, thread);
    r->seconds[lane] += pi_time_s() - start;
}

/* ---- the items of a layer ---- */

struct turn {
    const struct pith_engine *e;
    const struct pi_pass_asked *items;
    struct pi_recall_asked *asked; /* [n] lanes that the device scored */
    int32_t n;
};

static struct pith_seq *seq_of(const struct pi_pass_asked *asked)
{
    return (struct pith_seq *)asked->item->owner;
}

static struct recall_query query_there(const struct pith_engine *e,
                                       const struct pi_pass_asked *asked, int32_t head)
{
    size_t at = (size_t)head * pi_recall_group_len(e);
    struct recall_query query =
        query_of(seq_of(asked), asked->layer, head, asked->item->n_tok, asked->item->pos0);
    query.q = asked->q != NULL ? asked->q + at : NULL;
    query.q_at = pi_at_item(asked->q_at, at);
    query.q_stride = asked->q_stride;
    query.own = asked->item->kv;
    return query;
}

/* Whether a lane chooses at all. */
static bool chooses(const struct pith_engine *e, const struct pi_pass_asked *asked, int32_t head)
{
    const struct pi_seq_recall *r = &seq_of(asked)->recall;
    return r->alone ? r->found[pi_recall_lane(e, asked->layer, head)] : asked->item->guests != NULL;
}

static bool is_there(const struct pith_engine *e, const struct pi_pass_asked *asked, int32_t head)
{
    struct recall_query query = query_there(e, asked, head);
    return recall_can_ask(seq_of(asked)->recall.store, &query);
}

/* A lane that the device does not score. Without guests nothing was evicted so far. */
static void choose_lane_of(const struct turn *t, const struct pi_pass_asked *asked, int32_t head,
                           int32_t thread)
{
    struct pith_seq *seq = seq_of(asked);
    if (!chooses(t->e, asked, head) || is_there(t->e, asked, head))
        return;
    struct recall_query query = query_there(t->e, asked, head);
    if (seq->recall.alone)
        ask_alone(seq, &query, thread);
    else
        choose(seq, &query, true, thread);
}

static void choose_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    int32_t n_head = t->e->model->hp.n_head_kv;
    for (int64_t i = begin; i < end; i++)
        choose_lane_of(t, &t->items[i / n_head], (int32_t)(i % n_head), thread);
}

/* Queries of a turn are remembered for what will be evicted. */
static void remember_queries(const struct pith_engine *e, const struct pi_pass_asked *asked)
{
    struct pith_seq *seq = seq_of(asked);
    size_t len = pi_recall_group_len(e);
    for (int32_t h = 0; !seq->recall.alone && h < e->model->hp.n_head_kv; h++)
        for (int32_t i = 0; i < asked->item->n_tok; i++)
            memcpy(asked_of(seq, asked->layer, h) + (size_t)i * len,
                   asked->q + (size_t)i * asked->q_stride + (size_t)h * len, len * sizeof(float));
}

/* ---- on the device ---- */

static void choose_scored(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    for (int64_t i = begin; i < end; i++)
        if (t->asked[i].ask.query.value != NULL)
            choose(t->asked[i].seq, &t->asked[i].ask.query, !t->asked[i].seq->recall.alone, thread);
}

/* Lanes of an item that the device can score, a question each; guests: what is missed. */
static int32_t list_lanes(const struct pith_engine *e, const struct pi_pass_asked *asked,
                          bool misses, struct pi_recall_asked *out)
{
    struct pith_seq *seq = seq_of(asked);
    int32_t n = 0;
    for (int32_t h = 0; h < e->model->hp.n_head_kv; h++)
        if (chooses(e, asked, h) && is_there(e, asked, h))
            out[n++] = (struct pi_recall_asked){seq,
                                                {.store = seq->recall.store,
                                                 .query = query_there(e, asked, h),
                                                 .guests = misses ? seq->recall.guests : NULL}};
    return n;
}

/* Asks for n lanes, and keeps their answers. */
static void ask(const struct pith_engine *e, struct pi_recall_asked *asked, int32_t n)
{
    struct recall_ask some[RECALL_ASK_MOST];
    for (int32_t i = 0, k; i < n; i += k) {
        for (k = 0; k < RECALL_ASK_MOST && i + k < n; k++)
            some[k] = asked[i + k].ask;
        recall_tier_ask(e->recall.tier, some, k);
        for (int32_t j = 0; j < k; j++)
            asked[i + j].ask = some[j];
    }
}

/* The lanes of an item choose by scores that the device makes. */
static void choose_there(struct turn *t, struct pi_recall_asked *asked, int32_t n)
{
    for (int32_t i = 0; i < n; i += RECALL_ASK_MOST) {
        t->asked = asked + i;
        t->n = (int32_t)pi_min(RECALL_ASK_MOST, n - i);
        ask(t->e, t->asked, t->n);
        pi_parallel_items(t->e->n_worker, t->n, choose_scored, t);
    }
}

/* Lanes that miss something, packed; returns how many. */
static int32_t take_missed(const struct pith_engine *e, struct pi_recall_asked *asked, int32_t n)
{
    int32_t n_left = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct recall_query *query = &asked[i].ask.query;
        asked[i].seq->recall.missed[pi_recall_lane(e, query->layer, query->head)] =
            asked[i].ask.missed;
        if (asked[i].ask.missed >= (float)options_of(e)->ask)
            asked[n_left++] = asked[i];
    }
    return n_left;
}

static void set_guests(struct pi_recall_asked *asked, int32_t n, bool misses)
{
    for (int32_t i = 0; i < n; i++)
        asked[i].ask.guests = misses ? asked[i].seq->recall.guests : NULL;
}

/* As ask_alone, of all items' lanes that the device can score. */
static void ask_there(struct turn *t, int32_t n_item)
{
    const struct pith_engine *e = t->e;
    struct pi_recall_asked *asked = e->recall.asked;
    int32_t n = 0;
    for (int32_t i = 0; i < n_item; i++)
        if (seq_of(&t->items[i])->recall.alone)
            n += list_lanes(e, &t->items[i], true, asked + n);
    ask(e, asked, n);
    n = take_missed(e, asked, n);
    if (n == 0)
        return;
    set_guests(asked, n, false);
    choose_there(t, asked, n);
    set_guests(asked, n, true);
    ask(e, asked, n);
    take_missed(e, asked, n);
}

static void choose_guests(void *user, const struct pi_pass_asked *items, int32_t n)
{
    struct pith_engine *e = user;
    struct turn t = {.e = e, .items = items};
    for (int32_t i = 0; i < n; i++)
        remember_queries(e, &items[i]);
    ask_there(&t, n);
    for (int32_t i = 0; i < n; i++)
        if (!seq_of(&items[i])->recall.alone)
            choose_there(&t, e->recall.asked, list_lanes(e, &items[i], false, e->recall.asked));
    pi_parallel_items(e->n_worker, (int64_t)n * e->model->hp.n_head_kv, choose_lanes, &t);
}

/* Queries of a turn are remembered. A token's are looked at where the device cannot score. */
static bool looks(void *user, const struct pi_pass_asked *items, int32_t n)
{
    const struct pith_engine *e = user;
    for (int32_t i = 0; i < n; i++) {
        if (!seq_of(&items[i])->recall.alone)
            return true;
        for (int32_t h = 0; h < e->model->hp.n_head_kv; h++)
            if (chooses(e, &items[i], h) && !is_there(e, &items[i], h) &&
                recall_store_has(seq_of(&items[i])->recall.store, items[i].layer, h))
                return true;
    }
    return false;
}

struct pi_pass_recaller pi_recall_recaller(struct pith_engine *e)
{
    return (struct pi_pass_recaller){e, looks, choose_guests};
}
