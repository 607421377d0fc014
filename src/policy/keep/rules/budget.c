/*
 * budget.c - when a round runs, and how much memory it takes. The policy scores entries, round.c
 * chooses which ones go, and only kv/ changes the cache.
 *
 * Invariant: a lane never holds more than budget + slack entries, and after a round none holds more
 * than its budget. Where rounds wait for a batch, a lane may hold a batch more. The time of a round
 * depends on the number of tokens, the lanes' lengths and whether a victim is chosen (steps.c)
 * alone. It depends neither on chunks, nor on threads or other sequences.
 */
#include "policy/keep/rules/rounds.h"

/* ---- when ---- */

/* The point n tokens behind another. */
static struct keep_point later(struct keep_point at, int64_t n)
{
    at.n_token = (int32_t)pi_min(at.n_token + n, INT32_MAX);
    return at;
}

/* Entries at which a lane is due n tokens later. */
static int64_t due_at(const struct keep *k, int32_t layer, int32_t head, struct keep_point at,
                      int64_t n)
{
    const struct keep_rules *r = &k->config.rules;
    at = later(at, n);
    return (int64_t)keep_lane_budget_at(&k->config, layer, head, at) + r->slack + (r->batch > 0);
}

/* The smallest n below most with len + n >= due_at(n_token + n), or most. A budget grows by at most
   one per token, so that what is short of a round only falls. len is that of the entries which
   stay: the first of n takes the place of one that does not. */
static int64_t lane_room(const struct keep *k, int32_t layer, int32_t head, int64_t len,
                         struct keep_point at, int64_t most)
{
    int64_t low = 0, high = most;
    while (low < high) {
        int64_t n = low + (high - low) / 2;
        if (len + n >= due_at(k, layer, head, at, n))
            high = n;
        else
            low = n + 1;
    }
    return low;
}

/* Entries of a lane that stay, as far as its budget is concerned: where lanes share one, their
   mean. */
static int64_t staying(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t head,
                       struct keep_point at)
{
    return keep_config_allots(&k->config) ? keep_allot_len(k, kv, layer, at)
                                          : keep_staying(kv, layer, head);
}

static int64_t most_staying(const struct keep *k, const struct kv_seq *kv, struct keep_point at)
{
    int64_t most = 0;
    if (!keep_config_allots(&k->config))
        return kv_seq_most_staying(kv, keep_asked_layers(k), keep_asked_heads(k));
    for (int32_t l = 0; l < keep_asked_layers(k); l++)
        for (int32_t h = 0; h < keep_asked_heads(k); h++)
            most = pi_max(most, keep_allot_len(k, kv, l, at));
    return most;
}

static int32_t longest_lane(const struct keep *k, const struct kv_seq *kv)
{
    int64_t longest = 0;
    for (int32_t l = 0; l < k->model.g.n_layer; l++)
        for (int32_t h = 0; h < k->model.g.n_head; h++)
            longest = pi_max(longest, kv_lane_len(kv, l, h));
    return (int32_t)longest;
}

static int64_t room(const struct keep *k, const struct kv_seq *kv, struct keep_point at,
                    int64_t most)
{
    int64_t left = most, batch = k->config.rules.batch;
    if (!k->config.split) {
        left = lane_room(k, 0, 0, most_staying(k, kv, at), at, most);
    } else {
        for (int32_t l = 0; l < k->model.g.n_layer; l++)
            for (int32_t h = 0; h < k->model.g.n_head; h++) {
                int64_t len = staying(k, kv, l, h, at);
                if (left > 0 && len + left - 1 >= due_at(k, l, h, at, left - 1))
                    left = lane_room(k, l, h, len, at, left);
            }
    }
    if (batch > 0 && left < most)
        left = pi_min(pi_ceil_div(at.n_token + left, batch) * batch - at.n_token, most);
    return left;
}

/* Whether some lane holds the budget of the token behind the next n, if these come without a round.
   Then that token has no place in it. */
