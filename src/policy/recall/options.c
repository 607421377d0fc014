/*
 * options.c - the options of recall as memory: the part of the keep budget that guests take. Lanes
 * and guests together hold the budget that was asked for. Pure functions of the options. Invariant:
 * whole budget = keep's + guests', lane by lane, but where share_at has guests on top.
 */
#include "policy/recall/recall.h"

#include <math.h>

#include "pith/policy.h"

/* The keep budget without what guests take of it, in its own unit; 0: nothing is left. */
static int64_t left_of(const struct policy_budget *budget, const struct policy_budget *take,
                       const struct kv_geometry *g)
{
    int64_t n = take->value;
    if (take->unit == POLICY_UNIT_SHARE) {
        double share = (double)take->value * 1e-6;
        n = (int64_t)((double)budget->value * share + 1e-6);
    } else if (budget->unit == POLICY_UNIT_BYTES) {
        n = kv_bytes_for_tokens(g, take->value);
    }
    return pi_max(0, budget->value - n);
}

static const char *unit_of(const struct policy_budget *b)
{
    static const char *const names[] = {
        [POLICY_UNIT_TOKENS] = "entries",
        [POLICY_UNIT_SHARE] = "millionths of the tokens",
        [POLICY_UNIT_BYTES] = "bytes",
    };
    return names[b->unit];
}

/* Guests of the lane that gets most, in a long text. */
static int32_t most_guests(const struct recall_config *c, const struct keep_config *keep,
                           const struct kv_geometry *g)
{
    int32_t most = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            most = (int32_t)pi_max(
                most,
                recall_take_at(c, keep, g, l, h, (struct keep_point){.n_token = KEEP_COUNT_MAX}));
    return most;
}

pith_status recall_config_fit(struct recall_config *c, const struct kv_geometry *g,
                              struct keep_config *keep, pith_error *err)
{
    pith_error inner;
    if (c->kind == RECALL_NONE)
        return PITH_OK;
    if (keep->policy == NULL)
        return pi_fail(err, PITH_INVALID, "recall: there is no keep policy that evicts anything");
    if (c->kind == RECALL_TEXT)
        return PITH_OK;
    struct keep_config left = *keep;
    const struct policy_budget *whole = &keep->rules.budget, *take = &c->kv.take;
    if (whole->unit == POLICY_UNIT_SHARE && take->unit == POLICY_UNIT_TOKENS)
        return pi_fail(err, PITH_INVALID,
                       "recall: take: %lld entries of a keep budget that is a share of the tokens: "
                       "a share of it is needed (25%%)",
                       (long long)take->value);
    left.rules.budget.value = left_of(whole, take, g);
    if (left.rules.budget.value == 0)
        return pi_fail(err, PITH_INVALID,
                       "recall: take: guests leave nothing of the keep budget of %lld %s",
                       (long long)whole->value, unit_of(whole));
    left.n_budget = whole->unit == POLICY_UNIT_TOKENS ? (int32_t)left.rules.budget.value : 0;
    pith_status status = keep_config_fit(&left, g, &inner);
    if (status != PITH_OK)
        return pi_fail(err, status, "recall: take: guests leave %lld of the budget of %lld %s: %s",
                       (long long)left.rules.budget.value, (long long)whole->value, unit_of(whole),
                       inner.message);
    c->whole = *keep;
    if (most_guests(c, &left, g) == 0)
        return pi_fail(err, PITH_INVALID,
                       "recall: take: of the keep budget of %lld %s, %lld are left to keep, and "
                       "the rest holds no %s of a lane",
                       (long long)whole->value, unit_of(whole), (long long)left.rules.budget.value,
                       whole->unit == POLICY_UNIT_BYTES ? "page" : "entry");
    *keep = left;
    return PITH_OK;
}

/* With a budget that is a share of the tokens a lane can keep more than its share, because twice
   the protected entries are more. Its guests then come on top: this is their number. */
static int32_t share_at(const struct policy_budget *whole, const struct policy_budget *left,
                        int32_t kept, int32_t n_token)
{
    int64_t of_kept = n_token * left->value / 1000000, of_all = n_token * whole->value / 1000000;
    return kept > of_kept + 1 ? (int32_t)(of_all - of_kept) : 0;
}

