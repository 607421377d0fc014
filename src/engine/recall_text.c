/*
 * recall_text.c - recall of text in an engine: evicted text is stored after the evaluation, and a
 * turn's question searches the store. generate.c puts the text that it finds in front. The store
 * itself is policy/recall/'s.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/text_embed.h"

static bool has_text(const struct engine_traits *traits)
{
    return traits->recalls_text;
}

static pith_status open_text(struct pith_engine *e, const pith_engine_params *params,
                             const struct policy_model *model, pith_error *err)
{
    (void)params;
    (void)model;
    return recall_text_open(&e->policies.recall.text, e->model, pi_text_embed_open, e->n_thread,
                            &e->recall_text, err);
}

static void close_text(struct pith_engine *e)
{
    recall_text_close(e->recall_text);
    e->recall_text = NULL;
}

static void count_text(const struct pith_engine *e, pith_memory_stats *out)
{
    out->text_bytes += recall_text_bytes(e->recall_text);
}

/* As measured: SQLite takes the first at once, and the other for a token of four bytes. Each
   session has tables of its own, so another conversation takes as much again. */
static int64_t beside_at(const struct pi_account *a, int32_t n_token)
{
    const int64_t first = (int64_t)112 << 10, of_token = 20;
    (void)a;
    return first + of_token * n_token;
}

/* ---- a sequence ---- */

static pith_status start_seq(struct pith_seq *seq, pith_error *err)
{
    return recall_text_seq_create(seq->engine->recall_text, &seq->text.store, err);
}

static void stop_seq(struct pith_seq *seq)
{
    recall_text_seq_free(seq->text.store);
    pi_mem_free(seq->text.insert);
    seq->text = (struct pi_seq_text){0};
}

static int64_t text_bytes(const struct pith_seq *seq)
{
    return seq->text.store != NULL ? recall_text_seq_bytes(seq->text.store) : 0;
}

static pith_status fork_seq(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    stop_seq(to);
    to->text.n_recall = from->text.n_recall;
    to->text.n_found = from->text.n_found;
    to->text.asked = from->text.asked;
    size_t n = (size_t)from->text.n_insert;
    if (n > 0) {
        to->text.insert = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(struct pi_insert));
        if (to->text.insert == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu recalled texts", n);
        memcpy(to->text.insert, from->text.insert, n * sizeof(struct pi_insert));
        to->text.n_insert = from->text.n_insert;
    }
    return recall_text_seq_fork(from->text.store, &to->text.store, err);
}

static void truncate_seq(struct pith_seq *seq, int32_t n_token, bool whole)
{
    (void)whole;
    struct pi_seq_text *text = &seq->text;
    while (text->n_insert > 0 &&
           text->insert[text->n_insert - 1].from + text->insert[text->n_insert - 1].n > n_token)
        text->n_insert--;
    recall_text_seq_truncate(text->store, n_token);
}

static void update(struct pith_seq *seq)
{
    recall_text_update(seq->text.store, seq->memory.kv, seq->tokens, seq->n_token);
}

/* In an evaluation it waits for the end: tokens of it are no part of the sequence yet. */
static void update_after_round(struct pith_seq *seq, const pith_batch_item *item, int32_t left)
{
    (void)left;
    if (item == NULL)
        update(seq);
}

static void update_after(const pith_batch_item *item, const struct pi_item_state *state)
{
    if (state->evicted)
        update(item->seq);
}

const struct seq_hooks pi_recall_text_hooks = {
    .name = "recall of text",
    .has = has_text,
    .open = open_text,
    .close = close_text,
    .beside_at = beside_at,
    .own_at = beside_at,
    .text_bytes = text_bytes,
    .count = count_text,
    .start = start_seq,
    .stop = stop_seq,
    .fork = fork_seq,
    .truncate = truncate_seq,
    .after_round = update_after_round,
    .after = update_after,
};

void pi_text_stats(const struct pith_seq *seq, pith_recall_stats *out)
{
    struct recall_text_counts counts;
    recall_text_count(seq->text.store, &counts);
    out->recalls = seq->text.n_recall;
    out->stored = counts.n_span;
    out->guests = seq->text.n_found;
    out->seconds = counts.seconds;
}

/* ---- questions ---- */

bool pi_engine_finds_text(const struct pith_engine *e)
{
    return e->recall_text != NULL;
}

/* Tokens of text that may be put in front of the next n_rest ones, and how many before it are
   pinned with it. Pinned tokens stay where the budget holds them; or no round comes until the
   question is read, as in a sequence that is young. A quarter of the pinned tokens is left to
   the answer. */
