/*
 * eval.c - tokens into sequences: splits a batch into passes of at most `chunk` tokens, reserves
 * the memory of all of them first, and rolls every sequence back when anything fails. A pass also
 * ends where a keep round is due, and before the tokens that recall together, so that both come at
 * the same tokens whatever the chunk and the company. Invariant: after pith_batch_eval each
 * sequence has all of its item's tokens, or none; or, where a cancelled evaluation had evicted
 * entries already or shall keep what it read, those of the passes that were done. A pass that was
 * stopped on its way is taken back.
 */
#include "base/mem.h"
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
        if (item->logits == PITH_LOGITS_ALL && item->on_logits == NULL)
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

/* Whether an item is a step of a sequence whose entries are overwritten: it depends on the call
   alone, not on the chunk that its token came in. */
static bool is_step(const struct pith_engine *e, const pith_batch_item *item)
{
    return item->n_token == 1 && e->traits.overwrites;
}

/* Tokens of an item that are appended until its next keep round, at most n. */
static int32_t until_round(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done,
                           int32_t n)
{
    struct keep_point at = pi_seq_point(item->seq, n_done);
    if (!e->traits.evicts)
        return n;
    if (keep_waits(e->keep, item->n_token))
        return n;
    if (is_step(e, item))
        return n_done == 0 && keep_step_due(e->keep, item->seq->memory.kv, at) ? 0 : n;
    return keep_room(e->keep, item->seq->memory.kv, at, n);
}

pith_status pi_item_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    struct pith_seq *seq = item->seq;
    PI_TRY(pi_seq_grow(seq, item->n_token, err));
    PI_TRY(pi_seq_begin_share(seq, item, err));
    memmove(seq->tokens + seq->n_token, item->tokens, (size_t)item->n_token * sizeof(int32_t));
    if (item->logits == PITH_LOGITS_LAST && seq->logits == NULL) {
        seq->logits = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->model->hp.n_vocab, sizeof(float));
        if (seq->logits == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a row of %d logits",
                           e->model->hp.n_vocab);
    }
    if (e->traits.evicts)
        PI_TRY(keep_prepare(e->keep, seq->memory.kv, pi_seq_point(seq, 0), item->n_token, err));
    PI_TRY(pi_engine_reserve_guests(e, item, err));
    return pi_memory_reserve(&seq->memory, until_round(e, item, 0, item->n_token), err);
}

int64_t pi_items_lack(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    int64_t lacks = 0, repeat = 0;
    if (!e->traits.evicts)
        return 0;
    for (int32_t i = 0; i < n; i++) {
        struct kv_seq *kv = items[i].seq->memory.kv;
        lacks += keep_lacks(e->keep, kv, pi_seq_point(items[i].seq, 0), items[i].n_token);
        lacks += kv_seq_window_lacks(kv, items[i].n_token);
    }
    for (int32_t i = 0; i < n; i++)
        kv_seq_clear_charges(items[i].seq->memory.kv);
    for (int32_t i = 0; i < n; i++) /* one after the other */
        repeat = pi_max(repeat, pi_item_repeat_bytes(e, &items[i]));
    return lacks + repeat;
}

/* Memory for everything the batch will write, so that no pass can fail. What a sequence holds until
   its first keep round is reserved; of what it takes later no more must be free than it gives back
   itself, and nobody else takes pages meanwhile, so that counting is enough. */
static pith_status reserve(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                           pith_error *err)
{
    for (int32_t i = 0; i < n; i++)
        PI_TRY(pi_item_reserve(e, &items[i], err));
    PI_TRY(pi_engine_reserve_read(e, items, n, err));
    if (!e->traits.evicts)
        return PITH_OK;
    int64_t lacks = pi_items_lack(e, items, n), n_free = kv_seq_free_bytes(items[0].seq->memory.kv);
    if (lacks > n_free)
        return pi_fail(err, PITH_KV_FULL,
                       "keep rounds of this evaluation can take %lld more bytes of pages, and %lld "
                       "are free",
                       (long long)lacks, (long long)n_free);
    return pi_engine_reserve_watch(e, items, n, err);
}