static bool is_full(const struct keep *k, const struct kv_seq *kv, struct keep_point at, int32_t n)
{
    struct keep_point end = later(at, (int64_t)n + 1);
    const struct kv_geometry *g = &k->model.g;
    if (!k->config.split)
        return (int64_t)kv_seq_most_staying(kv, g->n_layer, g->n_head) + n >=
               keep_lane_budget_at(&k->config, 0, 0, end);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            if ((int64_t)keep_staying(kv, l, h) + n >= keep_lane_budget_at(&k->config, l, h, end))
                return true;
    return false;
}

int32_t keep_room(const struct keep *k, const struct kv_seq *kv, struct keep_point at, int32_t most)
{
    return (int32_t)room(k, kv, at, most);
}

bool keep_due(const struct keep *k, const struct kv_seq *kv, struct keep_point at, int32_t n_left)
{
    /* A round that waits for a batch runs before its first token. At the end of an evaluation it is
       not known whether there will be one. */
    if (k->config.rules.batch > 0 && n_left == 0)
        return false;
    if (keep_overwrites(k) && n_left == 0 && is_full(k, kv, at, 0))
        return true;
    return room(k, kv, at, 1) == 0;
}

/* A lane with a chosen victim has its budget also where that was lowered since (a prompt that is
   pinned no longer). */
bool keep_step_due(const struct keep *k, const struct kv_seq *kv, struct keep_point at)
{
    return keep_overwrites(k) && is_full(k, kv, at, 0);
}

/* Whether some lane holds more than its budget once the next n tokens came without a round. */
static bool ends_over(const struct keep *k, const struct kv_seq *kv, struct keep_point at,
                      int32_t n)
{
    struct keep_point end = later(at, n);
    for (int32_t l = 0; l < keep_asked_layers(k); l++)
        for (int32_t h = 0; h < keep_asked_heads(k); h++)
            if (staying(k, kv, l, h, at) + n > keep_lane_budget_at(&k->config, l, h, end))
                return true;
    return false;
}

static bool round_within(const struct keep *k, const struct kv_seq *kv, struct keep_point at,
                         int32_t n)
{
    if (keep_overwrites(k) && n == 1)
        return keep_step_due(k, kv, at);
    if (keep_overwrites(k) && is_full(k, kv, at, n))
        return true;
    if (keep_waits(k, n))
        return ends_over(k, kv, at, n);
    return room(k, kv, at, (int64_t)n + 1) <= n;
}

/* ---- memory ---- */

/* Entries of a lane that holds len at which rounds stop it while n tokens follow. */
static int64_t most_at(const struct keep *k, int32_t layer, int32_t head, struct keep_point at,
                       int32_t n, int64_t len)
{
    int64_t most = due_at(k, layer, head, at, n);
    int64_t batch = k->config.rules.batch;
    if (keep_waits(k, n))
        return len + n;
    if (batch == 0)
        return most;
    /* Just not due at a multiple, or anything until the first. */
    int64_t first = pi_ceil_div(at.n_token, batch) * batch - at.n_token;
    return pi_max(most - 1 + batch, len + first);
}

/* The most entries that a lane reaches while n tokens follow; mean: of lanes that share a budget,
   theirs. */
static int64_t most_of_lane(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                            int32_t head, struct keep_point at, int32_t n, int64_t mean)
{
    int64_t len = kv_lane_len(kv, layer, head), stays = keep_staying(kv, layer, head);
    bool allots = keep_config_allots(&k->config);
    if (keep_overwrites(k) && n == 1)
        return pi_max(len, pi_min(stays + 1, due_at(k, layer, head, at, 1)));
    int64_t most = most_at(k, layer, head, at, n, allots ? mean : len);
    /* Of lanes that share a budget one may come to have it all. */
    if (allots)
        most *= keep_allot_lanes(k);
    return pi_max(len, pi_min(stays + n, most));
}

