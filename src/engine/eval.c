/*
 * eval.c - tokens into sequences. It splits a batch into passes of at most `chunk` tokens, and
 * reserves the memory of all of them first. When anything fails it rolls every sequence back. A
 * pass also ends where a keep round is due, and before the tokens that recall together. So both
 * come at the same tokens for any chunk and any other sequences. Invariant: after pith_batch_eval
 * each sequence has all of its item's tokens, or none. A cancelled evaluation that had evicted
 * entries, or shall keep the tokens that it read, leaves the tokens of whole passes. A pass that
 * was stopped on its way is taken back.
 */
#include "base/mem.h"
#include "base/threads.h"
#include "engine/over_ranks.h"
#include "engine/schedule.h"

static pith_status check_items(const struct pith_engine *e, const pith_batch_item *items, int32_t n,
                               pith_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const pith_batch_item *item = &items[i];
        if (item->seq == NULL || item->seq->engine != e)
            return pi_fail(err, PITH_INVALID, "item %d: its sequence is not of this engine", i);
        if (item->n_token <= 0 || item->tokens == NULL)
            return pi_fail(err, PITH_INVALID, "item %d: n_token %d: there is nothing to evaluate",
                           i, item->n_token);
        if (item->n_rest < 0 || item->n_rest > INT32_MAX - item->n_token)
            return pi_fail(err, PITH_INVALID, "item %d: n_rest: %d is not in 0..%d", i,
                           item->n_rest, INT32_MAX - item->n_token);
        if (item->targets != NULL && (item->logits != PITH_LOGITS_ALL || item->logprob == NULL))
            return pi_fail(err, PITH_INVALID,
                           "item %d: targets want PITH_LOGITS_ALL and room for logprob", i);
        for (int32_t t = 0; item->targets != NULL && t < item->n_token; t++)
            if (item->targets[t] < -1 || item->targets[t] >= e->model->hp.n_vocab)
                return pi_fail(err, PITH_INVALID, "targets: %d: id %d is not in -1..%d", t,
                               item->targets[t], e->model->hp.n_vocab - 1);
        if (item->logits == PITH_LOGITS_ALL && item->on_logits == NULL && item->targets == NULL)
            return pi_fail(err, PITH_INVALID, "item %d: all logits are wanted, on_logits is NULL",
                           i);
        for (int32_t j = 0; j < i; j++)
            if (items[j].seq == item->seq)
                return pi_fail(err, PITH_INVALID, "items %d and %d: the same sequence", j, i);
        for (int32_t t = 0; t < item->n_token; t++)
            if (item->tokens[t] < 0 || item->tokens[t] >= e->model->hp.n_vocab)
                return pi_fail(err, PITH_INVALID, "token %d: id %d is not in 0..%d", t,
                               item->tokens[t], e->model->hp.n_vocab - 1);
    }
    return PITH_OK;
}

pith_status pi_item_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    struct pith_seq *seq = item->seq;
    PI_TRY(pi_seq_grow(seq, item->n_token, err));
    PI_TRY(pi_verbs_reserve(e, item, err));
    memmove(seq->tokens + seq->n_token, item->tokens, (size_t)item->n_token * sizeof(int32_t));
    if (item->logits == PITH_LOGITS_LAST && seq->logits == NULL) {
        seq->logits = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->model->hp.n_vocab, sizeof(float));
        if (seq->logits == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a row of %d logits",
                           e->model->hp.n_vocab);
    }
    if (item->logits == PITH_LOGITS_LAST)
        pi_row_open(seq);
    return pi_memory_reserve(&seq->memory, pi_item_until_round(e, item, 0, item->n_token), err);
}

/* Memory for everything the batch will write, so that no pass can fail. A sequence's entries
   until its first keep round are reserved; the later ones are counted (hook `reserve_batch`). */
static pith_status reserve(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                           pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; status == PITH_OK && i < n; i++)
        status = pi_item_reserve(e, &items[i], err);
    if (status == PITH_OK)
        status = pi_verbs_reserve_batch(e, items, n, err);
    return pi_over_ranks_agree(e, status, err);
}

/* Leaves the rows on the device, each with its sequence, where it finds their best tokens. False:
   it does not, or a callback looks at a row. */