/* Whether a keep round of an item is due, with n_done of its tokens in. */
static bool round_due(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done)
{
    int32_t left = item->n_token - n_done;
    struct keep_point at = pi_seq_point(item->seq, n_done);
    if (keep_waits(e->keep, item->n_token))
        return left == 0 && keep_over_budget(e->keep, item->seq->memory.kv, at);
    if (is_step(e, item))
        return left > 0 && keep_step_due(e->keep, item->seq->memory.kv, at);
    return pi_engine_rounds_early(e, item, n_done) ||
           keep_due(e->keep, item->seq->memory.kv, at, left);
}

/* The keep round of item i if one is due, and room until the next. Its pages were counted. */
static pith_status keep_item(struct pith_engine *e, const pith_batch_item *items, int32_t i,
                             pith_error *err)
{
    struct pith_seq *seq = items[i].seq;
    struct pi_item_state *state = &e->state[i];
    int32_t left = items[i].n_token - state->n_done;
    if (!e->traits.evicts || !round_due(e, &items[i], state->n_done))
        return PITH_OK;
    if (left == 0 && keep_waits(e->keep, items[i].n_token)) {
        pith_status status = pi_seq_repeat(seq, seq->n_token + state->n_done, err);
        e->keeps_read = e->keeps_read && status == PITH_OK; /* what nobody judged is read again */
        PI_TRY(status);
    }
    state->evicted = true;
    PI_TRY(pi_seq_round(seq, seq->n_token + state->n_done, err));
    /* Before a turn's last tokens nobody asks: their own queries will. */
    if (left + items[i].n_rest == 0 || pi_item_tokens(&items[i]) == 1)
        pi_seq_ask_again(seq);
    return pi_memory_reserve(&seq->memory, until_round(e, &items[i], state->n_done, left), err);
}

/* Makes the logits of the n wanted rows and hands them to their items; false when a callback stops
   the batch. */
static bool flush_logits(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    size_t n_vocab = (size_t)e->model->hp.n_vocab;
    if (n == 0)
        return true;
    pi_pass_logits(e->pass, e->rows, n, e->logits);
    for (int32_t i = 0; i < n; i++) {
        const pith_batch_item *item = &items[e->row_item[i]];
        const float *row = e->logits + (size_t)i * n_vocab;
        if (item->logits == PITH_LOGITS_LAST) {
            memcpy(item->seq->logits, row, n_vocab * sizeof(*row));
            item->seq->has_logits = true;
        } else if (!item->on_logits(item->user, item->seq, e->row_pos[i], row)) {
            return false;
        }
    }
    return true;
}

/* Collects the rows of the running pass that want logits, a few at a time over all sequences, so
   that the output matrix is read once for them. */
static bool emit_logits(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass)
{
    int32_t row = 0, n = 0;
    int32_t max = (int32_t)pi_min(PI_LOGITS_ROWS, e->chunk);
    for (int32_t p = 0; p < n_pass; p++) {
        const struct pi_pass_item *part = &e->pass_item[p];
        const pith_batch_item *item = &items[e->batch_of[p]];
        bool ends = e->state[e->batch_of[p]].n_done == item->n_token;
        for (int32_t t = 0; t < part->n_tok; t++, row++) {
            bool last = item->logits == PITH_LOGITS_LAST && ends && t == part->n_tok - 1;
            if (item->logits != PITH_LOGITS_ALL && !last)
                continue;
            e->rows[n] = row;
            e->row_item[n] = e->batch_of[p];
            e->row_pos[n++] = part->pos0 + t;
            if (n == max) {
                if (!flush_logits(e, items, n))
                    return false;
                n = 0;
            }
        }
    }
    return flush_logits(e, items, n);
}

