/*
 * verbs.h - the joint between an engine and its verbs (keep, read, share, recall, store, draft).
 * Each verb is a struct of hooks, which its own file defines; verbs.c lists them once. The rest of
 * the engine calls the loops below and names no verb.
 *
 * A hook is only called for an engine that has the verb. NULL means that the verb does nothing
 * there.
 */
#ifndef PI_VERBS_H
#define PI_VERBS_H

#include "engine/account.h"

struct pi_item_plan;
struct pi_item_state;
struct pi_pass_item;
struct pi_saved;

struct seq_hooks {
    const char *name;
    /* Whether an engine with these traits has the verb. NULL: every engine has it. */
    bool (*has)(const struct engine_traits *traits);

    /* ---- the account, before there is an engine: bytes of one sequence of n_token tokens ---- */

    int64_t (*tier_at)(const struct pi_account *a, int32_t n_token);   /* in a second tier */
    int64_t (*beside_at)(const struct pi_account *a, int32_t n_token); /* beside pages and tier */
    /* and, which are not in beside_at, of buffers that n_worker threads have each. */
    int64_t (*work_at)(const struct pi_account *a, int32_t n_token, int32_t n_worker);

    /* ---- the engine ---- */

    /* open makes the verb's part of an engine. A failed open may leave a part behind: close frees
       any stage, zeroes it, and may be called again. Sequences, pass and cache are gone by then. */
    pith_status (*open)(struct pith_engine *e, const pith_engine_params *params,
                        const struct policy_model *model, pith_error *err);
    void (*close)(struct pith_engine *e);
    /* Adds the bytes of the engine's part to the fields that they belong to. */
    void (*count)(const struct pith_engine *e, pith_memory_stats *out);
    /* Of the first `same` of n_token tokens, which a sequence already holds, those that leave
       enough to evaluate together. */
    int32_t (*leaves)(const struct pith_engine *e, int32_t same, int32_t n_token);

    /* ---- a sequence ---- */

    /* start makes the verb's part of a sequence. stop frees any stage and may be called again. */
    pith_status (*start)(struct pith_seq *seq, pith_error *err);
    void (*stop)(struct pith_seq *seq);
    void (*attach)(struct pith_seq *seq); /* its lanes are there, fresh or from a file */
    /* `to` has the tokens and lanes of `from`, and a part that start made. */
    pith_status (*fork)(const struct pith_seq *from, struct pith_seq *to, pith_error *err);
    /* Entries behind n_token tokens are gone from its lanes. whole: no entry before them was
       ever evicted. */
    void (*truncate)(struct pith_seq *seq, int32_t n_token, bool whole);
    /* The caller's bytes of a snapshot, a pi_mem block, where tokens alone do not say how the
       sequence goes on. *bytes stays NULL where they do. At most one verb of an engine has it. */
    pith_status (*save)(const struct pith_seq *seq, void **bytes, size_t *size, pith_error *err);
    /* Tokens and lanes come from a file, whose bytes are in *saved. */
    pith_status (*load)(struct pith_seq *seq, struct pi_saved *saved, const char *path,
                        pith_error *err);
    /* Of the first `same` of n_token tokens, which the sequence holds, those that need not be
       evaluated again. The answer only falls with `same`, and asking again with it changes
       nothing. */
    int32_t (*reusable)(const struct pith_seq *seq, int32_t same, int32_t n_token);
    /* Of the first n tokens those whose entries are as without the verb. */
    int32_t (*unaltered)(const struct pith_seq *seq, int32_t n);
    void (*as_prompt)(struct pith_seq *seq); /* all its tokens count as a prompt's */
    /* Another sequence of the cache that belongs to this one. NULL: there is none now. */
    struct kv_seq *(*beside)(const struct pith_seq *seq);
    /* Bytes that policies remember of the sequence, and bytes of its drafts. */
    int64_t (*remembered)(const struct pith_seq *seq);
    int64_t (*draft_bytes)(const struct pith_seq *seq);

    /* ---- an evaluation, in this order ---- */

