/*
 * run.c - the read policy of an engine: what it opens, the memory of a pass, and what engines ask
 * of the rules. A pass is select.c's. It knows no policy and no engine.
 */
#include "base/mem.h"
#include "policy/read/running.h"

/* Lanes that are scored and chosen for together, at most; no fewer than there are threads. It
   bounds the memory for their scores. */
#define LANES 32

/* ---- the shape of the scratch ---- */

static int32_t most_of(const struct read_rules *r, int64_t longest)
{
    int32_t n = (int32_t)pi_min(longest, INT32_MAX);
    int64_t budget = r->budget.value;
    if (r->budget.unit == POLICY_UNIT_SHARE)
        budget = pi_max(1, n * r->budget.value / 1000000);
    return (int32_t)pi_min(n, pi_max(budget, (int64_t)r->sinks + r->recent));
}

/* Places the parts of one thread; only counts while base is NULL. */
static void place_work(const struct read *read, int32_t longest, int32_t most, uint8_t *base,
                       size_t *used, struct work *w)
{
    const struct read_policy *p = read->config.policy;
    size_t n_query = (size_t)read->model.g.n_head * (size_t)read->model.n_group;
    size_t n = (size_t)longest;
    size_t policy = p->scratch_size == NULL
                        ? 0
                        : p->scratch_size(&read->config.params, &read->model, longest,
                                          read_chunk_of(&read->config.rules));
    w->pos = pi_mem_part(base, used, p->role != NULL ? n : 0, sizeof(*w->pos));
    w->order = pi_mem_part(base, used, p->unites ? (size_t)most : 0, sizeof(*w->order));
    w->set = pi_mem_part(base, used, p->unites ? read_union_size(most) : 0, sizeof(*w->set));
    w->best = pi_mem_part(base, used, p->unites ? n_query : 0, sizeof(*w->best));
    w->n_best = pi_mem_part(base, used, p->unites ? n_query : 0, sizeof(*w->n_best));
    w->policy = pi_mem_part(base, used, policy, 1);
}

/* The same of the lanes that are there at once. */
static void place_lanes(struct read *read, int32_t n_lane, int32_t longest, uint8_t *base,
                        size_t *used)
{
    const struct kv_geometry *g = &read->model.g;
    size_t n = (size_t)n_lane, n_job = n * (size_t)read->n_row, n_thread = (size_t)read->n_thread;
    size_t n_kept = read->n_vector > 0 ? n_job : n_thread * (size_t)read->n_row;
    read->score_size = 0;
    if (read->n_vector > 0)
        read->score_size = pi_align(kv_score_scratch_bytes(g, read->n_vector), 64);
    read->choose_size = pi_align(kv_choose_scratch_bytes(longest), 64);
    read->n_lane = n_lane;
    read->lane = pi_mem_part(base, used, n, sizeof(*read->lane));
    read->score = pi_mem_part(base, used, n_kept * (size_t)longest, sizeof(float));
    read->vector = pi_mem_part(base, used, n * (size_t)(read->n_vector * g->dim_k), sizeof(float));
    read->score_job = pi_mem_part(base, used, n_job, sizeof(*read->score_job));
    read->packed_job = pi_mem_part(base, used, n_job, sizeof(*read->packed_job));
    read->choose_job = pi_mem_part(base, used, n_job, sizeof(*read->choose_job));
    read->list_at = pi_mem_part(base, used, n_job, sizeof(*read->list_at));
    read->unite_job = pi_mem_part(base, used, n, sizeof(*read->unite_job));
    read->share_job = pi_mem_part(base, used, n, sizeof(*read->share_job));
    read->score_scratch = pi_mem_part(base, used, n_thread, read->score_size);
    read->choose_scratch = pi_mem_part(base, used, n_thread, read->choose_size);
}

