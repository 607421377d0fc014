/*
 * repeat.c - lets the model repeat the text that it has read, for a keep policy that ranks entries
 * by their use in that (KEEP_NEED_REPEAT). When a prompt is in, before its round, the tokens whose
 * entries have no mark yet are evaluated once more. A fork that is thrown away does that behind a
 * request to repeat them. The most that its queries give to the sequence's entries is shown to the
 * policy. Long texts are repeated in parts, each by a fork of its own, behind the last tokens of
 * the part before. It must not know how a policy uses that.
 *
 * Invariant: the sequence changes only by the marks that the policy writes, at the end, when
 * nothing can fail any more. Maxima have no order, so that they depend neither on the chunk nor on
 * threads.
 */
#include <math.h>

#include "base/mem.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "kv/kv.h"
#include "policy/keep/learn/importance_prompt.h"

#define LEAD 8 /* tokens of the part before */

struct pi_repeat {
    struct importance_prompt prompt;
    bool scaled;     /* weights are divided by the length of the layer's input at their query */
    int32_t *tokens; /* [KEEP_REPEAT_MOST] of a part with what leads to it */
    float *inverse; /* [chunk] 1 / length of the input of the running layer, of the pass's tokens */
    int32_t *len;   /* [n_lane] entries of the sequence */
    size_t *first;  /* [n_lane + 1] of a lane's rows in most */
    float *most;    /* [n_lane][n_group][len] the largest weight, scaled */
    size_t cap;     /* floats of most */
    float *scratch; /* [n_worker][page_len * dim_v] of the policy's calls */
    int32_t at;     /* tokens of the part before the running pass */
    int32_t n_lead; /* and those whose queries do not count */
    const struct keep_view *view; /* of the sequence, while the policy is shown */
};

/* ---- what the pass shows ---- */

static size_t lane_of(const struct pith_engine *e, int32_t layer, int32_t head)
{
    return (size_t)layer * (size_t)e->model->hp.n_head_kv + (size_t)head;
}

/* All lanes of an item have the same input: the first one's is noted, before anything attends. */
static void note_inputs(void *user, const struct pi_pass_written *lanes, int32_t n_lane)
{
    const struct pith_engine *e = user;
    int32_t n = e->model->hp.n_embd;
    for (const struct pi_pass_written *w = lanes; w < lanes + n_lane; w++)
        for (int32_t t = 0; w->item->owner == NULL && w->head == 0 && t < w->item->n_tok; t++) {
            const float *h = w->h + (size_t)t * (size_t)n;
            double sum = 0.0;
            for (int32_t i = 0; i < n; i++)
                sum += (double)h[i] * (double)h[i];
            e->keep.repeat->inverse[t] = (float)(1.0 / sqrt(sum > 0.0 ? sum : 1.0));
        }
}

/* The largest weight of each query head counts, of queries behind the part that leads there. */
static void plan_most(void *user, struct pi_pass_watched *lanes, int32_t n)
{
    const struct pith_engine *e = user;
    const struct pi_repeat *r = e->keep.repeat;
    for (struct pi_pass_watched *l = lanes; l < lanes + n; l++) {
        size_t lane = lane_of(e, l->layer, l->head);
        l->n_note = r->len[lane] > 0;
        l->note[0] = (struct kv_note){.word = KV_NOTE_MOST,
                                      .group = KV_GROUP_EACH,
                                      .from = l->item->pos0 + r->n_lead - r->at,
                                      .n = r->len[lane],
                                      .to = r->most + r->first[lane],
                                      .stride = (size_t)r->len[lane],
                                      .scale = r->scaled ? r->inverse : NULL,
                                      .pos0 = l->item->pos0};
    }
}

/* ---- the engine's part ---- */

static pith_status make(struct pith_engine *e, struct pi_repeat *r, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    size_t n_lane = (size_t)g->n_layer * (size_t)g->n_head;
    PI_TRY(importance_prompt_create(e->model, &r->prompt, err));
    if (r->prompt.n_middle + LEAD > KEEP_REPEAT_AROUND)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "the model's chat template takes %d tokens to ask for a repetition, more "
                       "than %d",
                       r->prompt.n_middle, KEEP_REPEAT_AROUND - LEAD);
    r->tokens = pi_mem_alloc_n(PI_MEM_SCRATCH, KEEP_REPEAT_MOST, sizeof(int32_t));
    r->inverse = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)e->chunk, sizeof(float));
    r->len = pi_mem_alloc_n(PI_MEM_SCRATCH, n_lane, sizeof(*r->len));
    r->first = pi_mem_alloc_n(PI_MEM_SCRATCH, n_lane + 1, sizeof(*r->first));
    r->scratch = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)e->n_worker,
                                (size_t)g->page_len * (size_t)g->dim_v * sizeof(float));
    return r->tokens != NULL && r->inverse != NULL && r->len != NULL && r->first != NULL &&
                   r->scratch != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for the repetition of a text");
}