static bool leave_rows(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    struct pi_at keep[PI_PASS_LOGITS];
    struct pi_best *best[PI_PASS_LOGITS];
    bool able = pi_pass_finds_best(e->pass);
    for (int32_t i = 0; able && i < n; i++) {
        struct pi_row *row = items[e->batch.row_item[i]].seq->row;
        able = items[e->batch.row_item[i]].logits == PITH_LOGITS_LAST && row != NULL;
        keep[i] = able ? row->at : (struct pi_at){0};
        best[i] = able ? &row->best : NULL;
    }
    if (!able)
        return false;
    pi_pass_best(e->pass, e->batch.rows, n, e->batch.logits, keep, best);
    for (int32_t i = 0; i < n; i++) {
        struct pith_seq *seq = items[e->batch.row_item[i]].seq;
        seq->has_logits = seq->row->there = true;
    }
    return true;
}

/* The rows of flush_logits, of which some items want their targets' probabilities. */
struct wanted {
    const struct pith_engine *e;
    const pith_batch_item *items;
};

static void find_probabilities(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct wanted *w = ctx;
    const struct pi_batch *b = &w->e->batch;
    int32_t n_vocab = w->e->model->hp.n_vocab;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const pith_batch_item *item = &w->items[b->row_item[i]];
        if (item->targets == NULL)
            continue;
        int32_t t = b->row_pos[i] - item->seq->n_token;
        item->logprob[t] =
            pith_logits_logprob(b->logits + (size_t)i * (size_t)n_vocab, n_vocab, item->targets[t],
                                item->best != NULL ? &item->best[t] : NULL);
    }
}

/* Makes the logits of the n wanted rows and hands them to their items. CANCELLED: a callback stops
   the batch. NOMEM, INTERNAL: the device failed. */
static pith_status flush_logits(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                pith_error *err)
{
    size_t n_vocab = (size_t)e->model->hp.n_vocab;
    if (n == 0 || leave_rows(e, items, n))
        return pi_pass_check(e->pass, err);
    pi_pass_logits(e->pass, e->batch.rows, n, e->batch.logits);
    PI_TRY(pi_pass_check(e->pass, err));
    pi_parallel_items(e->n_thread, n, find_probabilities, &(struct wanted){e, items});
    for (int32_t i = 0; i < n; i++) {
        const pith_batch_item *item = &items[e->batch.row_item[i]];
        const float *row = e->batch.logits + (size_t)i * n_vocab;
        if (item->logits == PITH_LOGITS_LAST)
            pi_seq_set_logits(item->seq, row);
        else if (item->targets == NULL &&
                 !item->on_logits(item->user, item->seq, e->batch.row_pos[i], row))
            return pi_fail(err, PITH_CANCELLED, "on_logits stopped the evaluation");
    }
    return PITH_OK;
}

/* Collects the rows of the running pass that want logits, a few at a time over all sequences. So
   the output matrix is read once for them. */
static pith_status emit_logits(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass,
                               pith_error *err)
{
    int32_t row = 0, n = 0;
    int32_t max = pi_batch_rows(e->model, pi_pass_device(e->pass)->in_host, e->chunk);
    for (int32_t p = 0; p < n_pass; p++) {
        const struct pi_pass_item *part = &e->batch.part[p];
        const pith_batch_item *item = &items[e->batch.item_of[p]];
        bool ends = e->batch.state[e->batch.item_of[p]].n_done == item->n_token;
        for (int32_t t = 0; t < part->n_tok; t++, row++) {
            bool last = item->logits == PITH_LOGITS_LAST && ends && t == part->n_tok - 1;
            if (item->logits != PITH_LOGITS_ALL && !last)
                continue;
            if (item->targets != NULL && item->targets[part->pos0 + t - item->seq->n_token] < 0)
                continue;
            e->batch.rows[n] = row;
            e->batch.row_item[n] = e->batch.item_of[p];
            e->batch.row_pos[n++] = part->pos0 + t;
            if (n == max) {
                PI_TRY(flush_logits(e, items, n, err));
                n = 0;
            }
        }
    }
    return flush_logits(e, items, n, err);
}

/* Tokens of an item until its state is to be kept, with n_done of its tokens in. */
static int32_t until_state(const pith_batch_item *item, int32_t n_done)
{
    int32_t n = item->seq->n_token;
    return pi_memory_until_state(&item->seq->memory, n + n_done, n + item->n_token);
}

/* After a pass with a part of the item. A draft may be taken back, and then what windows passed
   over on its account is needed again: it stays until that is known (ahead.c). */
static void settle(const pith_batch_item *item, const struct pi_pass_item *part)
{
    struct pi_memory *memory = &item->seq->memory;
    if (item->seq->ahead.n_draft > 0)
        return;
    pi_memory_note(memory, part->pos0 + part->n_tok, item->seq->n_token + item->n_token);
    pi_memory_settle(memory, true);
}