/* The same for everything; returns the bytes. */
static size_t lay_out(struct read *read, int32_t n_chunk, int32_t longest, int32_t most,
                      uint8_t *base)
{
    const struct read_policy *p = read->config.policy;
    size_t n_unit = (size_t)n_chunk * (size_t)read->model.g.n_head, used = 0;
    size_t n_group = (size_t)read->model.n_group;
    size_t chunk = (size_t)read_chunk_of(&read->config.rules);
    bool besides = p->chosen != NULL || p->adjust != NULL;
    struct work counted;
    struct work *work = pi_mem_part(base, &used, (size_t)read->n_thread, sizeof(*work));
    const struct pi_pass_item **item_of =
        pi_mem_part(base, &used, (size_t)n_chunk, sizeof(*item_of));
    struct unit *unit = pi_mem_part(base, &used, n_unit, sizeof(*unit));
    float *beside = pi_mem_part(base, &used, besides ? n_unit * chunk * n_group : 0, sizeof(float));
    int32_t *kept =
        pi_mem_part(base, &used, p->role != NULL ? n_unit * (size_t)most : 0, sizeof(int32_t));
    int32_t *best =
        pi_mem_part(base, &used, p->unites ? n_unit * n_group * (size_t)most : 0, sizeof(int32_t));
    struct kv_blend_job *blend =
        pi_mem_part(base, &used, p->blends != NULL ? n_unit : 0, sizeof(*blend));
    struct read lanes = *read;
    for (int32_t i = 0; i < read->n_thread; i++)
        place_work(read, longest, most, base, &used, work != NULL ? &work[i] : &counted);
    /* Lanes of a chunk that unite are there together. */
    int64_t n_lane = pi_align(pi_max(LANES, read->n_thread), read->model.g.n_head);
    n_lane = pi_min((int64_t)n_unit, n_lane);
    place_lanes(base != NULL ? read : &lanes, (int32_t)n_lane, longest, base, &used);
    if (base != NULL) {
        read->work = work;
        read->item_of = item_of;
        read->unit = unit;
        read->beside = beside;
        read->kept = kept;
        read->best = best;
        read->blend_job = blend;
    }
    return used;
}

static void reserve_room(struct pi_device *d, struct pi_at *at, size_t n)
{
    if (pi_at_some(*at))
        d->free(d, *at);
    *at = n > 0 ? d->alloc(d, PI_MEM_SCRATCH, n * sizeof(float)) : (struct pi_at){0};
}

/* Room on devices for what stays there. Without it choices come to the host. */
static void reserve_slots(struct read *read)
{
    const struct read_policy *p = read->config.policy;
    size_t n = (size_t)read->cap_chunk * (size_t)read->model.g.n_head;
    size_t n_group = (size_t)read->model.n_group, most = (size_t)read->most;
    for (int32_t i = 0; i < read->n_stream; i++) {
        struct pi_device *d = read->stream[i]->device;
        if (d->weigh == NULL || p->picks == NULL)
            continue;
        reserve_room(d, &read->slots_at[i], n * most);
        reserve_room(d, &read->best_at[i], p->unites ? n * n_group * most : 0);
        reserve_room(d, &read->share_at[i], p->blends != NULL ? n * n_group : 0);
    }
}

pith_status read_reserve(struct read *read, int32_t n_chunk, int64_t longest, pith_error *err)
{
    if (n_chunk <= read->cap_chunk && longest <= read->longest)
        return PITH_OK;
    /* More than asked: a lane may grow with every pass. */
    int64_t n = longest <= read->longest ? read->longest : longest + longest / 2 + 64;
    n = pi_min(n, INT32_MAX);
    n_chunk = (int32_t)pi_max(n_chunk, read->cap_chunk);
    int32_t most = most_of(&read->config.rules, n);
    size_t size = lay_out(read, n_chunk, (int32_t)n, most, NULL);
    uint8_t *block = pi_mem_alloc(PI_MEM_SCRATCH, size);
    if (block == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for reading %d chunks over %lld entries",
                       n_chunk, (long long)n);
    pi_mem_free(read->block);
    read->block = block;
    read->cap_chunk = n_chunk;
    read->longest = n;
    read->most = most;
    lay_out(read, n_chunk, (int32_t)n, most, block);
    reserve_slots(read);
    return PITH_OK;
}

int64_t read_most(const struct read *read, int64_t longest)
{
    return pi_min(longest, (int64_t)most_of(&read->config.rules, longest) +
                               read_chunk_of(&read->config.rules));
}

void read_add_tally(struct read *read, const struct pi_pass_item *item, struct read_tally *tally)
{
    int32_t n_head = read->model.g.n_head;
    for (int32_t i = 0; i < read->cap_chunk; i++) {
        if (read->item_of[i] != item)
            continue;
        read->item_of[i] = NULL;
        for (int32_t h = 0; h < n_head; h++) {
            const struct read_tally *t = &read->unit[(size_t)i * (size_t)n_head + (size_t)h].tally;
            if (t->n_sparse > 0 && (tally->n_sparse == 0 || t->first_at < tally->first_at))
                tally->first_at = t->first_at;
            tally->n_chunk += t->n_chunk;
            tally->n_sparse += t->n_sparse;
            tally->n_step += t->n_step;
            tally->n_step_sparse += t->n_step_sparse;
            tally->n_stored += t->n_stored;
            tally->n_read += t->n_read;
            tally->seconds += t->seconds;
        }
    }
}