    void (*note)(const struct pith_seq *seq, struct pi_item_state *state); /* where it stands */
    /* Copies the state that an evaluation can change which may be stopped. */
    pith_status (*copy)(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                        pith_error *err);
    /* Memory for an item, and then for the batch. A failure ends the batch: `after` is called for
       all items, also for those that were never reserved. */
    pith_status (*reserve)(struct pith_engine *e, const pith_batch_item *item, pith_error *err);
    pith_status (*reserve_batch)(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                 pith_error *err);
    /* An item's part of the next pass. take: it does so. */
    void (*plan)(struct pith_engine *e, const pith_batch_item *item, struct pi_item_plan *plan);
    void (*take)(struct pith_engine *e, const pith_batch_item *item, struct pi_item_state *state,
                 struct pi_item_plan *plan);
    void (*overwrite)(struct pith_seq *seq); /* the next token takes the place of entries */
    /* A pass has run with a part of the item. */
    void (*passed)(const pith_batch_item *item, const struct pi_pass_item *part);
    /* The keep round of an item, where one is due with state->n_done of its tokens in. */
    pith_status (*round)(struct pith_engine *e, const pith_batch_item *item,
                         struct pi_item_state *state, pith_error *err);
    void (*before_round)(struct pith_seq *seq);
    /* item: whose evaluation the round came in, with `left` tokens to go. NULL: the caller
       asked. */
    void (*after_round)(struct pith_seq *seq, const pith_batch_item *item, int32_t left);
    /* The evaluation is over. state says what is left of it. */
    void (*after)(const pith_batch_item *item, const struct pi_item_state *state);
};

/* ---- the hooks, in their files ---- */

extern const struct seq_hooks pi_store_hooks, pi_share_hooks, pi_keep_hooks, pi_recall_hooks,
    pi_recall_text_hooks, pi_read_hooks, pi_draft_hooks;

/* ---- loops over the verbs of an engine, each named like its hook ---- */

#define PI_VERBS_MOST 8

/* open chooses the verbs by e->traits. Where one fails, open and start undo those before it. */
pith_status pi_verbs_open(struct pith_engine *e, const pith_engine_params *params,
                          const struct policy_model *model, pith_error *err);
void pi_verbs_close(struct pith_engine *e);
pith_status pi_verbs_start(struct pith_seq *seq, pith_error *err);
void pi_verbs_stop(struct pith_seq *seq);

bool pi_verbs_have_tier(const struct pi_account *a);
int64_t pi_verbs_tier_at(const struct pi_account *a, int32_t n_token);
int64_t pi_verbs_beside_at(const struct pi_account *a, int32_t n_token);
int64_t pi_verbs_work_at(const struct pi_account *a, int32_t n_token, int32_t n_worker);
void pi_verbs_count(const struct pith_engine *e, pith_memory_stats *out);
int32_t pi_verbs_leave(const struct pith_engine *e, int32_t same, int32_t n_token);

void pi_verbs_attach(struct pith_seq *seq);
pith_status pi_verbs_fork(const struct pith_seq *from, struct pith_seq *to, pith_error *err);
void pi_verbs_truncate(struct pith_seq *seq, int32_t n_token, bool whole);
pith_status pi_verbs_save(const struct pith_seq *seq, void **bytes, size_t *size, pith_error *err);
pith_status pi_verbs_load(struct pith_seq *seq, struct pi_saved *saved, const char *path,
                          pith_error *err);
int32_t pi_verbs_reusable(const struct pith_seq *seq, int32_t same, int32_t n_token);
int32_t pi_verbs_unaltered(const struct pith_seq *seq, int32_t n);
void pi_verbs_as_prompt(struct pith_seq *seq);
/* The sequence beside it of verb i; NULL: none. */
struct kv_seq *pi_verbs_beside(const struct pith_seq *seq, int32_t i);
int64_t pi_verbs_remembered(const struct pith_seq *seq);
int64_t pi_verbs_draft_bytes(const struct pith_seq *seq);

void pi_verbs_note(const struct pith_seq *seq, struct pi_item_state *state);
pith_status pi_verbs_copy(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                          pith_error *err);
pith_status pi_verbs_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err);
pith_status pi_verbs_reserve_batch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                   pith_error *err);
void pi_verbs_plan(struct pith_engine *e, const pith_batch_item *item, struct pi_item_plan *plan);
void pi_verbs_take(struct pith_engine *e, const pith_batch_item *item, struct pi_item_state *state,
                   struct pi_item_plan *plan);
void pi_verbs_overwrite(struct pith_seq *seq);
void pi_verbs_passed(const pith_batch_item *item, const struct pi_pass_item *part);
pith_status pi_verbs_round(struct pith_engine *e, const pith_batch_item *item,
                           struct pi_item_state *state, pith_error *err);
void pi_verbs_before_round(struct pith_seq *seq);
void pi_verbs_after_round(struct pith_seq *seq, const pith_batch_item *item, int32_t left);
void pi_verbs_after(const pith_batch_item *item, const struct pi_item_state *state);

#endif