/* Plans an item's part of the pass, which has room left; plan->n_take is 0 where it gives
   nothing. */
static void plan_item(struct pith_engine *e, const pith_batch_item *item, int32_t n_done,
                      struct pi_item_plan *plan)
{
    plan->n_done = n_done;
    plan->left = item->n_token - n_done;
    plan->until = pi_item_until_round(e, item, n_done, plan->left);
    pi_verbs_plan(e, item, plan);
    if (!plan->together && !plan->chunked) /* what belongs together is no place to stop */
        plan->until = (int32_t)pi_min(plan->until, until_state(item, n_done));
    if (!plan->chunked)
        plan->n_take = (int32_t)pi_min(pi_min(plan->room, plan->left), plan->until);
    if (plan->together && plan->n_take < plan->until) /* what belongs together does not fit */
        plan->n_take = 0;
}

/* Fills the next pass: each item in turn gives what still fits, up to its next keep round.
   Returns the number of parts. *stays: it overwrites entries or chooses guests, and cannot be
   taken back. */
static int32_t fill_pass(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                         int32_t *n_tok, bool *stays)
{
    int32_t n_pass = 0, room = e->chunk;
    *stays = false;
    for (int32_t i = 0; i < n && room > 0; i++) {
        const pith_batch_item *item = &items[i];
        struct pi_item_state *state = &e->batch.state[i];
        struct pi_item_plan plan = {.room = room, .index = n_pass};
        if (state->n_done == item->n_token)
            continue;
        plan_item(e, item, state->n_done, &plan);
        if (plan.n_take == 0)
            continue;
        pi_verbs_take(e, item, state, &plan);
        *stays = *stays || plan.stays;
        e->batch.part[n_pass] = (struct pi_pass_item){.kv = item->seq->memory.kv,
                                                      .tokens = item->tokens + state->n_done,
                                                      .n_tok = plan.n_take,
                                                      .pos0 = item->seq->n_token + state->n_done,
                                                      .owner = item->seq,
                                                      .watched = plan.watched,
                                                      .n_read = plan.n_read,
                                                      .guests = plan.guests,
                                                      .recall = plan.recall};
        e->batch.item_of[n_pass++] = i;
        state->n_done += plan.n_take;
        room -= plan.n_take;
    }
    *n_tok = e->chunk - room;
    return n_pass;
}

/* Whether the caller is told how far the evaluation is: not of steps and drafts, which are
   short. */
static bool is_told(const struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    bool reads = false;
    for (int32_t i = 0; i < n && e->advance.fn != NULL; i++)
        reads = reads || (items[i].n_token > 1 && items[i].seq->ahead.n_draft == 0);
    return reads;
}

/* Whether an evaluation that is cancelled now leaves the sequence with the tokens it has read. */
static bool keeps_passes(const struct pith_engine *e, const pith_batch_item *item,
                         const struct pi_item_state *state)
{
    struct pith_seq *seq = item->seq;
    return state->evicted || (e->batch.keeps_read && state->n_done > 0) ||
           pi_memory_reach(&seq->memory, seq->n_token) < seq->n_token; /* no way back either */
}

/* Whether the pass that comes next can be taken back. Where that leads to the beginning of the
   evaluation, the copies of its beginning serve. Else copies of this moment do, which one item
   has room for. */
static bool can_take_back(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    bool has_state = kv_cache_geometry(e->kv)->state_bytes > 0;
    if (pi_shape_is_part(&e->model->hp)) /* its ranks are in different passes */
        return false;
    if (n == 1)
        return pi_advance_save_state(e, items[0].seq) &&
               (!keeps_passes(e, &items[0], &e->batch.state[0]) ||
                pi_verbs_copy(e, items, 1, NULL) == PITH_OK);
    for (int32_t i = 0; i < n; i++)
        if (has_state || items[i].seq->ahead.n_draft > 0 ||
            keeps_passes(e, &items[i], &e->batch.state[i]))
            return false;
    return true;
}

/* The pass with n_pass parts was stopped: the items go back to before it when they are finished. */
static void take_back(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass)
{
    for (int32_t p = 0; p < n_pass; p++) {
        int32_t i = e->batch.item_of[p];
        e->batch.state[i].n_done -= e->batch.part[p].n_tok;
        e->batch.state[i].undone = true;
        pi_advance_restore_state(e, items[i].seq);
    }
}

