/*
 * share.c - the state of a share policy: of an engine the scratch of comparing, of a sequence its
 * steps. It says when steps begin and end; what stands for what is choose.c's.
 *
 * A step ends at the first blank line after as many tokens as a page holds. So a shorter one is a
 * part of the step that follows. Invariant: nothing fails in note, whose memory begin reserved; and
 * all of it depends on the sequence's own tokens and evaluations.
 */
#include "base/mem.h"
#include "base/os.h"
#include "device/device.h"
#include "kv/apart.h"
#include "policy/share/internal.h"

/* ---- an engine's ---- */

/* Whether one device has all layers, and sums up how far pages are apart. */
static bool has_one_device(const struct share *s)
{
    const struct pi_device *d = kv_layer_device(&s->g, 0);
    for (int32_t l = 1; l < s->g.n_layer; l++)
        if (kv_layer_device(&s->g, l) != d)
            return false;
    return d->apart != NULL;
}

static pith_status alloc_scratch(struct share *s, int32_t n_vocab, pith_error *err)
{
    size_t n_head = (size_t)s->g.n_head, n_cs = 2 * (size_t)s->rope->n_pair;
    int32_t dim = (int32_t)pi_max(s->g.dim_k, s->g.dim_v);
    bool all = true;
    s->work_row = pi_align((size_t)dim * (size_t)s->g.page_len, 16);
    s->count = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_vocab, sizeof(*s->count));
    s->scratch = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)s->n_thread, sizeof(*s->scratch));
    for (int32_t i = 0; i < s->n_thread && s->scratch != NULL; i++) {
        struct share_scratch *scratch = &s->scratch[i];
        scratch->work = pi_mem_alloc_n(PI_MEM_SCRATCH, 5 * s->work_row, sizeof(*scratch->work));
        scratch->cs = pi_mem_alloc_n(PI_MEM_SCRATCH, n_cs, sizeof(*scratch->cs));
        scratch->sums = pi_mem_alloc_n(PI_MEM_SCRATCH, n_head, sizeof(*scratch->sums));
        if (has_one_device(s))
            scratch->apart = pi_mem_alloc_n(PI_MEM_SCRATCH, n_head * (size_t)s->g.n_layer,
                                            sizeof(*scratch->apart));
        all = all && (scratch->apart != NULL || !has_one_device(s)) && scratch->work != NULL &&
              scratch->cs != NULL && scratch->sums != NULL;
    }
    if (s->count == NULL || s->scratch == NULL || !all)
        return pi_fail(err, PITH_NOMEM, "no memory for comparing pages");
    return PITH_OK;
}

static void free_scratch(struct share *s)
{
    for (int32_t i = 0; i < s->n_thread && s->scratch != NULL; i++) {
        pi_mem_free(s->scratch[i].apart);
        pi_mem_free(s->scratch[i].sums);
        pi_mem_free(s->scratch[i].cs);
        pi_mem_free(s->scratch[i].work);
    }
    pi_mem_free(s->scratch);
}

static bool has_tokenizer(const struct pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    return strcmp(info.tokenizer, "none") != 0;
}

