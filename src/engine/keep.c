/*
 * keep.c - the keep policy's side of an engine: when rounds come within an evaluation, the memory
 * that they need, and rounds that the caller asks for. The round itself, and how many tokens lie
 * between two, are policy/keep/'s.
 *
 * Invariant: a round begins only when its memory is there, so that a sequence is cut whole or not
 * at all. A pass is shown to the policy with memory that was reserved before it.
 */
#include "base/mem.h"
#include "base/ranks.h"
#include "engine/over_ranks.h"
#include "engine/schedule.h"

static bool has_keep(const struct engine_traits *traits)
{
    return traits->evicts;
}

/* Whether a device finds the victims of steps, so that positions lie beside entries. */
static bool finds_victims(const struct policy_set *policies, const struct kv_geometry *g)
{
    return keep_config_finds(&policies->keep) && kv_geometry_device(g)->victims != NULL;
}

size_t pi_keep_mark_size(const struct policy_set *policies, const struct kv_geometry *g)
{
    uint32_t needs = keep_config_needs(&policies->keep);
    int32_t n_mark = keep_config_marks(&policies->keep) + finds_victims(policies, g);
    return (size_t)n_mark * sizeof(float) +
           ((needs & KEEP_NEED_VALUE_NORM) != 0 ? sizeof(uint16_t) : 0);
}

/* ---- the engine ---- */

static pith_status open_keep(struct pith_engine *e, const pith_engine_params *params,
                             const struct policy_model *model, pith_error *err)
{
    struct pi_keep *k = &e->keep;
    const char *text = params->keep != NULL ? params->keep : e->policies.keep.policy->name;
    k->text = pi_mem_strndup(PI_MEM_OTHER, text, strlen(text));
    k->step_of = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)e->chunk, sizeof(*k->step_of));
    if (k->text == NULL || k->step_of == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the options of a keep policy");
    PI_TRY(keep_create(&e->policies.keep, model, e->n_worker, &k->handle, err));
    e->traits.state_size = keep_state_size(k->handle);
    if (keep_learns(k->handle)) {
        k->learn = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)e->chunk, sizeof(*k->learn));
        if (k->learn == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the lists of a keep policy");
    }
    assert(e->traits.remembers || e->traits.state_size == 0);
    kv_cache_set_marks(e->kv, e->traits.n_mark, (e->traits.needs & KEEP_NEED_VALUE_NORM) != 0);
    if (keep_config_notes(&e->policies.keep) || e->policies.keep.policy->marks_there)
        kv_cache_note_marks(e->kv);
    if (keep_predicts(k->handle)) {
        size_t n_lane = (size_t)e->chunk * (size_t)e->lanes.n_head;
        k->predict = pi_mem_alloc_n(PI_MEM_SCRATCH, n_lane, sizeof(*k->predict));
        if (k->predict == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the lists of a keep policy");
    }
    if (finds_victims(&e->policies, kv_cache_geometry(e->kv)))
        kv_cache_note_places(e->kv);
    PI_TRY(pi_keep_watch(e, err));
    return pi_keep_start_repeat(e, err);
}

static void close_keep(struct pith_engine *e)
{
    struct pi_keep *k = &e->keep;
    pi_keep_stop_repeat(e);
    for (int32_t i = 0; i < k->n_state; i++)
        keep_block_free(k->handle, &k->states[i]);
    keep_free(k->handle);
    pi_mem_free(k->text);
    pi_mem_free(k->step_of);
    pi_mem_free(k->learn);
    pi_mem_free(k->predict);
    pi_mem_free(k->states);
    pi_mem_free(k->marks);
    *k = (struct pi_keep){0};
}

static void count_keep(const struct pith_engine *e, pith_memory_stats *out)
{
    out->work_bytes += (int64_t)keep_scratch_bytes(e->keep.handle) + pi_keep_repeat_bytes(e);
}

/* The policy's block, and the buffers of rounds. Lanes grow and shrink while their pages do not. */
static int64_t beside_at(const struct pi_account *a, int32_t n_token)
{
    const uint32_t needs = keep_config_needs(&a->policies->keep);
    const struct pi_hparams *hp = &a->model->model->hp;
    int64_t bytes = 0;
    if (a->keep != NULL)
        bytes = (int64_t)(keep_state_size(a->keep) +
                          keep_scratch_at(a->keep, pi_account_reach(a, n_token), 0));
    if ((needs & KEEP_NEED_REPEAT) != 0)
        bytes += (int64_t)a->model->g.n_layer * hp->n_head * n_token * (int64_t)sizeof(float);
    return bytes;
}