/* Rounds of the items that the last pass had a part of. */
static pith_status round_items(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass,
                               pith_error *err)
{
    for (int32_t p = 0; p < n_pass; p++) {
        int32_t i = e->batch.item_of[p];
        PI_TRY(pi_verbs_round(e, &items[i], &e->batch.state[i], err));
    }
    return PITH_OK;
}

/* After a pass: its rows of logits, and the rounds that are due. A round that runs passes of its
   own comes after the rows. */
static pith_status finish_pass(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass,
                               pith_error *err)
{
    bool late = pi_engine_rounds_run_passes(e);
    pi_keep_learn_victims(e, n_pass);
    for (int32_t p = 0; p < n_pass; p++) {
        const pith_batch_item *item = &items[e->batch.item_of[p]];
        settle(item, &e->batch.part[p]);
        pi_verbs_passed(item, &e->batch.part[p]);
    }
    if (keep_stopped(e->keep.handle))
        return pi_fail(err, PITH_CANCELLED, "the keep policy stopped the evaluation");
    if (read_stopped(e->read))
        return pi_fail(err, PITH_CANCELLED, "the read policy stopped the evaluation");
    if (!late)
        PI_TRY(round_items(e, items, n_pass, err));
    if (e->tap.stopped)
        return pi_fail(err, PITH_CANCELLED, "the tap stopped the evaluation");
    PI_TRY(emit_logits(e, items, n_pass, err));
    return late ? round_items(e, items, n_pass, err) : PITH_OK;
}

static pith_status run_passes(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                              pith_progress_fn *progress, void *user, pith_error *err)
{
    int64_t total = 0, so_far = 0;
    bool told = is_told(e, items, n);
    for (int32_t i = 0; i < n; i++) { /* a loaded sequence may hold more than the budget */
        total += items[i].n_token;
        PI_TRY(pi_verbs_round(e, &items[i], &e->batch.state[i], err));
    }
    pi_advance_begin(e, total, told);
    while (so_far < total) {
        int32_t n_tok;
        bool stays, back = told && can_take_back(e, items, n);
        int32_t n_pass = fill_pass(e, items, n, &n_tok, &stays);
        pi_advance_pass(e, n_tok, back && !stays);
        if (!pi_pass_run(e->pass, e->batch.part, n_pass)) {
            take_back(e, items, n_pass);
            return pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled");
        }
        so_far += n_tok;
        pith_status status = finish_pass(e, items, n_pass, err);
        if (status == PITH_NOMEM || status == PITH_INTERNAL) /* it may not have its entries */
            take_back(e, items, n_pass);
        PI_TRY(status);
        PI_TRY(pi_advance_passed(e, err));
        if (progress != NULL && !progress(user, (double)so_far / (double)total))
            return pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled");
    }
    return PITH_OK;
}

/* Makes what was evaluated a part of the sequence, or forgets it. An item that was not begun is
   as it was: it still knows which entries to overwrite, which a truncated sequence forgets. */
static void finish_item(const pith_batch_item *item, struct pi_item_state *state, bool ok)
{
    struct pith_seq *seq = item->seq;
    state->stays = ok || keeps_passes(seq->engine, item, state);
    state->cut = state->undone || (!state->stays && state->n_done > 0);
    if (state->stays) {
        seq->n_token += state->n_done;
        seq->has_logits = ok && item->logits == PITH_LOGITS_LAST;
    } else if (state->cut) {
        seq->has_logits = false;
    }
    if (state->cut)
        pi_memory_truncate(&seq->memory, seq->n_token);
    pi_verbs_after(item, state);
    if (!ok || seq->ahead.n_draft == 0)
        pi_memory_settle(&seq->memory, false);
    if (!ok)
        kv_seq_trim(seq->memory.kv);
}

/* Rows that are always computed together, and bytes beyond which no more are. */
#define ROWS_LEAST 16
#define ROWS_BYTES ((int64_t)32 << 20)

int32_t pi_batch_rows(const struct pith_model *model, bool in_host, int32_t chunk)
{
    int64_t row = (int64_t)model->hp.n_vocab * (int64_t)sizeof(float);
    int64_t fit = ROWS_BYTES / pi_max(row, 1); /* a file may have no vocabulary */
    int64_t n = in_host ? pi_min(PI_PASS_LOGITS, pi_max(ROWS_LEAST, fit)) : PI_PASS_LOGITS;
    return (int32_t)pi_min(n, chunk);
}