/* The first token of a part takes the place of entries that are gone then. Whether there are any. */
static bool note_overwritten(const struct pith_engine *e, const pith_batch_item *item,
                             struct pi_item_state *state)
{
    int32_t n_lane = e->traits.overwrites ? keep_count_aims(e->keep, item->seq->memory.kv) : 0;
    state->evicted = state->evicted || n_lane > 0;
    if (n_lane > 0)
        pi_seq_remember_aims(item->seq);
    keep_tally_overwritten(&item->seq->tally, n_lane,
                           pi_seq_point(item->seq, state->n_done).n_token);
    return n_lane > 0;
}

/* Tokens of an item until its state is to be kept, with n_done of its tokens in. */
static int32_t until_state(const pith_batch_item *item, int32_t n_done)
{
    int32_t n = item->seq->n_token;
    return pi_memory_until_state(&item->seq->memory, n + n_done, n + item->n_token);
}

/* After a pass with a part of the item. A draft may be taken back, and then what windows passed over
   on its account is needed again: it stays until that is known (ahead.c). */
static void settle(const pith_batch_item *item, const struct pi_pass_item *part)
{
    struct pi_memory *memory = &item->seq->memory;
    if (item->seq->n_draft > 0)
        return;
    pi_memory_note(memory, part->pos0 + part->n_tok, item->seq->n_token + item->n_token);
    pi_memory_settle(memory, true);
}

/* Fills the next pass: each item in turn gives what still fits, up to its next keep round. Returns
   the number of parts. *stays: it overwrites entries or chooses guests, and cannot be taken back. */
static int32_t fill_pass(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                         int32_t *n_tok, bool *stays)
{
    int32_t n_pass = 0, n_step = 0, room = e->chunk;
    *stays = false;
    for (int32_t i = 0; i < n && room > 0; i++) {
        const pith_batch_item *item = &items[i];
        int32_t done = e->state[i].n_done;
        int32_t left = item->n_token - done, n_read = 0;
        if (left == 0)
            continue;
        int32_t until = pi_engine_until_recall(e, item, done, until_round(e, item, done, left));
        bool recalls = pi_engine_recalls(e, item, done);
        if (!recalls && !e->traits.reads_parts) /* what belongs together is no place to stop */
            until = (int32_t)pi_min(until, until_state(item, done));
        int32_t take = pi_engine_take(e, item, done, room, until, &n_read);
        if (take == 0 || (recalls && take < until)) /* what belongs together does not fit */
            continue;
        *stays = note_overwritten(e, item, &e->state[i]) || recalls || *stays;
        e->pass_item[n_pass] = (struct pi_pass_item){.kv = item->seq->memory.kv,
                                                     .tokens = item->tokens + done,
                                                     .n_tok = take,
                                                     .pos0 = item->seq->n_token + done,
                                                     .owner = item->seq,
                                                     .watched = pi_engine_watches(e, item->n_token),
                                                     .n_read = n_read,
                                                     .guests = item->seq->recall.guests,
                                                     .recall = recalls};
        e->step_of[n_pass] = is_step(e, item) ? n_step++ : -1;
        e->batch_of[n_pass++] = i;
        e->state[i].n_done += take;
        room -= take;
    }
    *n_tok = e->chunk - room;
    return n_pass;
}

/* Once: that a storage type is too small for the model. */
static void tell_clipped(struct pith_engine *e)
{
    int32_t layer;
    bool value;
    if (e->told_clipped || !kv_cache_clipped(e->kv, &layer, &value))
        return;
    e->told_clipped = true;
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    enum kv_type type = value ? kv_layer_type_v(g, layer) : kv_layer_type_k(g, layer);
    pi_log(
        PITH_LOG_WARN,
        "kv: layer %d: a %s is no number or more than %s holds, and the nearest number is stored "
        "in its place; bf16 and f32 hold more",
        layer, value ? "value" : "key", kv_type_name(type));
}

/* Whether somebody is told how far the evaluation is: not of steps and drafts, which are short. */
static bool is_told(const struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    bool reads = false;
    for (int32_t i = 0; i < n && e->advance.fn != NULL; i++)
        reads = reads || (items[i].n_token > 1 && items[i].seq->n_draft == 0);
    return reads;
}