/* The buffers of threads, for choices and for weights of attention. */
static int64_t work_at(const struct pi_account *a, int32_t n_token, int32_t n_worker)
{
    const uint32_t needs = keep_config_needs(&a->policies->keep);
    const int32_t n_reach = pi_account_reach(a, n_token);
    int64_t longest = keep_longest_at(&a->policies->keep, &a->model->g, n_reach), bytes = 0;
    if (a->keep != NULL)
        bytes = (int64_t)(keep_scratch_at(a->keep, n_reach, n_worker) -
                          keep_scratch_at(a->keep, n_reach, 0));
    if ((needs & KEEP_NEED_REPEAT) != 0)
        longest += KEEP_REPEAT_MOST;
    if ((needs & (KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS | KEEP_NEED_REPEAT)) != 0)
        bytes += (int64_t)pi_pass_watch_bytes(&a->model->model->hp, n_worker, longest);
    return bytes;
}

/* ---- a sequence ---- */

/* Entries of other ranks' lanes, where they share the budget: each token adds one to each. */
static int64_t count_elsewhere(const struct pith_seq *seq, int32_t n_token)
{
    const struct keep_tally *t = &seq->keep.tally;
    int64_t n_lane = seq->engine->policies.keep.n_elsewhere;
    return t->elsewhere + n_lane * (n_token - t->elsewhere_at);
}

/* Other ranks forget what they hold of the same tokens. */
static void recount_elsewhere(struct pith_seq *seq, int32_t n_token)
{
    struct keep_tally *t = &seq->keep.tally;
    const struct kv_geometry *g = &seq->engine->lanes;
    int64_t own = 0;
    if (seq->engine->policies.keep.n_elsewhere == 0 || n_token >= t->elsewhere_at)
        return;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            own += kv_lane_len(seq->memory.kv, l, h);
    t->elsewhere = pi_ranks_sum(own) - own;
    t->elsewhere_at = n_token;
}

static pith_status start_seq(struct pith_seq *seq, pith_error *err)
{
    const struct keep *policy = seq->engine->keep.handle;
    return policy != NULL ? keep_block_make(policy, &seq->keep.block, err) : PITH_OK;
}

static void stop_seq(struct pith_seq *seq)
{
    if (seq->keep.block.state != NULL)
        keep_block_free(seq->engine->keep.handle, &seq->keep.block);
    seq->keep = (struct pi_seq_keep){0};
}

static void expect_budget(struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    keep_expect(&e->policies.keep, &e->lanes, seq->keep.scale, seq->memory.kv);
}

static pith_status fork_seq(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    struct keep_block block = to->keep.block;
    (void)err;
    if (block.state != NULL)
        keep_block_copy(from->engine->keep.handle, &from->keep.block, &block);
    to->keep = from->keep;
    to->keep.block = block;
    return PITH_OK;
}

static void truncate_seq(struct pith_seq *seq, int32_t n_token, bool whole)
{
    struct pi_seq_keep *k = &seq->keep;
    if (n_token == 0 && k->block.state != NULL) {
        memset(k->block.state, 0, seq->engine->traits.state_size);
        keep_block_push(seq->engine->keep.handle, &k->block);
    }
    k->may_disagree = k->may_disagree && n_token > 0;
    recount_elsewhere(seq, n_token);
    if (whole)
        k->tally = (struct keep_tally){0};
}

/* A policy that remembers something has seen what would be forgotten. */
static int32_t reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    (void)n_token;
    return seq->engine->traits.remembers ? 0 : same;
}

static int32_t unaltered(const struct pith_seq *seq, int32_t n)
{
    return seq->keep.tally.n_round > 0 ? 0 : n;
}

static int64_t remembered(const struct pith_seq *seq)
{
    return (int64_t)pi_mem_size(seq->keep.block.state);
}

/* ---- when rounds come ---- */

/* Whether an item is a step of a sequence whose entries are overwritten. It depends on the call
   alone, not on the chunk that its token came in. */
static bool is_step(const struct pith_engine *e, const pith_batch_item *item)
{
    return item->n_token == 1 && e->traits.overwrites;
}