pith_status pi_batch_create(struct pith_engine *e, pith_error *err)
{
    struct pi_batch *b = &e->batch;
    size_t n = (size_t)e->chunk, n_vocab = (size_t)e->model->hp.n_vocab;
    b->part = pi_mem_alloc_n(PI_MEM_SCRATCH, n, sizeof(*b->part));
    b->item_of = pi_mem_alloc_n(PI_MEM_SCRATCH, n, sizeof(*b->item_of));
    size_t n_row = (size_t)pi_batch_rows(e->model, pi_pass_device(e->pass)->in_host, e->chunk);
    b->logits = pi_mem_alloc_n(PI_MEM_SCRATCH, n_row * n_vocab, sizeof(float));
    return b->part != NULL && b->item_of != NULL && b->logits != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for the engine's scratch");
}

void pi_batch_free(struct pith_engine *e)
{
    struct pi_batch *b = &e->batch;
    pi_mem_free(b->logits);
    pi_mem_free(b->state);
    pi_mem_free(b->item_of);
    pi_mem_free(b->part);
    *b = (struct pi_batch){0};
}

/* Room for what the batch does with each of its items. */
static pith_status start_items(struct pith_engine *e, int32_t n_item, pith_error *err)
{
    if (n_item > e->batch.n_state) {
        struct pi_item_state *grown =
            pi_mem_grow(PI_MEM_SCRATCH, e->batch.state, (size_t)n_item, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a batch of %d items", n_item);
        e->batch.state = grown;
        e->batch.n_state = n_item;
    }
    memset(e->batch.state, 0, (size_t)n_item * sizeof(*e->batch.state));
    return PITH_OK;
}

/* Whether a callback is asked on the way, which can stop the evaluation. Nothing else can. So only
   then is copied what the policy remembers: it can be megabytes, of which a step changes little. A
   draft's rows are copied without asking. */
static bool can_stop(const struct pith_engine *e, const pith_batch_item *items, int32_t n_item,
                     pith_progress_fn *progress)
{
    bool asked = progress != NULL || e->tap.fn != NULL || is_told(e, items, n_item) ||
                 keep_may_stop(e->keep.handle) || read_may_stop(e->read);
    for (int32_t i = 0; i < n_item; i++)
        asked = asked || (items[i].logits == PITH_LOGITS_ALL && items[i].targets == NULL &&
                          items[i].seq->ahead.n_draft == 0);
    return asked;
}

pith_status pi_batch_eval(struct pith_engine *e, const pith_batch_item *items, int32_t n_item,
                          pith_progress_fn *progress, void *user, pith_error *err)
{
    PI_TRY(check_items(e, items, n_item, err));
    PI_TRY(start_items(e, n_item, err));
    for (int32_t i = 0; i < n_item; i++)
        pi_verbs_note(items[i].seq, &e->batch.state[i]);
    e->tap.stopped = false;
    if (can_stop(e, items, n_item, progress))
        PI_TRY(pi_verbs_copy(e, items, n_item, err));
    pith_status status = reserve(e, items, n_item, err);
    if (status == PITH_OK)
        status = run_passes(e, items, n_item, progress, user, err);
    pi_advance_end(e);
    for (int32_t i = 0; i < n_item; i++)
        finish_item(&items[i], &e->batch.state[i], status == PITH_OK);
    return status;
}

pith_status pith_seq_eval(pith_seq *seq, const int32_t *tokens, int32_t n_token, pith_error *err)
{
    pith_batch_item item = {.seq = seq, .tokens = tokens, .n_token = n_token};
    return pith_batch_eval(seq->engine, &item, 1, NULL, NULL, err);
}

pith_status pi_seq_sync(struct pith_seq *seq, const int32_t *tokens, int32_t n_token,
                        pith_progress_fn *progress, void *user, pith_error *err)
{
    if (n_token <= 0 || tokens == NULL)
        return pi_fail(err, PITH_INVALID, "n_token: %d: a sequence cannot be synced to nothing",
                       n_token);
    int32_t same = pi_seq_reusable(seq, tokens, n_token);
    if (same == n_token)
        return PITH_OK;
    bool parts = same < seq->n_token;
    PI_TRY(pith_seq_truncate(seq, same, err));
    if (parts) /* a fresh sequence reads all of it as a prompt */
        pi_verbs_as_prompt(seq);
    pith_batch_item item = {.seq = seq, .tokens = tokens + same, .n_token = n_token - same};
    PI_TRY(pith_batch_eval(seq->engine, &item, 1, progress, user, err));
    if (parts && n_token > 1)
        pi_verbs_as_prompt(seq);
    return PITH_OK;
}