/* The most entries of a lane, and how many more than now, while n tokens follow. */
static int64_t most_of_lanes(const struct keep *k, const struct kv_seq *kv, struct keep_point at,
                             int32_t n, int64_t *grows)
{
    int64_t longest = 0, mean = 0;
    *grows = 0;
    for (int32_t l = 0; l < k->model.g.n_layer; l++) {
        if (keep_config_allots(&k->config) && l < keep_asked_layers(k))
            mean = keep_allot_len(k, kv, l, at);
        for (int32_t h = 0; h < k->model.g.n_head; h++) {
            int64_t most = most_of_lane(k, kv, l, h, at, n, mean);
            longest = pi_max(longest, most);
            *grows = pi_max(*grows, most - kv_lane_len(kv, l, h));
        }
    }
    return longest;
}

int64_t keep_longest(const struct keep *k, const struct kv_seq *kv, struct keep_point at, int32_t n)
{
    int64_t grows;
    return most_of_lanes(k, kv, at, n, &grows);
}

/* The most entries that this rank's lanes which share a budget with a layer's come to hold
   together. Entries only come as tokens do. */
static int64_t most_together(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                             struct keep_point at, int32_t n)
{
    int64_t n_lane = keep_allot_lanes(k), sum = keep_allot_sum(k, kv, layer, at);
    int64_t own = keep_allot_own(k, kv, layer), len = pi_ceil_div(sum, n_lane);
    int64_t most = pi_max(sum, n_lane * pi_min(len + n, most_at(k, layer, 0, at, n, len)));
    return k->config.n_elsewhere > 0 ? pi_min(most, own + (n_lane - k->config.n_elsewhere) * n)
                                     : most;
}

bool keep_lanes_agree(const struct keep *k, const struct kv_seq *kv)
{
    int32_t n_layer = keep_stage_layers(k), n_head = k->model.g.n_head;
    if (k->config.rules.granularity == KEEP_LAYER_HEAD || keep_config_is_global(&k->config))
        return true;
    for (int32_t l = 0; l < k->model.g.n_layer; l++)
        for (int32_t h = 0; h < n_head; h++) {
            int32_t from_l = l / n_layer * n_layer, from_h = keep_n_set(k) == 1 ? 0 : h;
            if ((l != from_l || h != from_h) && !kv_lane_agrees(kv, l, h, from_l, from_h))
                return false;
        }
    return true;
}

pith_status keep_check_prompt(const struct keep *k, struct keep_point at, pith_error *err)
{
    if (k == NULL || k->config.n_budget == 0 || !k->config.rules.pin_prompt)
        return PITH_OK;
    const struct kv_geometry *g = &k->model.g;
    int32_t n_pinned = keep_pinned_prompt(&k->config.rules, at.n_prompt, at.scale);
    at.n_token = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t n = keep_lane_budget_at(&k->config, l, h, at);
            PI_TRY(keep_rules_check(&k->config.rules, n, n_pinned, err));
            if (!k->config.split)
                return PITH_OK;
        }
    return PITH_OK;
}

/* Scratch for rounds over lanes of at most `most` entries while n tokens follow. */
static pith_status prepare_scratch(struct keep *k, const struct kv_seq *kv, struct keep_point at,
                                   int32_t n, int64_t most, pith_error *err)
{
    if (most > INT32_MAX)
        return pi_fail(err, PITH_CONTEXT, "%lld entries are more than a lane can hold",
                       (long long)most);
    /* Room for more than asked, where the budget is a share and rises with the text. */
    bool rises = k->config.n_budget == 0;
    int64_t cap = rises ? pi_min(most + most / 2, INT32_MAX) : most;
    int64_t cap_set = keep_lanes_agree(k, kv) ? cap : (int64_t)at.n_token + n;
    int64_t all = keep_config_is_global(&k->config) ? most_together(k, kv, 0, at, n) : 0;
    if (!keep_grow_scratch(k, (int32_t)cap, (int32_t)pi_max(cap, cap_set),
                           rises ? all + all / 2 : all))
        return pi_fail(err, PITH_NOMEM, "no memory for a keep round over %lld entries",
                       (long long)pi_max(cap, cap_set));
    return PITH_OK;
}