int32_t pi_item_until_round(const struct pith_engine *e, const pith_batch_item *item,
                            int32_t n_done, int32_t n)
{
    struct keep_point at = pi_seq_point(item->seq, n_done);
    if (e->keep.handle == NULL)
        return n;
    if (keep_waits(e->keep.handle, item->n_token))
        return n;
    if (is_step(e, item))
        return n_done == 0 && keep_step_due(e->keep.handle, item->seq->memory.kv, at) ? 0 : n;
    return keep_room(e->keep.handle, item->seq->memory.kv, at, n);
}

int32_t pi_seq_until_round(const struct pith_seq *seq, int32_t n)
{
    const struct keep *policy = seq->engine->keep.handle;
    return policy != NULL ? keep_room(policy, seq->memory.kv, pi_seq_point(seq, 0), n) : n;
}

/* Whether a keep round of an item is due, with n_done of its tokens in. */
static bool round_due(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    int32_t left = item->n_token - n_done;
    struct keep_point at = pi_seq_point(item->seq, n_done);
    if (keep_waits(e->keep.handle, item->n_token))
        return left == 0 && keep_over_budget(e->keep.handle, item->seq->memory.kv, at);
    if (is_step(e, item))
        return left > 0 && keep_step_due(e->keep.handle, item->seq->memory.kv, at);
    return pi_item_rounds_early(e, item, n_done) ||
           keep_due(e->keep.handle, item->seq->memory.kv, at, left);
}

bool pi_engine_rounds_run_passes(const struct pith_engine *e)
{
    return e->keep.repeat != NULL;
}

/* ---- memory ---- */

int64_t pi_item_longest(const struct pith_engine *e, const pith_batch_item *item)
{
    const struct kv_geometry *g = &e->lanes;
    const struct kv_seq *kv = item->seq->memory.kv;
    int64_t longest = 0;
    if (e->keep.handle != NULL)
        return keep_longest(e->keep.handle, kv, pi_seq_point(item->seq, 0), item->n_token);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            longest = pi_max(longest, kv_lane_len(kv, l, h));
    return longest + item->n_token;
}

static pith_status prepare(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    struct pith_seq *seq = item->seq;
    return keep_prepare(e->keep.handle, seq->memory.kv, pi_seq_point(seq, 0), item->n_token, err);
}

struct kv_need pi_items_lack(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    struct kv_need lacks = {0};
    int64_t repeat = 0;
    if (e->keep.handle == NULL)
        return lacks;
    for (int32_t i = 0; i < n; i++) {
        struct kv_seq *kv = items[i].seq->memory.kv;
        struct kv_need own =
            keep_lacks(e->keep.handle, kv, pi_seq_point(items[i].seq, 0), items[i].n_token);
        struct kv_need windows = kv_seq_window_lacks(kv, items[i].n_token);
        kv_need_join(&lacks, &own);
        kv_need_join(&lacks, &windows);
    }
    for (int32_t i = 0; i < n; i++)
        kv_seq_clear_charges(items[i].seq->memory.kv);
    for (int32_t i = 0; i < n; i++) /* one after the other */
        repeat = pi_max(repeat, pi_item_repeat_bytes(e, &items[i]));
    lacks.all += repeat;
    for (int32_t i = 0; i < e->lanes.devices.n; i++)
        lacks.part[i] += repeat; /* at most */
    return lacks;
}

/* Memory for the rounds: no more pages must be free than a sequence gives back itself. No other
   sequence takes pages meanwhile, so that counting is enough. */
static pith_status reserve_rounds(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                  pith_error *err)
{
    struct kv_need lacks = pi_items_lack(e, items, n);
    if (!kv_cache_fits(e->kv, &lacks))
        return pi_fail(err, PITH_KV_FULL,
                       "keep rounds of this evaluation can take %lld more bytes of pages, and %lld "
                       "are free",
                       (long long)lacks.all, (long long)kv_cache_free_bytes(e->kv));
    return pi_keep_reserve_watch(e, items, n, err);
}

/* ---- an evaluation ---- */

/* Copies are of one batch. */
static void forget_copies(const struct pith_seq *seq, struct pi_item_state *state)
{
    seq->engine->keep.has_marks = false;
    state->keep = (struct pi_item_keep){0};
}

static void plan_watch(struct pith_engine *e, const pith_batch_item *item,
                       struct pi_item_plan *plan)
{
    plan->watched = pi_keep_watches(e, item->n_token);
}