/* Whether an evaluation that is cancelled now leaves the sequence with what it has read. */
static bool keeps_passes(const struct pith_engine *e, const pith_batch_item *item,
                         const struct pi_item_state *state)
{
    struct pith_seq *seq = item->seq;
    return state->evicted || (e->keeps_read && state->n_done > 0) ||
           pi_memory_reach(&seq->memory, seq->n_token) < seq->n_token; /* no way back either */
}

/* Whether the pass that comes next can be taken back. Where that leads to the beginning of the
   evaluation, its copies serve; else those of this moment, which there is room for of one item. */
static bool can_take_back(struct pith_engine *e, const pith_batch_item *items, int32_t n)
{
    bool has_state = kv_cache_geometry(e->kv)->state_bytes > 0;
    if (n == 1)
        return pi_advance_save_state(e, items[0].seq) &&
               (!keeps_passes(e, &items[0], &e->state[0]) ||
                pi_engine_save(e, items, 1, NULL) == PITH_OK);
    for (int32_t i = 0; i < n; i++)
        if (has_state || items[i].seq->n_draft > 0 || keeps_passes(e, &items[i], &e->state[i]))
            return false;
    return true;
}

/* The pass with n_pass parts was stopped: the items go back to before it when they are finished. */
static void take_back(struct pith_engine *e, const pith_batch_item *items, int32_t n_pass)
{
    for (int32_t p = 0; p < n_pass; p++) {
        int32_t i = e->batch_of[p];
        e->state[i].n_done -= e->pass_item[p].n_tok;
        e->state[i].undone = true;
        pi_advance_restore_state(e, items[i].seq);
    }
}

static pith_status run_passes(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                              pith_progress_fn *progress, void *user, pith_error *err)
{
    int64_t total = 0, so_far = 0;
    bool told = is_told(e, items, n);
    for (int32_t i = 0; i < n; i++) {
        total += items[i].n_token;
        PI_TRY(keep_item(e, items, i, err)); /* a loaded sequence may hold more than the budget */
    }
    pi_advance_begin(e, total, told);
    while (so_far < total) {
        int32_t n_tok;
        bool stays, back = told && can_take_back(e, items, n);
        int32_t n_pass = fill_pass(e, items, n, &n_tok, &stays);
        pi_advance_pass(e, n_tok, back && !stays);
        if (!pi_pass_run(e->pass, e->pass_item, n_pass)) {
            take_back(e, items, n_pass);
            return pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled");
        }
        tell_clipped(e);
        for (int32_t p = 0; p < n_pass; p++)
            settle(&items[e->batch_of[p]], &e->pass_item[p]);
        for (int32_t p = 0; p < n_pass && e->traits.reads_parts; p++)
            read_add_tally(e->read, &e->pass_item[p], &items[e->batch_of[p]].seq->read);
        for (int32_t p = 0; p < n_pass; p++)
            pi_seq_note_recall(items[e->batch_of[p]].seq, &e->pass_item[p],
                               items[e->batch_of[p]].n_token == 1);
        for (int32_t p = 0; p < n_pass && e->repeat == NULL; p++)
            PI_TRY(keep_item(e, items, e->batch_of[p], err));
        if (e->tap_stopped)
            return pi_fail(err, PITH_CANCELLED, "the tap stopped the evaluation");
        so_far += n_tok;
        if (!emit_logits(e, items, n_pass))
            return pi_fail(err, PITH_CANCELLED, "on_logits stopped the evaluation");
        for (int32_t p = 0; p < n_pass && e->repeat != NULL; p++) /* a repetition is a pass, too */
            PI_TRY(keep_item(e, items, e->batch_of[p], err));
        PI_TRY(pi_advance_passed(e, err));
        if (progress != NULL && !progress(user, (double)so_far / (double)total))
            return pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled");
    }
    return PITH_OK;
}

/* Makes what was evaluated a part of the sequence, or forgets it. What was not begun is as it was,
   and knows still whom to overwrite, which a truncated sequence forgets. */
