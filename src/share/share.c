/*
 * share.c - what a share policy remembers: of an engine the scratch of comparing, of a sequence its
 * steps. It says when steps begin and end and ends pages there; what stands for what is choose.c's.
 *
 * A step ends at the first blank line after as many tokens as a page holds, so that what is shorter
 * is a part of the step that follows. Its last page is ended there, and the first page of a step
 * that follows a prompt begins with it, as long as no more places are lost that way than sharing
 * frees, and an eighth; so equal steps have equal pages. Invariant: nothing fails in note, whose
 * memory begin reserved; and all of it depends on the sequence's own tokens and evaluations.
 */
#include "base/mem.h"
#include "base/os.h"
#include "share/internal.h"

/* ---- an engine's ---- */

static pith_status alloc_scratch(struct share *s, int32_t n_vocab, pith_error *err)
{
    size_t n_lane = (size_t)s->g.n_layer * (size_t)s->g.n_head;
    int32_t dim = (int32_t)pi_max(s->g.dim_k, s->g.dim_v);
    s->work_row = pi_align((size_t)dim * (size_t)s->g.page_len, 16);
    s->count = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_vocab, sizeof(*s->count));
    s->cs = pi_mem_alloc_n(PI_MEM_SCRATCH, 2 * (size_t)s->rope->n_pair, sizeof(*s->cs));
    s->work =
        pi_mem_alloc_n(PI_MEM_SCRATCH, 5 * (size_t)s->n_thread, s->work_row * sizeof(*s->work));
    s->sums = pi_mem_alloc_n(PI_MEM_SCRATCH, n_lane, sizeof(*s->sums));
    s->missing = pi_mem_alloc_n(PI_MEM_SCRATCH, n_lane, sizeof(*s->missing));
    if (s->count == NULL || s->cs == NULL || s->work == NULL || s->sums == NULL ||
        s->missing == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for comparing pages");
    return PITH_OK;
}

pith_status share_create(const struct share_config *c, const struct policy_model *model,
                         int32_t n_thread, struct share **out, pith_error *err)
{
    if (model->model == NULL || strcmp(pi_vocab_kind(model->model->vocab), "none") == 0)
        return pi_fail(
            err, PITH_UNSUPPORTED,
            "share: the model has no tokenizer, and so no steps that end at blank lines");
    if (model->rope == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "share: nobody knows how keys are rotated, so that none can be read at "
                       "another position");
    struct share *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a share policy");
    s->config = *c;
    s->g = model->g;
    s->rope = model->rope;
    s->n_thread = n_thread;
    pith_status status = share_vocab_flags(model->model, &s->flags, err);
    if (status == PITH_OK)
        status = alloc_scratch(s, model->model->hp.n_vocab, err);
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
    pi_mem_free(s->missing);
    pi_mem_free(s->sums);
    pi_mem_free(s->work);
    pi_mem_free(s->cs);
    pi_mem_free(s->count);
    pi_mem_free(s->flags);
    pi_mem_free(s);
}

const struct share_config *share_get_config(const struct share *s)
{
    return &s->config;
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
    seq->begin_waste = seq->waste = seq->lost_waste = seq->waste_from = 0;
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
    pi_mem_free(seq->page);
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

/* Room for n_step more steps of n_token tokens in all, beside what is there. */
static pith_status reserve(struct share_seq *seq, int32_t n_step, int64_t n_token, pith_error *err)
{
    int64_t n_page = n_token / seq->share->g.page_len + n_step;
    if (!grow((void **)&seq->step, &seq->cap_step, (int64_t)seq->n_step + n_step,
              sizeof(*seq->step)) ||
        !grow((void **)&seq->page, &seq->cap_page, seq->n_page + n_page, sizeof(*seq->page)) ||
        !grow_ids(seq, seq->n_id + n_token))
        return pi_fail(err, PITH_NOMEM, "no memory for a step of %lld tokens", (long long)n_token);
    return PITH_OK;
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
        !grow((void **)&seq->page, &seq->cap_page, from->n_page, sizeof(*seq->page)) ||
        !grow_ids(seq, from->n_id)) {
        share_seq_free(seq);
        return pi_fail(err, PITH_NOMEM, "no memory for a copy of %d steps", from->n_step);
    }
    copy(seq->step, from->step, from->n_step, sizeof(*seq->step));
    copy(seq->page, from->page, from->n_page, sizeof(*seq->page));
    copy(seq->ids, from->ids, from->n_id, sizeof(*seq->ids));
    copy(seq->bag_id, from->bag_id, from->n_id, sizeof(*seq->bag_id));
    copy(seq->bag_count, from->bag_count, from->n_id, sizeof(*seq->bag_count));
    seq->n_step = from->n_step;
    seq->n_page = from->n_page;
    seq->n_id = from->n_id;
    seq->kv = kv;
    seq->begin = from->begin;
    seq->begin_waste = from->begin_waste;
    seq->waste = from->waste;
    seq->lost_waste = from->lost_waste;
    seq->waste_from = from->waste_from;
    seq->n_seen = from->n_seen;
    seq->first_change = from->first_change;
    seq->uneven = from->uneven;
    seq->seconds = from->seconds;
    *out = seq;
    return PITH_OK;
}