pith_status share_create(const struct share_config *c, const struct policy_model *model,
                         int32_t n_thread, struct share **out, pith_error *err)
{
    if (model->model == NULL || !has_tokenizer(model->model))
        return pi_fail(
            err, PITH_UNSUPPORTED,
            "share: the model has no tokenizer, and so no steps that end at blank lines");
    if (model->rope == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "share: it is not known how keys are rotated, so that none can be read at "
                       "another position");
    struct share *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a share policy");
    s->config = *c;
    s->g = model->g;
    s->rope = model->rope;
    s->lane_rope = model->lane_rope;
    s->n_thread = n_thread;
    pith_status status = share_vocab_flags(model->model, &s->flags, err);
    if (status == PITH_OK)
        status = alloc_scratch(s, pi_model_hparams(model->model)->n_vocab, err);
    if (status != PITH_OK) {
        share_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

void share_free(struct share *s)
{
    if (s == NULL)
        return;
    pi_mem_free(s->page);
    pi_mem_free(s->cut);
    pi_mem_free(s->block);
    free_scratch(s);
    pi_mem_free(s->count);
    pi_mem_free(s->flags);
    pi_mem_free(s);
}

void share_set_log(struct share *s, pith_share_fn *fn, void *user, bool all)
{
    s->log = fn;
    s->log_user = user;
    s->log_all = fn != NULL && all;
}

/* ---- a sequence's ---- */

static void reset(struct share_seq *seq)
{
    seq->begin = SHARE_NO_STEP;
    seq->first_change = INT32_MAX;
}

pith_status share_seq_create(struct share *s, const pith_seq *owner, struct share_seq **out,
                             pith_error *err)
{
    struct share_seq *seq = pi_mem_alloc(PI_MEM_OTHER, sizeof(*seq));
    if (seq == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a sequence's steps");
    seq->share = s;
    seq->owner = owner;
    reset(seq);
    struct share_seq **last = &s->first;
    for (; *last != NULL; last = &(*last)->next)
        seq->prev = *last;
    *last = seq;
    *out = seq;
    return PITH_OK;
}

size_t share_seq_bytes(const struct share_seq *seq)
{
    return sizeof(*seq) + pi_mem_size(seq->step) + pi_mem_size(seq->ids) +
           pi_mem_size(seq->bag_id) + pi_mem_size(seq->bag_count) + pi_mem_size(seq->sample);
}

void share_seq_free(struct share_seq *seq)
{
    if (seq == NULL)
        return;
    if (seq->prev != NULL)
        seq->prev->next = seq->next;
    else
        seq->share->first = seq->next;
    if (seq->next != NULL)
        seq->next->prev = seq->prev;
    pi_mem_free(seq->sample);
    pi_mem_free(seq->bag_count);
    pi_mem_free(seq->bag_id);
    pi_mem_free(seq->ids);
    pi_mem_free(seq->step);
    pi_mem_free(seq);
}

/* Room for `want` elements in a growing array of which there are *cap. */
static bool grow(void **array, int32_t *cap, int64_t want, size_t size)
{
    if (want <= *cap)
        return true;
    int64_t most = pi_max(want, 2 * (int64_t)*cap);
    void *grown = most <= INT32_MAX ? pi_mem_grow(PI_MEM_OTHER, *array, (size_t)most, size) : NULL;
    if (grown == NULL)
        return false;
    *array = grown;
    *cap = (int32_t)most;
    return true;
}

/* The same for the three by token, whose capacity is that of all of them. */
static bool grow_ids(struct share_seq *seq, int64_t want)
{
    int32_t a = seq->cap_id, b = a, c = a;
    bool ok = grow((void **)&seq->ids, &a, want, sizeof(*seq->ids)) &&
              grow((void **)&seq->bag_id, &b, want, sizeof(*seq->bag_id)) &&
              grow((void **)&seq->bag_count, &c, want, sizeof(*seq->bag_count));
    if (ok)
        seq->cap_id = c;
    return ok;
}

/* An engine's memory for closing a step of n tokens. */
static bool grow_scratch(struct share *s, int32_t n)
{
    int64_t n_run = share_runs_at(s, n);
    return grow((void **)&s->block, &s->cap_block, n_run * s->config.options.candidates,
                sizeof(*s->block)) &&
           grow((void **)&s->cut, &s->cap_cut, 2 * n_run, sizeof(*s->cut)) &&
           grow((void **)&s->page, &s->cap_page, n_run, 2 * sizeof(*s->page));
}

/* Room for what comparing a step of n tokens may measure. */
static bool grow_samples(struct share_seq *seq, int32_t n)
{
    const struct share_options *o = &seq->share->config.options;
    int64_t want = seq->n_sample + (int64_t)share_runs_at(seq->share, n) * o->candidates + 4;
    if (seq->share->config.kind != SHARE_MEMSHARE || o->block >= 0.0)
        return true;
    want = pi_min(want, SHARE_SAMPLES);
    return grow((void **)&seq->sample, &seq->cap_sample, want, sizeof(*seq->sample));
}

/* Room for one more step of n tokens, beside what is there. */
static pith_status reserve(struct share_seq *seq, struct kv_seq *kv, int32_t n, pith_error *err)
{
    if (!grow((void **)&seq->step, &seq->cap_step, (int64_t)seq->n_step + 1, sizeof(*seq->step)) ||
        !grow_ids(seq, (int64_t)seq->n_id + n) || !grow_scratch(seq->share, n) ||
        !grow_samples(seq, n))
        return pi_fail(err, PITH_NOMEM, "no memory for a step of %d tokens", n);
    return kv_seq_reserve_runs(kv, share_runs_at(seq->share, n), err);
}

static void copy(void *to, const void *from, int32_t n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

pith_status share_seq_fork(const struct share_seq *from, const pith_seq *owner, struct kv_seq *kv,
                           struct share_seq **out, pith_error *err)
{
    struct share_seq *seq = NULL;
    PI_TRY(share_seq_create(from->share, owner, &seq, err));
    if (!grow((void **)&seq->step, &seq->cap_step, from->n_step, sizeof(*seq->step)) ||
        !grow_ids(seq, from->n_id) ||
        !grow((void **)&seq->sample, &seq->cap_sample, from->n_sample, sizeof(*seq->sample))) {
        share_seq_free(seq);
        return pi_fail(err, PITH_NOMEM, "no memory for a copy of %d steps", from->n_step);
    }
    copy(seq->step, from->step, from->n_step, sizeof(*seq->step));
    copy(seq->ids, from->ids, from->n_id, sizeof(*seq->ids));
    copy(seq->bag_id, from->bag_id, from->n_id, sizeof(*seq->bag_id));
    copy(seq->bag_count, from->bag_count, from->n_id, sizeof(*seq->bag_count));
    copy(seq->sample, from->sample, from->n_sample, sizeof(*seq->sample));
    seq->n_step = from->n_step;
    seq->n_id = from->n_id;
    seq->n_sample = from->n_sample;
    seq->kv = kv;
    seq->begin = from->begin;
    seq->n_seen = from->n_seen;
    seq->first_change = from->first_change;
    seq->lanes_differ = from->lanes_differ;
    seq->seconds = from->seconds;
    *out = seq;
    return PITH_OK;
}

/* ---- forgetting ---- */

/* The step that a sequence which forgets what follows n_token tokens is in the middle of. */
static void resume(struct share_seq *seq, int32_t n_token)
{
    if (seq->begin > n_token)
        seq->begin = SHARE_NO_STEP;
    while (seq->n_step > 0 && seq->step[seq->n_step - 1].end > n_token) {
        const struct share_step *step = &seq->step[--seq->n_step];
        if (step->begin <= n_token) /* it goes on from there */
            seq->begin = step->begin;
        seq->n_id = step->ids;
    }
    while (seq->n_sample > 0 && seq->sample[seq->n_sample - 1].step >= seq->n_step)
        seq->n_sample--;
}

void share_seq_truncate(struct share_seq *seq, int32_t n_token)
{
    if (n_token >= seq->n_seen)
        return;
    resume(seq, n_token);
    seq->n_seen = n_token;
    seq->began = false;
    if (n_token <= seq->first_change)
        seq->first_change = INT32_MAX;
    if (n_token == 0) {
        reset(seq);
        seq->lanes_differ = false;
        seq->seconds = 0.0;
    }
}

void share_seq_forget(struct share_seq *seq)
{
    seq->n_step = seq->n_id = seq->n_sample = 0;
    seq->begin = SHARE_NO_STEP;
    seq->began = false;
}

void share_seq_note_round(struct share_seq *seq)
{
    for (int32_t i = seq->n_step; i > 0 && !seq->step[i - 1].gone; i--)
        seq->step[i - 1].gone = true;
    seq->lanes_differ = true;
}

void share_seq_set_loaded(struct share_seq *seq)
{
    seq->lanes_differ = true;
    seq->first_change = 0;
}

int32_t share_seq_first_change(const struct share_seq *seq)
{
    return seq->first_change;
}

/* ---- steps ---- */

pith_status share_seq_begin(struct share_seq *seq, struct kv_seq *kv, int32_t n_token,
                            pith_error *err)
{
    int32_t begin = seq->begin != SHARE_NO_STEP ? seq->begin : n_token;
    seq->began = false;
    PI_TRY(reserve(seq, kv, n_token + 1 - begin, err));
    seq->began = seq->begin == SHARE_NO_STEP;
    seq->begin = begin;
    return PITH_OK;
}

void share_seq_cancel(struct share_seq *seq)
{
    if (seq->began)
        seq->begin = SHARE_NO_STEP;
    seq->began = false;
}

static void add_step(struct share_seq *seq, const int32_t *tokens, int32_t end)
{
    struct share *s = seq->share;
    struct share_step *step = &seq->step[seq->n_step++];
    int32_t n = end - seq->begin;
    *step = (struct share_step){.begin = seq->begin, .end = end, .ids = seq->n_id};
    assert(seq->n_step <= seq->cap_step && seq->n_id + n <= seq->cap_id);
    struct share_bag bag = {seq->bag_id + step->ids, seq->bag_count + step->ids, 0};
    memcpy(seq->ids + step->ids, tokens + seq->begin, (size_t)n * sizeof(*tokens));
    seq->n_id += n;
    step->norm = share_bag_fill(&bag, tokens + seq->begin, n, s->count);
    step->n_bag = bag.n;
    share_bag_clear(&bag, s->count);
}

void share_seq_note(struct share_seq *seq, struct kv_seq *kv, const int32_t *tokens,
                    int32_t n_token, bool step)
{
    seq->kv = kv;
    seq->n_seen = n_token;
    seq->began = false;
    if (!step) {
        seq->begin = SHARE_NO_STEP;
        return;
    }
    assert(seq->begin != SHARE_NO_STEP && seq->begin < n_token);
    int32_t n = n_token - seq->begin;
    if (n < seq->share->g.page_len || !share_ends_step(seq->share->flags, tokens + seq->begin, n))
        return;
    double start = pi_time_s();
    add_step(seq, tokens, n_token);
    share_step_compare(seq, seq->n_step - 1, 1.0);
    seq->begin = n_token;
    seq->seconds += pi_time_s() - start;
}

int64_t share_seq_scan(struct share_seq *seq, struct kv_seq *kv)
{
    double start = pi_time_s();
    int64_t before = kv_seq_free_bytes(kv);
    seq->kv = kv;
    for (int32_t i = 0; i < seq->n_step && seq->share->config.kind == SHARE_MEMSHARE; i++)
        if (seq->step[i].tally.pages_shared == 0)
            share_step_compare(seq, i, seq->share->config.options.loose);
    seq->seconds += pi_time_s() - start;
    return kv_seq_free_bytes(kv) - before;
}

/* ---- figures ---- */

void share_seq_stats(const struct share_seq *seq, pith_share_stats *out)
{
    *out = (pith_share_stats){.steps_closed = seq->n_step, .seconds = seq->seconds};
    if (seq->share->config.kind == SHARE_MEMSHARE)
        out->block = share_block_limit(seq);
    for (int32_t i = 0; i < seq->n_step; i++) {
        const struct share_tally *t = &seq->step[i].tally;
        out->steps_compared += t->compared;
        out->steps_similar += t->similar;
        out->pages_compared += t->pages_compared;
        out->pages_early += t->pages_early;
        out->pages_shared += t->pages_shared;
        out->tokens_shared += t->tokens_shared;
        out->bytes_saved += t->bytes;
    }
}
