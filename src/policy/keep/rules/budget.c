/*
 * budget.c - when a round runs, and the memory that it takes. The policy scores entries, round.c
 * chooses which ones go, and only kv/ changes the cache.
 *
 * Invariant: a lane never holds more than budget + slack entries, and after a round none holds more
 * than its budget. Where rounds wait for a batch, a lane may hold a batch more. The time of a round
 * depends on the number of tokens, the lanes' lengths and whether a victim is chosen (steps.c)
 * alone. It depends neither on chunks, nor on threads or other sequences.
 */
#include "base/mem.h"
#include "policy/keep/rules/rounds.h"
#include "policy/keep/stats/stats.h"

/* ---- a policy and its memory ---- */

/* The statistics that the rules name, and of them what makes scores of lanes comparable. */
static pith_status load_stats(struct keep *k, pith_error *err)
{
    const struct keep_config *c = &k->config;
    k->model.stats = NULL;
    if (c->rules.stats[0] == '\0')
        return PITH_OK;
    PI_TRY(pith_stats_load(c->rules.stats, &k->stats, err));
    PI_TRY(stats_check_lanes(k->stats, &k->model, "", err));
    k->model.stats = k->stats;
    bool comparable = c->policy->comparable != NULL && c->policy->comparable(&c->params);
    if (!keep_config_is_global(c) || comparable)
        return PITH_OK;
    k->map = stats_find_map(k->stats, c->policy->name);
    if (k->map == NULL)
        return pi_fail(err, PITH_INVALID,
                       "keep: granularity: global: the statistics in %.128s have no map of the "
                       "scores of %s: `pith calibrate importance --keep %s` writes one",
                       c->rules.stats, c->policy->name, c->policy->name);
    return PITH_OK;
}