/* ---- forgetting ---- */

static void drop_step(struct share_seq *seq)
{
    const struct share_step *step = &seq->step[--seq->n_step];
    seq->n_id = step->ids;
    seq->n_page = step->page;
}

static void sum_waste(struct share_seq *seq)
{
    seq->waste = seq->lost_waste + seq->begin_waste;
    for (int32_t i = 0; i < seq->n_step; i++)
        if (!seq->step[i].gone)
            seq->waste += seq->step[i].waste[0] + seq->step[i].waste[1];
}

/* The step that a sequence which forgets what follows n_token tokens is in the middle of. */
static void resume(struct share_seq *seq, int32_t n_token)
{
    if (seq->begin > n_token) {
        seq->begin = SHARE_NO_STEP;
        seq->begin_waste = 0;
    }
    while (seq->n_step > 0 && seq->step[seq->n_step - 1].end > n_token) {
        const struct share_step *step = &seq->step[seq->n_step - 1];
        if (step->begin <= n_token) { /* it goes on from there */
            seq->begin = step->begin;
            seq->begin_waste = step->waste[0];
        }
        drop_step(seq);
    }
    /* Nothing is left of a step that pages were ended for: they go on, as they would have. */
    if (seq->begin == n_token && seq->begin_waste > 0) {
        kv_seq_open(seq->kv);
        seq->begin = SHARE_NO_STEP;
        seq->begin_waste = 0;
    }
}

void share_seq_truncate(struct share_seq *seq, int32_t n_token)
{
    if (n_token >= seq->n_seen)
        return;
    resume(seq, n_token);
    sum_waste(seq);
    seq->n_seen = n_token;
    seq->began = false;
    bool unchanged = seq->waste == 0 && seq->n_step == 0 && !seq->uneven;
    if (n_token <= seq->first_change || unchanged) {
        int32_t begin = n_token > 0 ? seq->begin : SHARE_NO_STEP;
        reset(seq);
        seq->begin = begin;
    }
    if (n_token == 0) {
        seq->uneven = false;
        seq->seconds = 0.0;
    }
}

void share_seq_note_round(struct share_seq *seq)
{
    for (int32_t i = seq->n_step; i > 0 && !seq->step[i - 1].gone; i--)
        seq->step[i - 1].gone = true;
    seq->uneven = true;
    seq->waste = seq->lost_waste = seq->begin_waste = 0;
    seq->waste_from = seq->n_seen;
}

void share_seq_set_foreign(struct share_seq *seq)
{
    seq->uneven = true;
    seq->first_change = 0;
}

int32_t share_seq_first_change(const struct share_seq *seq)
{
    return seq->first_change;
}

/* ---- steps ---- */

/* Tokens of steps since the last round that other pages stand for. */
static int64_t count_saved(const struct share_seq *seq)
{
    int64_t n = 0;
    for (int32_t i = seq->n_step; i > 0 && !seq->step[i - 1].gone; i--)
        n += seq->step[i - 1].tally.tokens_shared;
    return n;
}

/* Ends the lanes' last pages where that loses no more than it may; returns the places that a lane
   loses, -1: they go on. Where lanes differ it is the most that one can. */
static int32_t end_pages(struct share_seq *seq, struct kv_seq *kv, int32_t n_token)
{
    int32_t page_len = seq->share->g.page_len, runs = kv_lane_runs(kv, 0, 0), waste = 0;
    if (seq->uneven)
        waste = page_len - 1;
    else if (runs > 0)
        waste = page_len - kv_lane_run(kv, 0, 0, runs - 1).n;
    if (waste == 0)
        return 0;
    if (seq->waste + waste > share_waste_at(page_len, n_token - seq->waste_from) + count_saved(seq))
        return -1;
    kv_seq_close(kv);
    seq->waste += waste;
    /* One token less opens the page again. */
    seq->first_change = (int32_t)pi_min(seq->first_change, n_token - 1);
    return waste;
}

