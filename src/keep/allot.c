/*
 * allot.c - the KV heads of a layer share its budget by what their entries score: how many each
 * keeps, and the pages that such lanes can take together. It knows no policy by name and decides
 * nothing about when (budget.c).
 *
 * Feng, Lv, Cao, Xie, Zhou, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
 * Efficient LLM Inference", 2024 (arXiv 2407.11550), section 3.3 and Algorithm 2: of the entries of
 * all H lanes that may go, N stay; c_h of the N highest scores lie in lane h, and it keeps
 *
 *   c_h (1 - floor) + [floor N / H]       [x]: rounded down
 *
 * of its own. The authors round this number for each lane, so that the sum may miss N by a few;
 * here the sum is exact: rounded down first, the rest goes one by one to the lane that is furthest
 * below its number and has entries left. Of equal scores at the border each lane gets its share.
 *
 * Invariant: lanes differ in length, their sum does not. It is at most H times what a lane of the
 * mean budget may hold, and every lane leaves at most one page unfilled, so that the pages of a
 * layer are bounded whatever the scores.
 */
#include "keep/rank.h"
#include "keep/rounds.h"

bool keep_config_allots(const struct keep_config *c)
{
    return c->policy != NULL && c->policy->allot_floor != NULL;
}

pith_status keep_allot_check(const struct keep_config *c, pith_error *err)
{
    const struct keep_rules *r = &c->rules;
    if (!keep_config_allots(c))
        return PITH_OK;
    if (r->granularity != KEEP_LAYER_HEAD)
        return pi_fail(err, PITH_INVALID,
                       "keep: granularity: %s shares a layer's budget among its KV heads by score, "
                       "so that each keeps positions of its own (layer-head)",
                       c->policy->name);
    if (strcmp(r->heads, "even") != 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: heads: %.64s: %s shares a layer's budget among its KV heads by score",
                       r->heads, c->policy->name);
    return PITH_OK;
}

/* ---- how many of which lane ---- */

/* The entries of a set that may go: those of its positions within the span, which lie together. */
static int32_t first_of(const struct keep_set *set)
{
    int32_t i = 0;
    while (i < set->n && set->pos[i] < set->span.lo)
        i++;
    return i;
}

static int32_t count_may_go(const struct keep_set *set)
{
    int32_t n = 0;
    for (int32_t i = 0; i < set->n; i++)
        n += set->pos[i] >= set->span.lo && set->pos[i] < set->span.hi;
    return n;
}

/* The rank of the k-th highest score among those of all sets, 1 <= k <= their number, byte by byte
   from the top; *n_tie receives how many of those that equal it are among the k highest. */
static uint32_t find_border(const struct keep_set *set, int32_t n_set, int64_t k, int64_t *n_tie)
{
    uint32_t found = 0, known = 0;
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        uint32_t byte = 255;
        for (int32_t s = 0; s < n_set; s++)
            for (int32_t i = 0, first = first_of(&set[s]); i < set[s].n_may_go; i++) {
                uint32_t rank = keep_rank_of(set[s].score[first + i]);
                if ((rank & known) == found)
                    count[rank >> shift & 0xff]++;
            }
        while (k > count[byte])
            k -= count[byte--];
        found |= byte << shift;
        known |= 0xffu << shift;
    }
    *n_tie = k;
    return found;
}

/* n_top of every set: how many of the n highest scores are its own; n is at most their number. */
static void count_top(struct keep_set *set, int32_t n_set, int64_t n)
{
    int64_t n_tie, n_equal = 0, given = 0;
    for (int32_t s = 0; s < n_set; s++)
        set[s].n_top = 0;
    if (n == 0)
        return;
    uint32_t border = find_border(set, n_set, n, &n_tie);
    for (int32_t s = 0; s < n_set; s++) {
        int32_t first = first_of(&set[s]);
        set[s].n_equal = 0;
        for (int32_t i = 0; i < set[s].n_may_go; i++) {
            uint32_t rank = keep_rank_of(set[s].score[first + i]);
            set[s].n_top += rank > border;
            set[s].n_equal += rank == border;
        }
        n_equal += set[s].n_equal;
    }
    for (int32_t s = 0; s < n_set; s++) {
        int32_t share = (int32_t)(n_tie * set[s].n_equal / n_equal);
        set[s].n_top += share;
        set[s].n_equal -= share;
        given += share;
    }
    /* Less than one for each set is left of the shares that were rounded down. */
    for (int32_t s = 0; s < n_set && given < n_tie; s++)
        if (set[s].n_equal > 0) {
            set[s].n_top++;
            given++;
        }
}

void keep_allot(const struct keep_config *c, struct keep_set *set, int32_t n_set, int64_t total)
{
    double floor_share = c->policy->allot_floor(&c->params);
    int64_t n_stay = total, n_may_go = 0;
    for (int32_t s = 0; s < n_set; s++) {
        set[s].n_may_go = count_may_go(&set[s]);
        n_stay -= set[s].n - set[s].n_may_go;
        n_may_go += set[s].n_may_go;
    }
    n_stay = pi_max(0, pi_min(n_stay, n_may_go));
    count_top(set, n_set, n_stay);
    double sure = (double)(int64_t)((double)n_stay / n_set * floor_share + 1e-9);
    for (int32_t s = 0; s < n_set; s++) {
        set[s].wish = (double)set[s].n_top * (1.0 - floor_share) + sure;
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

int64_t keep_allot_len(const struct kv_seq *kv, int32_t layer, int32_t n_head)
{
    int64_t sum = 0;
    for (int32_t h = 0; h < n_head; h++)
        sum += kv_lane_len(kv, layer, h);
    return pi_ceil_div(sum, n_head);
}

int64_t keep_allot_pages(const struct kv_geometry *g, int64_t n_entry, int64_t n_apart)
{
    /* sum of a_h + ceil((n_h - a_h) / P) over the lanes, which is largest where each has one entry
       in its last page. */
    int64_t n_unfilled = (int64_t)g->n_head * (g->page_len - 1);
    return n_apart + (pi_max(0, n_entry - n_apart) + n_unfilled) / g->page_len;
}