/* The first token of a part takes the place of entries that are gone then, if any do. */
static void take_part(struct pith_engine *e, const pith_batch_item *item,
                      struct pi_item_state *state, struct pi_item_plan *plan)
{
    struct pith_seq *seq = item->seq;
    int32_t n_lane = e->traits.overwrites ? keep_count_victims(e->keep.handle, seq->memory.kv) : 0;
    if (plan->index == 0)
        e->keep.n_step = 0;
    e->keep.step_of[plan->index] = is_step(e, item) ? e->keep.n_step++ : -1;
    plan->stays = plan->stays || n_lane > 0;
    state->evicted = state->evicted || n_lane > 0;
    if (n_lane > 0)
        pi_verbs_overwrite(seq);
    keep_tally_overwritten(&seq->keep.tally, n_lane, pi_seq_point(seq, plan->n_done).n_token);
}

/* One keep round of a sequence of n_token tokens, whose memory is there. */
static pith_status run_round(struct pith_seq *seq, int32_t n_token, const pith_batch_item *item,
                             int32_t left, pith_error *err)
{
    struct keep *policy = seq->engine->keep.handle;
    struct keep_view view = pi_seq_view(seq, n_token);
    pi_verbs_before_round(seq);
    pith_status status = keep_round(policy, seq->memory.kv, &view, &seq->keep.tally, err);
    keep_set_witness(policy, NULL);
    if (status == PITH_OK)
        pi_verbs_after_round(seq, item, left);
    if (status == PITH_OK && keep_stopped(policy))
        return pi_fail(err, PITH_CANCELLED, "the keep policy stopped the evaluation");
    return status;
}

/* The keep round of an item if one is due, and room until the next. Its pages were counted. */
static pith_status round_item(struct pith_engine *e, const pith_batch_item *item,
                              struct pi_item_state *state, pith_error *err)
{
    struct pith_seq *seq = item->seq;
    int32_t left = item->n_token - state->n_done;
    if (!round_due(e, item, state->n_done))
        return PITH_OK;
    if (left == 0 && keep_waits(e->keep.handle, item->n_token)) {
        pith_status status = pi_seq_repeat(seq, seq->n_token + state->n_done, err);
        /* Tokens without a mark are read again. */
        e->batch.keeps_read = e->batch.keeps_read && status == PITH_OK;
        PI_TRY(status);
    }
    state->evicted = true;
    PI_TRY(run_round(seq, seq->n_token + state->n_done, item, left, err));
    return pi_memory_reserve(&seq->memory, pi_item_until_round(e, item, state->n_done, left), err);
}

static void restore(const pith_batch_item *item, const struct pi_item_state *state)
{
    if (state->cut)
        pi_keep_restore(item->seq->engine, item->seq, &state->keep);
}

const struct seq_hooks pi_keep_hooks = {
    .name = "keep",
    .has = has_keep,
    .beside_at = beside_at,
    .work_at = work_at,
    .open = open_keep,
    .close = close_keep,
    .count = count_keep,
    .start = start_seq,
    .stop = stop_seq,
    .attach = expect_budget,
    .fork = fork_seq,
    .truncate = truncate_seq,
    .save = pi_keep_save,
    .load = pi_keep_load,
    .reusable = reusable,
    .unaltered = unaltered,
    .remembered = remembered,
    .note = forget_copies,
    .copy = pi_keep_copy,
    .reserve = prepare,
    .reserve_batch = reserve_rounds,
    .plan = plan_watch,
    .take = take_part,
    .round = round_item,
    .after = restore,
};

/* ---- what others ask ---- */

struct keep_point pi_seq_point(const struct pith_seq *seq, int32_t n_done)
{
    int32_t n_token = seq->n_token + n_done;
    return (struct keep_point){n_token, seq->n_prompt, seq->keep.scale,
                               count_elsewhere(seq, n_token)};
}

struct keep_view pi_seq_view(const struct pith_seq *seq, int32_t n_token)
{
    return (struct keep_view){.kv = seq->memory.kv,
                              .tokens = seq->tokens,
                              .n_token = n_token,
                              .n_prompt = seq->n_prompt,
                              .pinned = seq->pinned,
                              .scale = seq->keep.scale,
                              .elsewhere = count_elsewhere(seq, n_token),
                              .state = seq->keep.block.state,
                              .there = seq->keep.block.there,
                              .shown = !seq->keep.may_disagree};
}

const void *pi_seq_keep_state(const struct pith_seq *seq)
{
    if (seq->keep.block.state != NULL)
        keep_block_pull(seq->engine->keep.handle, &seq->keep.block);
    return seq->keep.block.state;
}

