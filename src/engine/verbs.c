/*
 * verbs.c - the table of the engine's verbs, and a loop for each hook. It knows no verb but by its
 * line in the table. Invariant: a loop undoes what it began and cannot finish, or the loop does
 * that its comment in verbs.h names.
 */
#include "engine/engine.h"

/*
 * The order in which hooks are called. Hooks that end something (close, stop, after) are called
 * from the last to the first.
 * - share comes before keep: a step that begins closes a page, and what rounds can take is counted
 *   after that. It also ends last, when no other verb changes lanes any more.
 * - keep comes before recall and read: their parts of a pass end where a round is due.
 * - read comes after recall: it cuts into chunks what recall leaves of a pass.
 */
static const struct seq_hooks *const table[] = {
    &pi_store_hooks,       &pi_share_hooks, &pi_keep_hooks,  &pi_recall_hooks,
    &pi_recall_text_hooks, &pi_read_hooks,  &pi_draft_hooks,
};

_Static_assert(PI_LEN(table) <= PI_VERBS_MOST, "an engine has room for all verbs");

/* For each verb of an engine that has a hook, in their order: "(*v)->hook(...);" calls it. */
#define EACH_VERB(e, hook)                                                                         \
    for (const struct seq_hooks *const *v = (e)->verb; v < (e)->verb + (e)->n_verb; v++)           \
        if ((*v)->hook != NULL)

static bool has(const struct seq_hooks *v, const struct engine_traits *traits)
{
    return v->has == NULL || v->has(traits);
}

/* ---- before there is an engine ---- */

bool pi_verbs_have_tier(const struct pi_account *a)
{
    struct engine_traits traits = engine_traits_compute(a->policies);
    for (size_t i = 0; i < PI_LEN(table); i++)
        if (table[i]->tier_at != NULL && has(table[i], &traits))
            return true;
    return false;
}

enum bytes_of { TIER_BYTES, BESIDE_BYTES, OWN_BYTES };

/* A sum over the verbs: their bytes in a second tier, those beside pages and tier, or of these a
   sequence's own. */
static int64_t bytes_at(const struct pi_account *a, int32_t n_token, enum bytes_of what)
{
    struct engine_traits traits = engine_traits_compute(a->policies);
    int64_t bytes = 0;
    for (size_t i = 0; i < PI_LEN(table); i++) {
        const struct seq_hooks *v = table[i];
        int64_t (*hook)(const struct pi_account *, int32_t) = what == TIER_BYTES     ? v->tier_at
                                                              : what == BESIDE_BYTES ? v->beside_at
                                                                                     : v->own_at;
        if (hook != NULL && has(v, &traits))
            bytes += hook(a, n_token);
    }
    return bytes;
}

int64_t pi_verbs_tier_at(const struct pi_account *a, int32_t n_token)
{
    return bytes_at(a, n_token, TIER_BYTES);
}

int64_t pi_verbs_beside_at(const struct pi_account *a, int32_t n_token)
{
    return bytes_at(a, n_token, BESIDE_BYTES);
}

int64_t pi_verbs_own_at(const struct pi_account *a, int32_t n_token)
{
    return bytes_at(a, n_token, OWN_BYTES);
}

int64_t pi_verbs_work_at(const struct pi_account *a, int32_t n_token, int32_t n_worker)
{
    struct engine_traits traits = engine_traits_compute(a->policies);
    int64_t bytes = 0;
    for (size_t i = 0; i < PI_LEN(table); i++)
        if (table[i]->work_at != NULL && has(table[i], &traits))
            bytes += table[i]->work_at(a, n_token, n_worker);
    return bytes;
}

/* ---- the engine ---- */

pith_status pi_verbs_open(struct pith_engine *e, const pith_engine_params *params,
                          const struct policy_model *model, pith_error *err)
{
    e->n_verb = 0;
    for (size_t i = 0; i < PI_LEN(table); i++)
        if (has(table[i], &e->traits))
            e->verb[e->n_verb++] = table[i];
    pith_status status = PITH_OK;
    for (int32_t i = 0; status == PITH_OK && i < e->n_verb; i++)
        if (e->verb[i]->open != NULL)
            status = e->verb[i]->open(e, params, model, err);
    if (status != PITH_OK)
        pi_verbs_close(e);
    return status;
}

void pi_verbs_close(struct pith_engine *e)
{
    for (int32_t i = e->n_verb - 1; i >= 0; i--)
        if (e->verb[i]->close != NULL)
            e->verb[i]->close(e);
}

void pi_verbs_count(const struct pith_engine *e, pith_memory_stats *out)
{
    EACH_VERB(e, count)
        (*v)->count(e, out);
}

int32_t pi_verbs_leave(const struct pith_engine *e, int32_t same, int32_t n_token)
{
    EACH_VERB(e, leaves)
        same = (*v)->leaves(e, same, n_token);
    return same;
}

/* ---- a sequence ---- */

pith_status pi_verbs_start(struct pith_seq *seq, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    pith_status status = PITH_OK;
    for (int32_t i = 0; status == PITH_OK && i < e->n_verb; i++)
        if (e->verb[i]->start != NULL)
            status = e->verb[i]->start(seq, err);
    if (status != PITH_OK)
        pi_verbs_stop(seq);
    return status;
}