/* ---- the policy of an engine ---- */

int32_t read_stream_number(const struct read *read, int32_t layer)
{
    const struct pi_device *d = kv_layer_device(&read->model.g, layer);
    for (int32_t i = 0; i < read->n_stream; i++)
        if (read->stream[i]->device == d)
            return i;
    return -1;
}

static bool open_streams(struct read *read)
{
    const struct pi_stream_shape shape = {.n_thread = read->n_thread};
    for (int32_t l = 0; l < read->model.g.n_layer; l++) {
        if (read_stream_number(read, l) >= 0)
            continue;
        struct pi_device *d = kv_layer_device(&read->model.g, l);
        struct pi_stream *s = d->open(d, &shape);
        if (s == NULL)
            return false;
        read->stream[read->n_stream++] = s;
    }
    return true;
}

/* The streams, the sizes of a lane's scores, and what the policy opens. */
static pith_status make_parts(struct read *read, pith_error *err)
{
    const struct read_policy *p = read->config.policy;
    int32_t chunk = read_chunk_of(&read->config.rules);
    read->n_row = p->unites ? read->model.n_group : 1;
    if (p->n_set != NULL) {
        int32_t n_set =
            (int32_t)pi_max(read_sets_of(read, 1, false), read_sets_of(read, chunk, false));
        read->n_row = (int32_t)pi_max(read->n_row, n_set);
        if (n_set > 0)
            read->n_vector = p->n_vector(&read->config.params, &read->model, chunk);
    }
    if (!open_streams(read))
        return pi_fail(err, PITH_NOMEM, "no memory for a read policy");
    return p->open != NULL ? p->open(&read->config.params, &read->model, &read->data, err)
                           : PITH_OK;
}

pith_status read_create(const struct read_config *config, const struct policy_model *model,
                        int32_t n_thread, struct read **out, pith_error *err)
{
    const struct read_policy *p = config->policy;
    *out = NULL;
    if (p == NULL)
        return PITH_OK;
    struct read *read = pi_mem_alloc(PI_MEM_OTHER, sizeof(*read));
    if (read == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a read policy");
    read->config = *config;
    read->model = *model;
    read->n_thread = (int32_t)pi_max(n_thread, 1);
    pith_status status = make_parts(read, err);
    if (status != PITH_OK) {
        read_free(read);
        return status;
    }
    *out = read;
    return PITH_OK;
}

void read_free(struct read *read)
{
    if (read == NULL)
        return;
    if (read->data != NULL && read->config.policy->close != NULL)
        read->config.policy->close(read->data);
    for (int32_t i = 0; i < read->n_stream; i++) {
        struct pi_device *d = read->stream[i]->device;
        reserve_room(d, &read->slots_at[i], 0);
        reserve_room(d, &read->best_at[i], 0);
        reserve_room(d, &read->share_at[i], 0);
        d->close(read->stream[i]);
    }
    pi_mem_free(read->block);
    pi_mem_free(read);
}

const struct read_config *read_get_config(const struct read *read)
{
    return &read->config;
}

bool read_may_stop(const struct read *read)
{
    return read != NULL && read->config.policy->stopped != NULL;
}

bool read_stopped(const struct read *read)
{
    return read_may_stop(read) && read->config.policy->stopped(read->data);
}

const float *read_projection(const struct read *read)
{
    const struct read_policy *p = read->config.policy;
    return p->projection != NULL ? p->projection(read->data) : NULL;
}

int32_t read_tokens(const struct read *read, int32_t n_token)
{
    return read_tokens_of(&read->config.rules, n_token);
}

int32_t read_take(const struct read *read, int32_t most, int32_t left, int32_t left_read,
                  int32_t until)
{
    return read_take_of(&read->config.rules, most, left, left_read, until);
}

int32_t read_reusable(const struct read *read, const struct read_tally *tally, int32_t same,
                      int32_t n_token)
{
    const struct read_rules *r = &read->config.rules;
    int32_t whole = read_whole_up_to(r);
    if (n_token <= whole)
        return same;
    if (r->phase == READ_DECODE)
        return tally->n_sparse > 0 ? (int32_t)pi_min(same, tally->first_at) : same;
    return (int32_t)pi_min(same, whole) / r->chunk * r->chunk;
}