static void finish_item(const pith_batch_item *item, const struct pi_item_state *state, bool ok)
{
    struct pith_seq *seq = item->seq;
    bool stays = ok || keeps_passes(seq->engine, item, state);
    if (stays) {
        seq->n_token += state->n_done;
        seq->has_logits = ok && item->logits == PITH_LOGITS_LAST;
        if (state->undone) {
            pi_memory_truncate(&seq->memory, seq->n_token);
            pi_engine_restore(seq->engine, seq, state);
        }
    } else if (state->n_done > 0 || state->undone) {
        pi_memory_truncate(&seq->memory, seq->n_token);
        pi_engine_restore(seq->engine, seq, state);
        seq->read = state->read;
        seq->has_logits = false;
    }
    pi_seq_finish_recall(seq, &state->recall, !stays);
    if (state->evicted)
        pi_seq_update_text(seq);
    pi_seq_finish_share(seq, item, stays ? state->n_done : 0);
    if (!ok || seq->n_draft == 0)
        pi_memory_settle(&seq->memory, false);
    if (!ok)
        kv_seq_trim(seq->memory.kv);
}

/* Room for what the batch does with each of its items. */
static pith_status start_items(struct pith_engine *e, int32_t n_item, pith_error *err)
{
    if (n_item > e->n_state) {
        struct pi_item_state *grown =
            pi_mem_grow(PI_MEM_SCRATCH, e->state, (size_t)n_item, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a batch of %d items", n_item);
        e->state = grown;
        e->n_state = n_item;
    }
    memset(e->state, 0, (size_t)n_item * sizeof(*e->state));
    return PITH_OK;
}

/* Whether somebody is asked on the way, who can stop the evaluation. Nothing else can, so that only
   then what the policy remembers is copied: it can be megabytes, of which a step changes little. A
   draft's rows are copied, and nobody is asked. */
static bool can_stop(const struct pith_engine *e, const pith_batch_item *items, int32_t n_item,
                     pith_progress_fn *progress)
{
    bool asked = progress != NULL || e->tap != NULL || is_told(e, items, n_item);
    for (int32_t i = 0; i < n_item; i++)
        asked = asked || (items[i].logits == PITH_LOGITS_ALL && items[i].seq->n_draft == 0);
    return asked;
}

pith_status pith_batch_eval(pith_engine *e, const pith_batch_item *items, int32_t n_item,
                            pith_progress_fn *progress, void *user, pith_error *err)
{
    if (e == NULL || (n_item > 0 && items == NULL) || n_item < 0)
        return pi_fail(err, PITH_INVALID, "pith_batch_eval: no engine or no items");
    if (n_item == 0)
        return PITH_OK;
    PI_TRY(check_items(e, items, n_item, err));
    PI_TRY(start_items(e, n_item, err));
    for (int32_t i = 0; i < n_item; i++) {
        e->state[i].read = items[i].seq->read;
        e->state[i].recall = pi_seq_recall_point(items[i].seq);
    }
    e->tap_stopped = false;
    e->has_marks = false;
    if (can_stop(e, items, n_item, progress))
        PI_TRY(pi_engine_save(e, items, n_item, err));
    pith_status status = reserve(e, items, n_item, err);
    if (status == PITH_OK)
        status = run_passes(e, items, n_item, progress, user, err);
    pi_advance_end(e);
    for (int32_t i = 0; i < n_item; i++)
        finish_item(&items[i], &e->state[i], status == PITH_OK);
    return status;
}

pith_status pith_seq_eval(pith_seq *seq, const int32_t *tokens, int32_t n_token, pith_error *err)
{
    pith_batch_item item = {.seq = seq, .tokens = tokens, .n_token = n_token};
    return pith_batch_eval(seq->engine, &item, 1, NULL, NULL, err);
}

pith_status pith_seq_sync(pith_seq *seq, const int32_t *tokens, int32_t n_token,
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
        pi_seq_forget_steps(seq);
    pith_batch_item item = {.seq = seq, .tokens = tokens + same, .n_token = n_token - same};
    PI_TRY(pith_batch_eval(seq->engine, &item, 1, progress, user, err));
    if (parts && n_token > 1)
        pi_seq_forget_steps(seq);
    return PITH_OK;
}