static pith_status make_parts(struct keep *k, pith_error *err)
{
    const struct keep_policy *p = k->config.policy;
    size_t n_head = (size_t)k->model.g.n_head;
    k->n_together = 1;
    k->set = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)keep_n_set(k) * (size_t)k->model.g.n_layer,
                            sizeof(*k->set));
    k->part = pi_mem_alloc_n(PI_MEM_OTHER, n_head, sizeof(*k->part));
    k->cut = pi_mem_alloc_n(PI_MEM_OTHER, n_head * (size_t)k->model.g.n_layer, sizeof(*k->cut));
    k->agrees = pi_mem_alloc_n(PI_MEM_OTHER, n_head * (size_t)k->model.g.n_layer, sizeof(bool));
    if (k->set == NULL || k->part == NULL || k->cut == NULL || k->agrees == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
    struct pi_device *d = kv_geometry_device(&k->model.g);
    k->stream = d->open(d, &(struct pi_stream_shape){.n_thread = k->n_thread});
    if (k->stream == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
    PI_TRY(load_stats(k, err));
    if (p->open != NULL)
        PI_TRY(p->open(&k->config.params, &k->model, &k->data, err));
    if (p->state_size != NULL)
        k->state_size = p->state_size(&k->config.params, &k->model, k->data);
    return PITH_OK;
}

pith_status keep_create(const struct keep_config *config, const struct policy_model *model,
                        int32_t n_thread, struct keep **out, pith_error *err)
{
    *out = NULL;
    if (config->policy == NULL)
        return PITH_OK;
    struct keep *k = pi_mem_alloc(PI_MEM_OTHER, sizeof(*k));
    if (k == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
    k->config = *config;
    k->model = *model;
    if (config->policy->needs != NULL)
        k->own_needs = config->policy->needs(&config->params);
    k->n_thread = n_thread;
    k->n_scorer = config->policy->alone ? 1 : (int32_t)pi_min(n_thread, model->g.n_head);
    pith_status status = make_parts(k, err);
    if (status != PITH_OK) {
        keep_free(k);
        return status;
    }
    *out = k;
    return PITH_OK;
}

bool keep_may_stop(const struct keep *k)
{
    return k != NULL && k->config.policy->may_stop != NULL &&
           k->config.policy->may_stop(&k->config.params);
}

bool keep_stopped(const struct keep *k)
{
    return k != NULL && k->config.policy->stopped != NULL && k->config.policy->stopped(k->data);
}

bool keep_is_alone(const struct keep *k)
{
    return k->config.policy->alone;
}

void keep_free(struct keep *k)
{
    if (k == NULL)
        return;
    if (k->data != NULL && k->config.policy->close != NULL)
        k->config.policy->close(k->data);
    pith_stats_free(k->stats);
    pi_mem_free(k->set);
    pi_mem_free(k->part);
    pi_mem_free(k->cut);
    pi_mem_free(k->agrees);
    pi_mem_free(k->block);
    pi_mem_free(k->steps.block);
    if (k->stream != NULL) {
        k->stream->device->free(k->stream->device, k->steps.there);
        k->stream->device->close(k->stream);
    }
    pi_mem_free(k);
}

const struct keep_config *keep_get_config(const struct keep *k)
{
    return &k->config;
}
size_t keep_state_size(const struct keep *k)
{
    return k->state_size;
}

size_t keep_scratch_bytes(const struct keep *k)
{
    return pi_mem_size(k->block) + pi_mem_size(k->steps.block);
}

uint32_t keep_config_needs(const struct keep_config *c)
{
    const struct keep_policy *p = c->policy;
    uint32_t own = p != NULL && p->needs != NULL ? p->needs(&c->params) : 0;
    return c->rules.overwrite ? own | KEEP_NEED_STEP_WEIGHTS : own;
}

int32_t keep_config_marks(const struct keep_config *c)
{
    const struct keep_policy *p = c->policy;
    return p != NULL && p->n_mark != NULL ? p->n_mark(&c->params) : 0;
}

uint32_t keep_needs(const struct keep *k)
{
    return keep_config_needs(&k->config);
}

int32_t keep_n_mark(const struct keep *k)
{
    return keep_config_marks(&k->config);
}

bool keep_overwrites(const struct keep *k)
{
    return k->config.rules.overwrite != 0;
}

bool keep_waits(const struct keep *k, int32_t n_token)
{
    return k->config.rules.rounds == KEEP_PROMPT_END && n_token > 1;
}

/* The sizes that scratch is made for. */
struct room {
    int32_t cap;     /* entries of a lane */
    int32_t cap_set; /* positions of a set */
    int64_t cap_all; /* of all sets, where they lie one behind the other; else 0 */
    size_t scratch_size;
};

static void place_set(struct keep_set *set, size_t n, uint8_t *base, size_t *used)
{
    set->pos = pi_mem_part(base, used, n, sizeof(*set->pos));
    set->score = pi_mem_part(base, used, n, sizeof(*set->score));
    set->slots = (int32_t *)(void *)set->score;
    set->n_of = pi_mem_part(base, used, n, sizeof(*set->n_of));
}

/* Whether the device scores for the policy. */
static bool keep_weighs(const struct keep *k)
{
    return k->config.policy->weigh != NULL && k->stream != NULL && k->stream->device->weigh != NULL;
}

/* Entries of the sets that a round has at a time, about. */
#define ROUND_ENTRIES (4 << 20)

/* The host waits for the device once for all stages that a round takes together. */
static int32_t count_together(const struct keep *k, int32_t cap_set)
{
    int64_t most = ROUND_ENTRIES / pi_max((int64_t)cap_set * keep_n_set(k), 1);
    if (!keep_weighs(k) || keep_config_allots(&k->config) || keep_stage_layers(k) > 1)
        return 1;
    return (int32_t)pi_max(1, pi_min(most, k->model.g.n_layer));
}

/* Places the arrays into base (NULL: counts alone) and returns the bytes they take. Sets of lanes
   that share a budget are packed in turn at every round: one may be as long as all. */
static size_t lay_out(struct keep *k, const struct room *room, uint8_t *base)
{
    size_t used = 0, n = (size_t)room->cap, n_set = (size_t)room->cap_set;
    k->n_together = count_together(k, room->cap_set);
    for (int32_t h = 0; h < k->model.g.n_head; h++) {
        struct keep_part *part = &k->part[h];
        part->pos = pi_mem_part(base, &used, n, sizeof(*part->pos));
        part->score = pi_mem_part(base, &used, n, sizeof(*part->score));
        part->evictable = pi_mem_part(base, &used, n, sizeof(*part->evictable));
    }
    place_set(&k->all, (size_t)room->cap_all, base, &used);
    for (int32_t s = 0; !keep_config_is_global(&k->config) && s < keep_round_sets(k); s++)
        place_set(&k->set[s], n_set, base, &used);
    k->merged = pi_mem_part(base, &used, n_set, sizeof(*k->merged));
    k->kept = pi_mem_part(base, &used, n_set, sizeof(*k->kept));
    k->job = pi_mem_part(base, &used, (size_t)keep_round_sets(k), sizeof(*k->job));
    k->lane = pi_mem_part(base, &used, (size_t)keep_n_set(k), sizeof(*k->lane));
    if (keep_weighs(k)) {
        size_t n_head = (size_t)k->model.g.n_head;
        const struct keep_policy *p = k->config.policy;
        k->weigh_size = p->weigh_size != NULL
                            ? pi_align(p->weigh_size(&k->config.params, &k->model, k->data), 64)
                            : 0;
        k->weigh = pi_mem_part(base, &used, n_head, sizeof(*k->weigh));
        k->weighed = pi_mem_part(base, &used, (size_t)keep_round_sets(k), sizeof(*k->weighed));
        k->weigh_room = pi_mem_part(base, &used, n_head, k->weigh_size);
    }
    k->choose_size = pi_align(kv_choose_scratch_bytes(room->cap_set), 64);
    k->choose = pi_mem_part(base, &used, (size_t)k->n_thread, k->choose_size);
    k->scratch = pi_mem_part(base, &used, (size_t)k->n_scorer, room->scratch_size);
    return used;
}

/* A larger block in place of the old; its contents need not last from round to round. */
static bool grow_scratch(struct keep *k, int32_t cap, int32_t cap_set, int64_t cap_all)
{
    const struct keep_policy *p = k->config.policy;
    if (cap <= k->cap && cap_set <= k->cap_set && cap_all <= k->cap_all)
        return true;
    cap = (int32_t)pi_max(cap, k->cap);
    struct room old = {k->cap, k->cap_set, k->cap_all, k->scratch_size};
    struct room grown = {.cap = cap,
                         .cap_set = (int32_t)pi_max(pi_max(cap_set, cap), k->cap_set),
                         .cap_all = pi_max(cap_all, k->cap_all)};
    if (p->scratch_size != NULL)
        grown.scratch_size =
            pi_align(p->scratch_size(&k->config.params, &k->model, k->data, cap), 64);
    uint8_t *block = pi_mem_alloc(PI_MEM_SCRATCH, lay_out(k, &grown, NULL));
    if (block == NULL) {
        /* The old arrays, where there were any, at their old places. */
        lay_out(k, &old, k->block);
        return false;
    }
    pi_mem_free(k->block);
    k->block = block;
    k->cap = grown.cap;
    k->cap_set = grown.cap_set;
    k->cap_all = grown.cap_all;
    k->scratch_size = grown.scratch_size;
    lay_out(k, &grown, block);
    return true;
}

size_t keep_scratch_at(struct keep *k, int32_t n_token)
{
    const struct keep_config *c = &k->config;
    bool rises = c->n_budget == 0;
    int64_t cap = keep_longest_at(c, &k->model.g, n_token), all = 0;
    if (keep_config_is_global(c))
        all = (int64_t)keep_n_set(k) * keep_most_at(c, n_token);
    int64_t more = rises ? cap / 2 : 0;
    struct room room = {.cap = (int32_t)pi_min(cap + more, INT32_MAX),
                        .cap_all = rises ? all + all / 2 : all};
    room.cap_set = room.cap;
    if (c->policy->scratch_size != NULL)
        room.scratch_size =
            pi_align(c->policy->scratch_size(&c->params, &k->model, k->data, room.cap), 64);
    return lay_out(k, &room, NULL) + (keep_overwrites(k) ? keep_steps_bytes(k, (int32_t)cap) : 0);
}

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
static int64_t staying(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t head)
{
    return keep_config_allots(&k->config) ? keep_allot_len(k, kv, layer)
                                          : keep_staying(kv, layer, head);
}

static int64_t most_staying(const struct keep *k, const struct kv_seq *kv)
{
    int64_t most = 0;
    for (int32_t l = 0; l < keep_asked_layers(k); l++)
        for (int32_t h = 0; h < keep_asked_heads(k); h++)
            most = pi_max(most, staying(k, kv, l, h));
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
        left = lane_room(k, 0, 0, most_staying(k, kv), at, most);
    } else {
        for (int32_t l = 0; l < k->model.g.n_layer; l++)
            for (int32_t h = 0; h < k->model.g.n_head; h++) {
                int64_t len = staying(k, kv, l, h);
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
    for (int32_t l = 0; l < k->model.g.n_layer; l++)
        for (int32_t h = 0; h < k->model.g.n_head; h++)
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

/* A lane with a chosen victim has its budget also where that was lowered since (a prompt that is pinned no
   longer). */
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
            if (staying(k, kv, l, h) + n > keep_lane_budget_at(&k->config, l, h, end))
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
        most *= (int64_t)keep_stage_layers(k) * k->model.g.n_head;
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
            mean = keep_allot_len(k, kv, l);
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

/* The most entries that lanes which share a budget with a layer's come to hold together. */
static int64_t most_together(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                             struct keep_point at, int32_t n)
{
    int64_t n_lane = (int64_t)keep_stage_layers(k) * k->model.g.n_head;
    int64_t sum = keep_allot_sum(k, kv, layer), len = pi_ceil_div(sum, n_lane);
    return pi_max(sum, n_lane * pi_min(len + n, most_at(k, layer, 0, at, n, len)));
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
    if (!grow_scratch(k, (int32_t)cap, (int32_t)pi_max(cap, cap_set), rises ? all + all / 2 : all))
        return pi_fail(err, PITH_NOMEM, "no memory for a keep round over %lld entries",
                       (long long)pi_max(cap, cap_set));
    return PITH_OK;
}

int32_t keep_count_shifted(const struct kv_seq *kv, int32_t layer, int32_t head)
{
    int32_t n = 0;
    for (int32_t i = 0; i < kv_lane_runs(kv, layer, head); i++) {
        struct kv_run run = kv_lane_run(kv, layer, head, i);
        if (run.delta == 0)
            break;
        n += run.n;
    }
    return n;
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

/* Page tables for n more entries in every lane, and for a split. */
static pith_status reserve_table(const struct keep *k, struct kv_seq *kv, int64_t n,
                                 pith_error *err)
{
    n += keep_config_places(&k->config) ? k->model.g.page_len : 0;
    return kv_seq_reserve_table(kv, (int32_t)pi_min(n, INT32_MAX), err);
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
    return reserve_table(k, kv, grows, err);
}

bool keep_over_budget(const struct keep *k, const struct kv_seq *kv, struct keep_point at)
{
    if (keep_step_due(k, kv, at))
        return true;
    for (int32_t l = 0; l < keep_asked_layers(k); l++)
        for (int32_t h = 0; h < keep_asked_heads(k); h++) {
            bool allots = keep_config_allots(&k->config);
            int64_t len = allots ? keep_allot_len(k, kv, l) : kv_lane_len(kv, l, h);
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
    PI_TRY(reserve_table(k, kv, 0, err));
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