void pi_verbs_stop(struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = e->n_verb - 1; i >= 0; i--)
        if (e->verb[i]->stop != NULL)
            e->verb[i]->stop(seq);
}

void pi_verbs_attach(struct pith_seq *seq)
{
    EACH_VERB(seq->engine, attach)
        (*v)->attach(seq);
}

pith_status pi_verbs_fork(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    EACH_VERB(from->engine, fork)
        PI_TRY((*v)->fork(from, to, err));
    return PITH_OK;
}

void pi_verbs_truncate(struct pith_seq *seq, int32_t n_token, bool whole)
{
    EACH_VERB(seq->engine, truncate)
        (*v)->truncate(seq, n_token, whole);
}

pith_status pi_verbs_save(const struct pith_seq *seq, void **bytes, size_t *size, pith_error *err)
{
    const struct pith_engine *e = seq->engine;
    *bytes = NULL;
    *size = 0;
    for (int32_t i = 0; *bytes == NULL && i < e->n_verb; i++)
        if (e->verb[i]->save != NULL)
            PI_TRY(e->verb[i]->save(seq, bytes, size, err));
    return PITH_OK;
}

pith_status pi_verbs_load(struct pith_seq *seq, struct pi_saved *saved, const char *path,
                          pith_error *err)
{
    EACH_VERB(seq->engine, load)
        PI_TRY((*v)->load(seq, saved, path, err));
    return PITH_OK;
}

int32_t pi_verbs_reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    EACH_VERB(seq->engine, reusable)
        same = (*v)->reusable(seq, same, n_token);
    return same;
}

int32_t pi_verbs_unaltered(const struct pith_seq *seq, int32_t n)
{
    EACH_VERB(seq->engine, unaltered)
        n = (*v)->unaltered(seq, n);
    return n;
}

void pi_verbs_as_prompt(struct pith_seq *seq)
{
    EACH_VERB(seq->engine, as_prompt)
        (*v)->as_prompt(seq);
}

struct kv_seq *pi_verbs_beside(const struct pith_seq *seq, int32_t i)
{
    const struct seq_hooks *v = seq->engine->verb[i];
    return v->beside != NULL ? v->beside(seq) : NULL;
}

int64_t pi_verbs_remembered(const struct pith_seq *seq)
{
    int64_t bytes = 0;
    EACH_VERB(seq->engine, remembered)
        bytes += (*v)->remembered(seq);
    return bytes;
}

int64_t pi_verbs_text_bytes(const struct pith_seq *seq)
{
    int64_t bytes = 0;
    EACH_VERB(seq->engine, text_bytes)
        bytes += (*v)->text_bytes(seq);
    return bytes;
}

int64_t pi_verbs_draft_bytes(const struct pith_seq *seq)
{
    int64_t bytes = 0;
    EACH_VERB(seq->engine, draft_bytes)
        bytes += (*v)->draft_bytes(seq);
    return bytes;
}

/* ---- an evaluation ---- */

void pi_verbs_note(const struct pith_seq *seq, struct pi_item_state *state)
{
    EACH_VERB(seq->engine, note)
        (*v)->note(seq, state);
}

pith_status pi_verbs_copy(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                          pith_error *err)
{
    EACH_VERB(e, copy)
        PI_TRY((*v)->copy(e, items, n, err));
    return PITH_OK;
}

pith_status pi_verbs_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    EACH_VERB(e, reserve)
        PI_TRY((*v)->reserve(e, item, err));
    return PITH_OK;
}

pith_status pi_verbs_reserve_batch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                   pith_error *err)
{
    EACH_VERB(e, reserve_batch)
        PI_TRY((*v)->reserve_batch(e, items, n, err));
    return PITH_OK;
}

void pi_verbs_plan(struct pith_engine *e, const pith_batch_item *item, struct pi_item_plan *plan)
{
    EACH_VERB(e, plan)
        (*v)->plan(e, item, plan);
}

void pi_verbs_take(struct pith_engine *e, const pith_batch_item *item, struct pi_item_state *state,
                   struct pi_item_plan *plan)
{
    EACH_VERB(e, take)
        (*v)->take(e, item, state, plan);
}

void pi_verbs_overwrite(struct pith_seq *seq)
{
    EACH_VERB(seq->engine, overwrite)
        (*v)->overwrite(seq);
}

void pi_verbs_passed(const pith_batch_item *item, const struct pi_pass_item *part)
{
    EACH_VERB(item->seq->engine, passed)
        (*v)->passed(item, part);
}

pith_status pi_verbs_round(struct pith_engine *e, const pith_batch_item *item,
                           struct pi_item_state *state, pith_error *err)
{
    EACH_VERB(e, round)
        PI_TRY((*v)->round(e, item, state, err));
    return PITH_OK;
}

void pi_verbs_before_round(struct pith_seq *seq)
{
    EACH_VERB(seq->engine, before_round)
        (*v)->before_round(seq);
}

void pi_verbs_after_round(struct pith_seq *seq, const pith_batch_item *item, int32_t left)
{
    EACH_VERB(seq->engine, after_round)
        (*v)->after_round(seq, item, left);
}

void pi_verbs_after(const pith_batch_item *item, const struct pi_item_state *state)
{
    const struct pith_engine *e = item->seq->engine;
    for (int32_t i = e->n_verb - 1; i >= 0; i--)
        if (e->verb[i]->after != NULL)
            e->verb[i]->after(item, state);
}