bool pi_seq_is_over_budget(const struct pith_seq *seq)
{
    const struct keep *policy = seq->engine->keep.handle;
    return policy != NULL && keep_over_budget(policy, seq->memory.kv, pi_seq_point(seq, 0));
}

bool pi_engine_pins(const struct pith_engine *e)
{
    return e->keep.handle != NULL && e->policies.keep.rules.pin_prompt;
}

bool pi_engine_passes_context(const struct pith_engine *e)
{
    return e->keep.handle != NULL;
}

bool pi_engine_holds_prompts(const struct pith_engine *e)
{
    return e->keep.handle != NULL && keep_waits(e->keep.handle, INT32_MAX);
}

bool pi_engine_goes_back(const struct pith_engine *e)
{
    return e->keep.handle == NULL && !e->traits.remembers;
}

pith_status pi_engine_read_budget(const struct pith_engine *e, const char *budget, double *scale,
                                  pith_error *err)
{
    *scale = 0.0;
    return budget != NULL ? policy_set_read_scale(&e->policies, &e->lanes, budget, scale, err)
                          : PITH_OK;
}

void pi_seq_set_scale(struct pith_seq *seq, double scale)
{
    seq->keep.scale = scale;
    if (seq->engine->keep.handle != NULL)
        expect_budget(seq);
}

int64_t pi_seq_relieve_keep(struct pith_seq *seq)
{
    int64_t before = kv_cache_free_bytes(seq->engine->kv);
    kv_seq_trim(seq->memory.kv);
    if (pith_seq_keep_round(seq, NULL) != PITH_OK)
        return 0;
    return pi_max(0, kv_cache_free_bytes(seq->engine->kv) - before);
}

/* ---- the public part ---- */

pith_status pi_seq_keep_round(struct pith_seq *seq, pith_error *err)
{
    struct keep_point at = pi_seq_point(seq, 0);
    if (!pi_seq_is_over_budget(seq))
        return PITH_OK;
    pith_status status = keep_prepare_round(seq->engine->keep.handle, seq->memory.kv, at, err);
    PI_TRY(pi_over_ranks_agree(seq->engine, status, err));
    return run_round(seq, at.n_token, NULL, 0, err);
}

pith_status pi_seq_set_budget(struct pith_seq *seq, const char *budget, pith_error *err)
{
    double scale;
    if (seq->n_token > 0)
        return pi_fail(err, PITH_INVALID, "budget: %.32s: the sequence has %d tokens already",
                       budget != NULL ? budget : "", seq->n_token);
    PI_TRY(pi_engine_read_budget(seq->engine, budget, &scale, err));
    pi_seq_set_scale(seq, scale);
    return PITH_OK;
}

pith_status pi_seq_mark_prompt(struct pith_seq *seq, int32_t n_token, pith_error *err)
{
    if (n_token < 0)
        return pi_fail(err, PITH_INVALID, "n_token: %d tokens cannot be a prompt", n_token);
    PI_TRY(keep_check_prompt(seq->engine->keep.handle,
                             (struct keep_point){.n_prompt = n_token, .scale = seq->keep.scale},
                             err));
    seq->n_prompt = n_token;
    return PITH_OK;
}

void pith_seq_keep_stats(const pith_seq *seq, pith_keep_stats *out)
{
    const struct pith_engine *e = seq->engine;
    const struct keep_tally *t = &seq->keep.tally;
    *out = (pith_keep_stats){
        .rounds = t->n_round,
        .evicted = t->n_evicted,
        .bytes_freed = t->bytes_freed,
        .seconds = t->seconds,
        .first_round_at = t->n_round > 0 ? t->first_at : -1,
        .budget =
            e->keep.handle != NULL ? keep_own_budget(&e->policies.keep, pi_seq_point(seq, 0)) : -1,
        .overwritten = t->n_overwritten,
        .first_overwrite_at = t->n_overwritten > 0 ? t->first_overwrite_at : -1,
        .remembered_bytes = pi_verbs_remembered(seq),
    };
    const struct kv_geometry *g = e->keep.handle != NULL ? &e->lanes : kv_cache_geometry(e->kv);
    out->n_lane = g->n_layer * g->n_head;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            int32_t n = kv_lane_len(seq->memory.kv, l, h);
            out->live += n;
            out->longest = (int32_t)pi_max(out->longest, n);
        }
}