/* A page that the lane's first entries take for themselves when a round closes the gap behind them.
   That happens at the first round, and where other entries are the first since a prompt was
   marked. */
static int32_t to_split(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t head,
                        struct keep_point at)
{
    const struct keep_rules *r = &k->config.rules;
    int64_t lo = pi_max(r->prefix, keep_pinned_prompt(r, at.n_prompt, at.scale));
    int32_t n_shifted = keep_count_shifted(kv, layer, head), len = kv_lane_len(kv, layer, head);
    if (!keep_config_places(&k->config))
        return 0;
    if (n_shifted == 0)
        return lo > 0 || r->sinks > 0;
    int32_t low = (int32_t)pi_min(r->sinks, len), high = len;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (keep_position(k, kv, layer, head, mid) < lo)
            low = mid + 1;
        else
            high = mid;
    }
    return low != n_shifted;
}

/* Page tables for n more entries in every lane, of n_all together, and for a split. */
static pith_status reserve_table(const struct keep *k, struct kv_seq *kv, int64_t n, int64_t n_all,
                                 pith_error *err)
{
    n += keep_config_places(&k->config) ? k->model.g.page_len : 0;
    return kv_seq_reserve_tables(kv, (int32_t)pi_min(n, INT32_MAX), n_all, err);
}

/* Once: that a prompt is too long to be pinned. */
static void tell_unpinned(struct keep *k, struct keep_point at)
{
    const struct keep_rules *r = &k->config.rules;
    int32_t most = keep_pin_most(r, at.scale);
    if (k->told || !r->pin_prompt || at.n_prompt <= most)
        return;
    k->told = true;
    pi_log(
        PITH_LOG_WARN,
        "keep: the prompt of %d tokens is not pinned: with a budget of %d entries at most %d are",
        at.n_prompt, keep_own_budget(&k->config, at), most);
}

pith_status keep_prepare(struct keep *k, struct kv_seq *kv, struct keep_point at, int32_t n,
                         pith_error *err)
{
    int64_t grows;
    PI_TRY(keep_check_prompt(k, at, err));
    tell_unpinned(k, at);
    if (!round_within(k, kv, at, n))
        return PITH_OK;
    int64_t most = most_of_lanes(k, kv, at, n, &grows);
    PI_TRY(prepare_scratch(k, kv, at, n, most, err));
    bool global = keep_config_is_global(&k->config);
    return reserve_table(k, kv, grows, global ? most_together(k, kv, 0, at, n) : INT64_MAX, err);
}

bool keep_over_budget(const struct keep *k, const struct kv_seq *kv, struct keep_point at)
{
    if (keep_step_due(k, kv, at))
        return true;
    for (int32_t l = 0; l < keep_asked_layers(k); l++)
        for (int32_t h = 0; h < keep_asked_heads(k); h++) {
            bool allots = keep_config_allots(&k->config);
            int64_t len = allots ? keep_allot_len(k, kv, l, at) : kv_lane_len(kv, l, h);
            if (len > keep_lane_budget_at(&k->config, l, h, at))
                return true;
        }
    return false;
}

pith_status keep_prepare_round(struct keep *k, struct kv_seq *kv, struct keep_point at,
                               pith_error *err)
{
    PI_TRY(keep_check_prompt(k, at, err));
    PI_TRY(prepare_scratch(k, kv, at, 0, longest_lane(k, kv), err));
    PI_TRY(reserve_table(k, kv, 0, INT64_MAX, err));
    kv_seq_trim(kv);
    struct kv_need lacks = kv_seq_charge_copies(kv);
    kv_seq_clear_charges(kv);
    for (int32_t l = 0; l < k->model.g.n_layer; l++) {
        int64_t page = (int64_t)kv_layer_page_bytes(&k->model.g, l);
        for (int32_t h = 0; h < k->model.g.n_head; h++)
            kv_need_add(&lacks, kv_layer_part(&k->model.g, l), page * to_split(k, kv, l, h, at));
    }
    if (!kv_seq_fits(kv, &lacks))
        return pi_fail(err, PITH_KV_FULL,
                       "a keep round can take %lld more bytes of pages, and %lld are free",
                       (long long)lacks.all, (long long)kv_seq_free_bytes(kv));
    return PITH_OK;
}