pith_status share_seq_begin(struct share_seq *seq, struct kv_seq *kv, int32_t n_token,
                            pith_error *err)
{
    int32_t begin = seq->begin != SHARE_NO_STEP ? seq->begin : n_token;
    seq->began = false;
    PI_TRY(reserve(seq, 1, (int64_t)n_token + 1 - begin, err));
    if (seq->begin != SHARE_NO_STEP)
        return PITH_OK;
    seq->kv = kv;
    seq->began = true;
    seq->old_waste = seq->waste;
    seq->old_first_change = seq->first_change;
    seq->begin = n_token;
    seq->begin_waste = (int32_t)pi_max(0, end_pages(seq, kv, n_token));
    return PITH_OK;
}

void share_seq_cancel(struct share_seq *seq, struct kv_seq *kv)
{
    if (!seq->began)
        return;
    seq->began = false;
    if (seq->begin_waste > 0)
        kv_seq_open(kv);
    seq->begin = SHARE_NO_STEP;
    seq->begin_waste = 0;
    seq->waste = seq->old_waste;
    seq->first_change = seq->old_first_change;
}

static void add_step(struct share_seq *seq, const int32_t *tokens, int32_t end, int32_t waste)
{
    struct share *s = seq->share;
    struct share_step *step = &seq->step[seq->n_step++];
    int32_t n = end - seq->begin;
    *step = (struct share_step){.begin = seq->begin,
                                .end = end,
                                .ids = seq->n_id,
                                .page = seq->n_page,
                                .waste = {seq->begin_waste, (int32_t)pi_max(0, waste)}};
    assert(seq->n_step <= seq->cap_step && seq->n_id + n <= seq->cap_id);
    struct share_bag bag = {seq->bag_id + step->ids, seq->bag_count + step->ids, 0};
    memcpy(seq->ids + step->ids, tokens + seq->begin, (size_t)n * sizeof(*tokens));
    seq->n_id += n;
    step->norm = share_bag_fill(&bag, tokens + seq->begin, n, s->count);
    step->n_bag = bag.n;
    share_bag_clear(&bag, s->count);
    step->n_page = share_pages_inside(seq->kv, seq->begin, end, waste >= 0, seq->page + step->page,
                                      n / s->g.page_len + 1);
    seq->n_page += step->n_page;
}

void share_seq_note(struct share_seq *seq, struct kv_seq *kv, const int32_t *tokens,
                    int32_t n_token, bool step)
{
    seq->kv = kv;
    seq->n_seen = n_token;
    seq->began = false;
    if (!step) {
        seq->begin = SHARE_NO_STEP;
        seq->lost_waste += seq->begin_waste;
        seq->begin_waste = 0;
        return;
    }
    assert(seq->begin != SHARE_NO_STEP && seq->begin < n_token);
    int32_t n = n_token - seq->begin;
    if (n < seq->share->g.page_len || !share_ends_step(seq->share->flags, tokens + seq->begin, n))
        return;
    double start = pi_time_s();
    int32_t waste = end_pages(seq, kv, n_token);
    add_step(seq, tokens, n_token, waste);
    share_step_compare(seq, seq->n_step - 1, 1.0);
    seq->begin = n_token;
    seq->begin_waste = 0;
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
    const struct kv_geometry *g = &seq->share->g;
    int64_t page_bytes = 0;
    *out = (pith_share_stats){.steps_closed = seq->n_step, .seconds = seq->seconds};
    for (int32_t i = 0; i < seq->n_step; i++) {
        const struct share_tally *t = &seq->step[i].tally;
        out->steps_compared += t->compared;
        out->steps_similar += t->similar;
        out->pages_compared += t->pages_compared;
        out->pages_early += t->pages_early;
        out->pages_shared += t->pages_shared;
        out->tokens_shared += t->tokens_shared;
    }
    for (int32_t l = 0; l < g->n_layer; l++)
        page_bytes += g->n_head * (int64_t)kv_layer_page_bytes(g, l);
    out->bytes_saved = out->pages_shared * page_bytes;
}