int32_t recall_take_at(const struct recall_config *c, const struct keep_config *keep,
                       const struct kv_geometry *g, int32_t layer, int32_t head,
                       struct keep_point at)
{
    const struct policy_budget *whole = &c->whole.rules.budget;
    if (isinf(at.scale)) /* nothing is evicted that could come back */
        return 0;
    int32_t kept = keep_lane_budget_at(keep, layer, head, at);
    int32_t n = (int32_t)pi_max(keep_lane_budget_at(&c->whole, layer, head, at) - kept, 0);
    if (whole->unit == POLICY_UNIT_SHARE)
        n = (int32_t)pi_max(
            n, share_at(whole, &keep->rules.budget, kept,
                        at.scale > 0.0 ? (int32_t)(at.n_token * at.scale) : at.n_token));
    /* A size is kept to in pages: ceil(a / P) + floor(b / P) <= ceil((a + b) / P). */
    return whole->unit == POLICY_UNIT_BYTES ? n / g->page_len * g->page_len : n;
}

int64_t recall_bytes_at(const struct recall_config *c, const struct keep_config *keep,
                        const struct kv_geometry *g, struct keep_point to)
{
    int64_t bytes = 0;
    to.n_prompt = 0;
    if (c->kind != RECALL_KV)
        return 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t n = recall_take_at(c, keep, g, l, h, to);
            if (to.n_token > keep_lane_budget_at(keep, l, h, to)) /* else nothing is evicted */
                bytes += pi_ceil_div(n, g->page_len) * (int64_t)kv_layer_page_bytes(g, l);
        }
    return bytes;
}

/* ---- the tier ---- */

/* The types of `packed`. In the models that were measured (docs/recall.md) keys of 4 bits find the
   same entries as exact ones. Values may have half of that: an answer is read from several of
   them. */
#define PACKED_KEYS KV_TYPE_TURBO4
#define PACKED_SHARED KV_TYPE_Q4_0 /* of keys that PITH_SHARED_KEYS heads share */
#define PACKED_VALUES KV_TYPE_TURBO2

/* The packed type, or what is stored where that has no more bits or the head does not fit. */
static enum kv_type pack(enum kv_type packed, enum kv_type stored, int32_t dim)
{
    bool fits = kv_type_group(packed, dim) != 0;
    return fits && kv_type_bits(packed, dim) < kv_type_bits(stored, dim) ? packed : stored;
}

static enum kv_type choose_type(int32_t asked, enum kv_type packed, enum kv_type stored,
                                int32_t dim)
{
    return asked == 0               ? stored
           : asked == RECALL_PACKED ? pack(packed, stored, dim)
                                    : (enum kv_type)(asked - 1);
}

/* The length of keys is wanted where cosines are: without it a page takes 4 bytes an entry less. */
static uint32_t index_of(const struct recall_kv_options *o)
{
    return o->score == RECALL_ATTENTION ? 0
           : o->score == RECALL_BOUNDS  ? KV_INDEX_NORM | KV_INDEX_BOUNDS
                                        : KV_INDEX_NORM;
}

struct kv_geometry recall_lane_geometry(const struct recall_kv_options *o,
                                        const struct kv_geometry *g, int32_t layer, int32_t n_group)
{
    enum kv_type k = kv_layer_type_k(g, layer), v = kv_layer_type_v(g, layer);
    struct kv_geometry lane = {
        .n_layer = 1,
        .n_head = 1,
        .dim_k = g->dim_k,
        .dim_v = g->dim_v,
        .v_in_k = g->v_in_k,
        .page_len = RECALL_PAGE_LEN,
        .type_k = choose_type(o->type, n_group < PITH_SHARED_KEYS ? PACKED_KEYS : PACKED_SHARED, k,
                              g->dim_k),
        .type_v = choose_type(o->values > 0 ? o->values : o->type, PACKED_VALUES, v, g->dim_v),
        .index = index_of(o),
        .device = &pi_device_cpu, /* the tier is memory of the host */
    };
    if (g->v_in_k > 0 && o->values == 0) /* values are parts of keys */
        lane.type_v = lane.type_k;
    return lane;
}

int64_t recall_tier_bytes_at(const struct recall_config *c, const struct kv_geometry *g,
                             int32_t n_group, int32_t n_token)
{
    int64_t all = 0;
    if (c->kind != RECALL_KV)
        return 0;
    for (int32_t l = 0; l < g->n_layer; l++) {
        struct kv_geometry lane = recall_lane_geometry(&c->kv, g, l, n_group);
        all += g->n_head * (int64_t)kv_page_bytes(&lane);
    }
    /* A lane's entries may begin and end within a page. */
    return (pi_ceil_div(n_token, RECALL_PAGE_LEN) + 1) * all;
}
