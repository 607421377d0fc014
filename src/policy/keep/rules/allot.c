/*
 * allot.c - lanes share a budget by the scores of their entries, within a layer (policies with
 * allot_floor) or over all lanes (granularity=global). It finds how many entries each keeps, and
 * the pages that such lanes can take together. It knows no policy by name and decides nothing about
 * when (budget.c).
 *
 * Feng, Lv, Cao, Xie, Zhou, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
 * Efficient LLM Inference", 2024 (arXiv 2407.11550), section 3.3 and Algorithm 2: of the entries of
 * all H lanes that may go, N stay; c_h of the N highest scores lie in lane h, and it keeps
 *
 *   c_h (1 - floor) + [floor N / H]       [x]: rounded down
 *
 * of its own. The authors round this number for each lane, so that the sum may miss N by a few.
 * Here the sum is exact: numbers are rounded down first. The rest goes one by one to the lane that
 * is furthest below its number and has entries left. Of equal scores at the border each lane gets
 * its share. Where all lanes share, floor is 0 unless the policy has one. Of equal scores the older
 * goes first, then the one of the lower layer and head.
 *
 * Invariant: lanes differ in length, their sum does not. It is at most H times the most entries of
 * a lane of the mean budget, and every lane leaves at most one page unfilled. So the pages are
 * bounded whatever the scores.
 */
#include "policy/positions.h"
#include "policy/keep/rules/rounds.h"
#include "policy/keep/stats/stats.h"

bool keep_config_is_global(const struct keep_config *c)
{
    return c->policy != NULL && c->rules.granularity == KEEP_GLOBAL;
}

bool keep_config_allots(const struct keep_config *c)
{
    return keep_config_is_global(c) || (c->policy != NULL && c->policy->allot_floor != NULL);
}

/* Scores of one lane say nothing about another lane's, unless the policy says that they do or a map
   makes them comparable. Which maps a file has is known when it is read (keep_create). */
static pith_status check_global(const struct keep_config *c, pith_error *err)
{
    const struct keep_policy *p = c->policy;
    if (keep_config_places(c))
        return pi_fail(err, PITH_INVALID,
                       "keep: granularity: global: %s reads entries elsewhere than they were "
                       "written, which is for lanes of a budget of their own",
                       p->name);
    if (c->rules.stats[0] == '\0' && (p->comparable == NULL || !p->comparable(&c->params)))
        return pi_fail(
            err, PITH_INVALID,
            "keep: granularity: global: scores of %s in one lane say nothing about those "
            "in another: `pith calibrate importance --keep %s` writes a map of them, "
            "and stats=FILE reads it",
            p->name, p->name);
    return PITH_OK;
}

pith_status keep_allot_check(const struct keep_config *c, pith_error *err)
{
    const struct keep_rules *r = &c->rules;
    if (!keep_config_allots(c))
        return PITH_OK;
    if (keep_config_is_global(c))
        return check_global(c, err);
    if (r->granularity != KEEP_LAYER_HEAD)
        return pi_fail(err, PITH_INVALID,
                       "keep: granularity: %s shares a layer's budget among its KV heads by score, "
                       "so that each keeps positions of its own (layer-head)",
                       c->policy->name);
    if (strcmp(r->heads, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: heads: %.64s: %s shares a layer's budget among its KV heads by score",
                       r->heads, c->policy->name);
    if (strcmp(r->split, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: split: %.64s: %s shares a layer's budget among its KV heads by score",
                       r->split, c->policy->name);
    return PITH_OK;
}

/* ---- how many of which lane ---- */

void keep_find_span(struct keep_set *set)
{
    set->first = policy_first_from(set->pos, set->n, set->span.lo);
    int32_t last = policy_first_from(set->pos, set->n, set->span.hi);
    set->n_may_go = (int32_t)pi_max(0, last - set->first);
}

void keep_allot(struct pi_stream *stream, const struct keep_config *c, struct keep_set *set,
                struct kv_choose_lane *lanes, int32_t n_set, int64_t total)
{
    const struct keep_policy *p = c->policy;
    double floor_share = p->allot_floor != NULL ? p->allot_floor(&c->params) : 0.0;
    int64_t n_stay = total, n_may_go = 0;
    for (int32_t s = 0; s < n_set; s++) {
        keep_find_span(&set[s]);
        n_stay -= set[s].n - set[s].n_may_go;
        n_may_go += set[s].n_may_go;
        lanes[s] = (struct kv_choose_lane){.score = set[s].score + set[s].first,
                                           .at = keep_scores_at(&set[s], set[s].first),
                                           .pos = set[s].pos + set[s].first,
                                           .n = set[s].n_may_go};
    }
    n_stay = pi_max(0, pi_min(n_stay, n_may_go));
    const struct kv_choose_all top = {lanes, n_set, n_stay, keep_config_is_global(c)};
    stream->device->choose_all(stream, &top);
    double sure = (double)(int64_t)((double)n_stay / n_set * floor_share + 1e-9);
    for (int32_t s = 0; s < n_set; s++) {
        set[s].wish = (double)lanes[s].n_top * (1.0 - floor_share) + sure;
        set[s].budget = (int32_t)pi_min((int64_t)(set[s].wish + 1e-9), set[s].n_may_go);
        n_stay -= set[s].budget;
    }
    while (n_stay > 0) {
        struct keep_set *best = NULL;
        for (int32_t s = 0; s < n_set; s++)
            if (set[s].budget < set[s].n_may_go &&
                (best == NULL || set[s].wish - set[s].budget > best->wish - best->budget))
                best = &set[s];
        best->budget++;
        n_stay--;
    }
    assert(n_stay == 0);
    for (int32_t s = 0; s < n_set; s++)
        set[s].budget += set[s].n - set[s].n_may_go;
}

/* ---- their memory ---- */

int64_t keep_allot_lanes(const struct keep *k)
{
    return (int64_t)keep_stage_layers(k) * k->model.g.n_head + k->config.n_elsewhere;
}

int64_t keep_allot_own(const struct keep *k, const struct kv_seq *kv, int32_t layer)
{
    bool global = keep_config_is_global(&k->config);
    int32_t begin = global ? 0 : layer, end = global ? k->model.g.n_layer : layer + 1;
    int64_t sum = 0;
    for (int32_t l = begin; l < end; l++)
        for (int32_t h = 0; h < k->model.g.n_head; h++)
            sum += kv_lane_len(kv, l, h);
    return sum;
}

int64_t keep_allot_sum(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                       struct keep_point at)
{
    return keep_allot_own(k, kv, layer) + at.elsewhere;
}

int64_t keep_allot_len(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                       struct keep_point at)
{
    return pi_ceil_div(keep_allot_sum(k, kv, layer, at), keep_allot_lanes(k));
}

int64_t keep_allot_pages(const struct kv_geometry *g, int32_t n_lane, int64_t n_entry,
                         int64_t n_apart)
{
    /* sum of a_h + ceil((n_h - a_h) / P) over the lanes, which is largest where each has one entry
       in its last page. */
    int64_t n_unfilled = (int64_t)n_lane * (g->page_len - 1);
    return n_apart + (pi_max(0, n_entry - n_apart) + n_unfilled) / g->page_len;
}
