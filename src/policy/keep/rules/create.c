/*
 * create.c - a policy that an engine has made: its statistics and data, what it answers of itself,
 * and the memory that its rounds share. budget.c says when they run.
 */
#include "base/mem.h"
#include "model/shape.h"
#include "policy/keep/rules/rounds.h"
#include "policy/keep/stats/stats.h"

/* Over ranks each has the statistics of its own layers and heads. */
static pith_status take_part(struct pith_stats *s, const struct pith_model *model, pith_error *err)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    const struct stats_part part = {
        .first_layer = hp->whole.first_full,
        .n_layer = hp->n_layer_full,
        .n_layer_all = hp->whole.n_layer_full,
        .first_head = hp->whole.first_head_kv,
        .n_head = hp->n_head_kv,
        .n_head_all = hp->whole.n_head_kv,
    };
    if (part.n_layer == part.n_layer_all && part.n_head == part.n_head_all)
        return PITH_OK;
    if (part.n_layer < part.n_layer_all)
        s->fingerprint = 0; /* the rank's model has another, of its own layers */
    return stats_keep_part(s, &part, err);
}

/* The statistics that the rules name, and of them what makes scores of lanes comparable. */
static pith_status load_stats(struct keep *k, pith_error *err)
{
    const struct keep_config *c = &k->config;
    k->model.stats = NULL;
    if (c->rules.stats[0] == '\0')
        return PITH_OK;
    PI_TRY(stats_load_option("keep", c->rules.stats, &k->stats, err));
    if (k->model.model != NULL)
        PI_TRY(take_part(k->stats, k->model.model, err));
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

static void set_threads(struct keep *k, int32_t n_thread)
{
    k->n_thread = n_thread;
    k->n_scorer = (int32_t)pi_min(n_thread, k->config.policy->alone ? 1 : k->model.g.n_head);
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
    k->whole = policy_whole(model);
    if (config->policy->needs != NULL)
        k->own_needs = config->policy->needs(&config->params);
    set_threads(k, n_thread);
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
    size_t n_else = (size_t)k->config.n_elsewhere, n_all = (size_t)keep_n_set(k) + n_else;
    k->lane = pi_mem_part(base, &used, n_all, sizeof(*k->lane));
    k->everywhere = pi_mem_part(base, &used, n_else > 0 ? n_all : 0, sizeof(*k->everywhere));
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

bool keep_grow_scratch(struct keep *k, int32_t cap, int32_t cap_set, int64_t cap_all)
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

size_t keep_scratch_at(struct keep *k, int32_t n_token, int32_t n_thread)
{
    const struct room now = {k->cap, k->cap_set, k->cap_all, k->scratch_size};
    const int32_t own = k->n_thread;
    const struct keep_config *c = &k->config;
    set_threads(k, n_thread);
    bool rises = c->n_budget == 0;
    int64_t cap = keep_longest_at(c, &k->model.g, n_token), all = 0;
    if (keep_config_is_global(c))
        all = keep_together_at(c, &k->model.g, n_token);
    int64_t more = rises ? cap / 2 : 0;
    struct room room = {.cap = (int32_t)pi_min(cap + more, INT32_MAX),
                        .cap_all = rises ? all + all / 2 : all};
    room.cap_set = room.cap;
    if (c->policy->scratch_size != NULL)
        room.scratch_size =
            pi_align(c->policy->scratch_size(&c->params, &k->model, k->data, room.cap), 64);
    size_t bytes = lay_out(k, &room, NULL);
    bytes += keep_overwrites(k) ? keep_steps_bytes(k, (int32_t)cap) : 0;
    set_threads(k, own);
    lay_out(k, &now, k->block); /* rounds go on with what there is */
    return bytes;
}