pith_status pi_keep_start_repeat(struct pith_engine *e, pith_error *err)
{
    const struct pi_pass_watch watch = {.user = e, .plan = plan_most, .n_thread = e->n_worker};
    const struct pi_pass_writer writer = {.user = e, .written = note_inputs};
    uint32_t needs = e->traits.needs;
    if ((needs & KEEP_NEED_REPEAT) == 0)
        return PITH_OK;
    e->keep.repeat = pi_mem_alloc(PI_MEM_OTHER, sizeof(*e->keep.repeat));
    if (e->keep.repeat == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the repetition of a text");
    e->keep.repeat->scaled = (needs & KEEP_NEED_REPEAT_SCALED) != 0;
    PI_TRY(make(e, e->keep.repeat, err));
    PI_TRY(pi_pass_set_watch(e->pass, &watch, err));
    return e->keep.repeat->scaled ? pi_pass_set_writer(e->pass, &writer, err) : PITH_OK;
}

void pi_keep_stop_repeat(struct pith_engine *e)
{
    struct pi_repeat *r = e->keep.repeat;
    if (r == NULL)
        return;
    importance_prompt_free(&r->prompt);
    pi_mem_free(r->tokens);
    pi_mem_free(r->inverse);
    pi_mem_free(r->len);
    pi_mem_free(r->first);
    pi_mem_free(r->most);
    pi_mem_free(r->scratch);
    pi_mem_free(r);
    e->keep.repeat = NULL;
}

int64_t pi_item_repeat_bytes(const struct pith_engine *e, const pith_batch_item *item)
{
    int64_t n = (int64_t)item->seq->n_token + item->n_token;
    if (e->keep.repeat == NULL || !keep_waits(e->keep.handle, item->n_token) ||
        n <= keep_own_budget(&e->policies.keep, pi_seq_point(item->seq, item->n_token)))
        return 0;
    return keep_repeat_bytes(kv_cache_geometry(e->kv), n);
}

/* ---- a repetition ---- */

/* The first position whose entry some lane has no mark of; n_token: there is none. */
static int32_t first_unjudged(const struct pith_engine *e, const struct pith_seq *seq,
                              int32_t n_token)
{
    const struct kv_geometry *g = &e->lanes;
    int32_t first = n_token;
    for (int32_t i = 0; i < g->n_layer * g->n_head; i++) {
        int32_t l = i / g->n_head, h = i % g->n_head, n = kv_lane_len(seq->memory.kv, l, h);
        const float *mark = n > 0 ? kv_lane_read_marks(seq->memory.kv, l, h, 0) : NULL;
        for (int32_t j = 0; j < n; j++)
            if (mark[j] == 0.0f)
                first = (int32_t)pi_min(first, kv_lane_pos(seq->memory.kv, l, h, j));
    }
    return first;
}

/* Room for the maxima over the sequence's entries, all 0. */
static pith_status clear_most(const struct pith_engine *e, const struct pith_seq *seq,
                              pith_error *err)
{
    const struct kv_geometry *g = &e->lanes;
    struct pi_repeat *r = e->keep.repeat;
    size_t n_group = (size_t)(e->model->hp.n_head / e->model->hp.n_head_kv), used = 0;
    size_t n_lane = (size_t)g->n_layer * (size_t)g->n_head;
    for (size_t i = 0; i < n_lane; i++) {
        r->len[i] = kv_lane_len(seq->memory.kv, (int32_t)i / g->n_head, (int32_t)i % g->n_head);
        r->first[i] = used;
        used += (size_t)r->len[i] * n_group;
    }
    r->first[n_lane] = used;
    if (used > r->cap) {
        float *most = pi_mem_alloc_n(PI_MEM_SCRATCH, used, sizeof(*most));
        if (most == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for what repeating looks at in %zu entries",
                           used);
        pi_mem_free(r->most);
        r->most = most;
        r->cap = used;
    }
    memset(r->most, 0, used * sizeof(*r->most));
    return PITH_OK;
}

int64_t pi_keep_repeat_bytes(const struct pith_engine *e)
{
    return e->keep.repeat != NULL ? (int64_t)pi_mem_size(e->keep.repeat->most) : 0;
}

/* Evaluates n tokens behind n_token ones in a fork. */
static pith_status read_part(struct pith_engine *e, const struct pith_seq *seq, int32_t n_token,
                             int32_t n, pith_error *err)
{
    struct pi_repeat *r = e->keep.repeat;
    struct kv_seq *fork = NULL;
    const size_t n_lane = lane_of(e, e->lanes.n_layer, 0);
    int64_t longest = 0;
    for (size_t i = 0; i < n_lane; i++)
        longest = pi_max(longest, r->len[i]);
    PI_TRY(pi_pass_reserve_watch(e->pass, longest + n, err));
    PI_TRY(kv_seq_fork(seq->memory.kv, &fork, err));
    pith_status status = kv_seq_reserve(fork, n, err);
    for (r->at = 0; status == PITH_OK && r->at < n; r->at += e->chunk) {
        const struct pi_pass_item item = {.kv = fork,
                                          .tokens = r->tokens + r->at,
                                          .n_tok = (int32_t)pi_min(e->chunk, n - r->at),
                                          .pos0 = n_token + r->at,
                                          .watched = true};
        e->advance.can_stop = true; /* the fork is thrown away */
        if (!pi_pass_run(e->pass, &item, 1))
            status = pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled");
        else
            status = pi_pass_check(e->pass, err);
        kv_seq_slide(fork, true);
    }
    kv_seq_free(fork);
    return status;
}

/* Repeats tokens [begin, end) of the sequence's, of which those before begin may lead to them. */
static pith_status repeat_part(struct pith_engine *e, const struct pith_seq *seq, int32_t n_token,
                               int32_t begin, int32_t end, int32_t lead, pith_error *err)
{
    struct pi_repeat *r = e->keep.repeat;
    size_t n_middle = (size_t)r->prompt.n_middle, n = (size_t)(end - begin + lead);
    memcpy(r->tokens, r->prompt.middle, n_middle * sizeof(int32_t));
    memcpy(r->tokens + n_middle, seq->tokens + begin - lead, n * sizeof(int32_t));
    r->n_lead = r->prompt.n_middle + lead;
    return read_part(e, seq, n_token, (int32_t)(n_middle + n), err);
}

/* Shows the policy what was gathered, lane by lane. */
static void show_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct pith_engine *e = ctx;
    const struct kv_geometry *g = &e->lanes;
    const struct pi_repeat *r = e->keep.repeat;
    for (int64_t i = begin; i < end; i++) {
        const struct keep_repeat lane = {
            .layer = (int32_t)(i / g->n_head),
            .head = (int32_t)(i % g->n_head),
            .n = r->len[i],
            .n_group = e->model->hp.n_head / e->model->hp.n_head_kv,
            .most = r->most + r->first[i],
            .scratch = r->scratch + (size_t)thread * (size_t)g->page_len * (size_t)g->dim_v,
        };
        if (lane.n > 0)
            keep_repeated(e->keep.handle, r->view, &lane);
    }
}

pith_status pi_seq_repeat(struct pith_seq *seq, int32_t n_token, pith_error *err)
{
    struct pith_engine *e = seq->engine;
    struct pi_repeat *r = e->keep.repeat;
    if (r == NULL)
        return PITH_OK;
    int32_t begin = first_unjudged(e, seq, n_token);
    if (begin == 0 && seq->tokens[0] == pi_vocab_bos(e->model->vocab))
        begin = 1;
    if (begin >= n_token)
        return PITH_OK;
    PI_TRY(clear_most(e, seq, err));
    for (int32_t at = begin; at < n_token; at += KEEP_REPEAT_PART) {
        int32_t end = (int32_t)pi_min(n_token, (int64_t)at + KEEP_REPEAT_PART);
        int32_t lead = at > begin ? (int32_t)pi_min(LEAD, at - begin) : 0;
        PI_TRY(repeat_part(e, seq, n_token, at, end, lead, err));
    }
    struct keep_view view = pi_seq_view(seq, n_token);
    r->view = &view;
    pi_parallel_items(e->n_worker, (int64_t)lane_of(e, e->lanes.n_layer, 0), show_lanes, e);
    r->view = NULL;
    return PITH_OK;
}