static int32_t room_before(const struct pith_seq *seq, int32_t n_rest, int32_t *n_before)
{
    const struct pith_engine *e = seq->engine;
    const struct keep_config *config = &e->policies.keep;
    struct keep_point at = pi_seq_point(seq, 0);
    int32_t most = keep_pinnable(config, &e->lanes, at);
    *n_before = (int32_t)pi_min(config->rules.window, most / 4);
    int64_t pinned = (int64_t)most - *n_before - n_rest;
    int64_t quiet =
        (int64_t)keep_room(e->keep.handle, seq->memory.kv, at, INT32_MAX / 2) - 1 - n_rest;
    return (int32_t)pi_max(0, pi_max(pinned - pinned / 4, quiet));
}

pith_status pi_seq_find_text(struct pith_seq *seq, const char *question, size_t len, int32_t n_rest,
                             char **text, int32_t *n_before, pith_error *err)
{
    int32_t n = 0;
    *text = NULL;
    *n_before = 0;
    if (seq->text.store == NULL)
        return PITH_OK;
    /* Entries that the next round would drop are to be found, too. */
    seq->text.asked = true;
    pith_status status = pith_seq_keep_round(seq, err);
    if (status != PITH_OK && status != PITH_KV_FULL)
        return status;
    int32_t room = room_before(seq, n_rest, n_before);
    PI_TRY(recall_text_find(seq->text.store, seq->memory.kv, seq->tokens, seq->n_token, question,
                            len, room, text, &n, err));
    seq->text.n_recall += *text != NULL;
    seq->text.n_found = n;
    return PITH_OK;
}

/* ---- what was found, in a sequence ---- */

/* Whether the last token that the sequence holds ends a line. */
static bool ends_line(const struct pith_seq *seq)
{
    char bytes[64];
    size_t n = 0;
    if (seq->n_token == 0)
        return true;
    pith_status status = pith_token_bytes(seq->engine->model, seq->tokens[seq->n_token - 1], false,
                                          bytes, sizeof(bytes), &n);
    return status == PITH_OK && n > 0 && bytes[n - 1] == '\n';
}

pith_status pi_seq_text_tokens(const struct pith_seq *seq, const char *found, int32_t n_head,
                               int32_t n_tail, int32_t **out, int32_t *n, pith_error *err)
{
    size_t len = strlen(found) + 1;
    char *text = pi_mem_alloc(PI_MEM_OTHER, len + 1);
    int32_t cap = len < INT32_MAX / 4 ? 3 * (int32_t)len + 8 : 0; /* composed, it may be longer */
    int32_t *ids =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_head + (size_t)cap + (size_t)n_tail, sizeof(*ids));
    pith_status status = PITH_OK;
    if (text == NULL || ids == NULL || cap == 0)
        status = pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of recalled text", len);
    if (status == PITH_OK) {
        snprintf(text, len + 1, "%s%s", ends_line(seq) ? "" : "\n", found);
        status =
            pith_tokenize(seq->engine->model, text, strlen(text), 0, ids + n_head, cap, n, err);
    }
    if (status == PITH_OK) {
        *out = ids;
        ids = NULL;
    }
    pi_mem_free(text);
    pi_mem_free(ids);
    return status;
}

pith_status pi_seq_note_insert(struct pith_seq *seq, int32_t n, pith_error *err)
{
    struct pi_seq_text *text = &seq->text;
    size_t count = (size_t)text->n_insert + 1;
    struct pi_insert *list = pi_mem_grow(PI_MEM_OTHER, text->insert, count, sizeof(*list));
    if (list == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu recalled texts", count);
    text->insert = list;
    list[text->n_insert++] = (struct pi_insert){seq->n_token, n};
    return PITH_OK;
}

int32_t pi_seq_inserted(const struct pith_seq *seq, int32_t n)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < seq->text.n_insert && seq->text.insert[i].from < n; i++)
        sum += seq->text.insert[i].n;
    return sum;
}

/* Tokens of a message's question and of a template, by guess: few texts have less than three bytes
   to a token. */
#define TEMPLATE_TOKENS 32
#define BYTES_PER_TOKEN 3

pith_status pith_seq_recall_text(pith_seq *seq, const char *question, size_t len, char **text,
                                 pith_error *err)
{
    char *found = NULL;
    int32_t n_before;
    if (question == NULL || text == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_seq_recall_text: question and text must not be NULL");
    int64_t n_rest = TEMPLATE_TOKENS + (int64_t)(len / BYTES_PER_TOKEN);
    PI_TRY(pi_seq_find_text(seq, question, len, (int32_t)pi_min(n_rest, INT32_MAX / 2), &found,
                            &n_before, err));
    *text = found;
    return PITH_OK;
}

void pith_recall_free(char *text)
{
    pi_mem_free(text);
}
