/*
 * lessismore.c - one set of positions for all heads and many layers. Yang, Zhang, Jain, Cao, Yuan,
 * Chen, Jia, Netravali, "Less Is More: Training-Free Sparse Attention with Global Locality for
 * Efficient Reasoning", 2025 (arXiv 2508.07101), and the authors' code (DerrickYLJ/LessIsMore,
 * src/tidal_build/modify_qwen3_lim.py): layers choose for those behind them as in TidalDecode, but
 * of a budget of K entries, with S sinks and a share r of recent ones,
 *
 *   m      = floor(K (1 - r))
 *   recent = the last K - m - S entries, none where that is below 0
 *   middle = of the rest, each query head's m best by q.k; the first of all heads, the second
 *            of all heads, ..., what is there already left out, until there are m
 *   read   = sinks, middle and recent, in every KV head
 *
 * The authors' README has r = 0.25, which is the default here; their code's default is 0.
 *
 * Departures. K counts entries of earlier tokens, the token's own comes on top (theirs is one of
 * the recent ones). Entries that the rule `recent` keeps count as recent ones here. Where sinks and
 * recent ones leave less than m, the middle is what is left. Prompts are dense (phase=decode). In a
 * chunk each query head's queries are averaged, as QuoKA's comparison did, by their logits or with
 * rank=softmax by their weights.
 */
#include <math.h>

#include "policy/read/relay.h"
#include "policy/read/together.h"

struct params {
    struct relay_form relay; /* first: relay.h */
    double share;            /* r */
    int32_t rank;
};

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct read_soft soft;
    size_t used = 0;
    (void)params;
    read_soft_place(model, n, n_tok, NULL, &used, &soft);
    return used;
}

/* The recent entries that are taken beside the rule's. */
static int32_t recent_at(const struct params *p, const struct read_rules *rules, int32_t n_choose)
{
    int32_t budget = n_choose + rules->sinks + rules->recent;
    int32_t middle = (int32_t)((double)budget * (1.0 - p->share));
    int32_t recent = budget - middle - rules->sinks - rules->recent;
    return (int32_t)pi_min(pi_max(recent, 0), n_choose);
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)n_tok;
    return ((const struct params *)params)->rank == READ_RANK_LOGITS ? model->n_group : 0;
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)n_tok;
    return model->n_group;
}

/* Slots whose entries are recent ones beside the rule's. */
static void recent_slots(const struct params *p, const struct read_view *view,
                         const struct read_chunk *c, int32_t *begin, int32_t *end)
{
    *end = (int32_t)pi_max(c->n - view->rules->recent, 0);
    *begin = (int32_t)pi_max(*end - recent_at(p, view->rules, c->n_choose), 0);
}

/* The device puts recent entries above all others, and the rule's recent ones with them. */
static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct params *p = params;
    int32_t begin, end;
    if (p->rank == READ_RANK_LOGITS)
        read_ask_means(view, c, KV_SCORE_DOT, c->n_group, jobs);
    for (int32_t g = 0; p->rank == READ_RANK_SOFTMAX && g < c->n_group; g++)
        jobs[g] = read_soft_job(view, c, KV_SCORE_DOT, g, 1);
    recent_slots(p, view, c, &begin, &end);
    for (int32_t g = 0; c->q == NULL && g < c->n_group; g++)
        jobs[g].n_sure = c->n - begin;
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    return read_can_pick(model, n_tok, ((const struct params *)params)->rank == READ_RANK_SOFTMAX);
}

/* A row for each query head. Recent entries are above all others in every row, so that they are the
   first that each head names. The middle is the rest of the number to be chosen. */
static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    struct read_soft soft;
    size_t used = 0;
    int32_t begin, end;
    recent_slots(p, view, c, &begin, &end);
    read_soft_place(view->model, c->n, c->n_tok, c->scratch, &used, &soft);
    for (int32_t g = 0; g < c->n_group; g++) {
        float *row = out + (size_t)g * (size_t)c->n;
        if (p->rank == READ_RANK_SOFTMAX)
            read_mean_weights(view, c, KV_SCORE_DOT, g, 1, &soft, row);
        else
            read_clean(row, c->n);
        for (int32_t s = begin; s < end; s++)
            row[s] = INFINITY;
    }
}

static const struct policy_param own_params[] = {
    RELAY_PARAMS,
    {"share", POLICY_TYPE_REAL, offsetof(struct params, share), 0, 1000, "0.25",
     "the part of the budget for recent entries, sinks included", NULL},
    {"rank", POLICY_TYPE_CHOICE, offsetof(struct params, rank), 0, 0, "logits",
     "the queries of a chunk average logits, or their softmax", read_rank_words},
    {0},
};

static const struct policy_preset presets[] = {
    {"code", "share=0", "the default of the authors' code: no recent entries of their own"},
    {"quoka", "phase=both,gate=0,budget=1024,rank=softmax",
     "as QuoKA compares with it: prompts, too"},
    {0},
};

const struct read_policy read_lessismore = {
    .name = "lessismore",
    .summary = "one set for all heads, chosen in a few layers",
    .citation =
        "Yang et al., Less Is More: Training-Free Sparse Attention with Global Locality for "
        "Efficient Reasoning, 2025, arXiv 2508.07101",
    .defaults = "gate=1,phase=decode",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .check = relay_check,
    .role = relay_role,
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .n_vector = n_vector,
    .picks = picks,
    .score = score,
    .unites = true,
};