/* Bytes of pages that lanes which share a budget with a layer's lack. They are the pages until the
   next round, or at most after it, whatever it leaves to which of them. */
static int64_t allotted_lacks(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                              struct keep_point at, int32_t n)
{
    const struct kv_geometry *g = &k->model.g;
    int32_t n_layer = keep_stage_layers(k);
    int32_t until = keep_waits(k, n) ? n : (int32_t)room(k, kv, at, n);
    int64_t apart = 0, held = 0, grows = 0, largest = 0, full = 0;
    for (int32_t l = layer; l < layer + n_layer; l++) {
        int64_t page = (int64_t)kv_layer_page_bytes(g, l);
        largest = pi_max(largest, page);
        full += page * g->n_head * pi_ceil_div((int64_t)at.n_token + n, g->page_len);
        for (int32_t h = 0; h < g->n_head; h++) {
            apart += kv_lane_breaks(kv, l, h);
            held += page * kv_lane_pages(kv, l, h);
            grows += page * kv_lane_lacks(kv, l, h, until);
        }
    }
    int64_t most = most_together(k, kv, layer, at, n);
    int64_t bytes = largest * keep_allot_pages(g, n_layer * g->n_head, most, apart);
    if (apart == 0) /* no lane holds more than the full cache's */
        bytes = pi_min(bytes, full);
    return pi_max(grows, bytes - held);
}

/* Pages that a lane with a budget of its own lacks. */
static int64_t lane_lacks(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                          int32_t head, struct keep_point at, int32_t n)
{
    int64_t most = most_of_lane(k, kv, layer, head, at, n, 0);
    /* Each place that packing cannot close leaves a page with one entry at worst. */
    int64_t apart = kv_lane_breaks(kv, layer, head) + to_split(k, kv, layer, head, at);
    int64_t n_page = apart + pi_ceil_div(pi_max(0, most - apart), k->model.g.page_len);
    return pi_max(kv_lane_lacks(kv, layer, head, (int32_t)(most - kv_lane_len(kv, layer, head))),
                  n_page - kv_lane_pages(kv, layer, head));
}

/* The same of lanes that share a budget with a layer's. Each device among them may have to take
   all. */
static void add_allotted(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                         struct keep_point at, int32_t n, struct kv_need *need)
{
    const struct kv_geometry *g = &k->model.g;
    int64_t bytes = allotted_lacks(k, kv, layer, at, n);
    int32_t first = kv_layer_part(g, layer);
    int32_t last = kv_layer_part(g, layer + keep_stage_layers(k) - 1);
    need->all += bytes;
    for (int32_t i = first; i <= last; i++)
        need->part[i] += bytes;
}

struct kv_need keep_lacks(const struct keep *k, struct kv_seq *kv, struct keep_point at, int32_t n)
{
    const struct kv_geometry *g = &k->model.g;
    struct kv_need need = {0};
    bool allots = keep_config_allots(&k->config);
    if (!round_within(k, kv, at, n))
        return need;
    for (int32_t l = 0; allots && l < keep_asked_layers(k); l++)
        add_allotted(k, kv, l, at, n, &need);
    for (int32_t l = 0; !allots && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            kv_need_add(&need, kv_layer_part(g, l),
                        lane_lacks(k, kv, l, h, at, n) * (int64_t)kv_layer_page_bytes(g, l));
    struct kv_need copies = kv_seq_charge_copies(kv);
    kv_need_join(&need, &copies);
    return need;
}
