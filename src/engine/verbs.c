/*
 * verbs.c - the table of the engine's verbs, and a loop for each hook. It knows no verb but by its
 * line in the table. Invariant: a loop that begins something and cannot finish it undoes it, or the
 * loop that its comment in verbs.h names does.
 */
#include "engine/engine.h"

/*
 * The order in which hooks are called. Hooks that end something (close, stop, after) are called from
 * the last to the first.
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

int64_t pi_verbs_tier_at(const struct pi_account *a, int32_t n_token)
{
    struct engine_traits traits = engine_traits_compute(a->policies);
    int64_t bytes = 0;
    for (size_t i = 0; i < PI_LEN(table); i++)
        if (table[i]->tier_at != NULL && has(table[i], &traits))
            bytes += table[i]->tier_at(a, n_token);
    return bytes;
}

int64_t pi_verbs_beside_at(const struct pi_account *a, int32_t n_token)
{
    struct engine_traits traits = engine_traits_compute(a->policies);
    int64_t bytes = 0;
    for (size_t i = 0; i < PI_LEN(table); i++)
        if (table[i]->beside_at != NULL && has(table[i], &traits))
            bytes += table[i]->beside_at(a, n_token);
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
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->count != NULL)
            e->verb[i]->count(e, out);
}

int32_t pi_verbs_leave(const struct pith_engine *e, int32_t same, int32_t n_token)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->leaves != NULL)
            same = e->verb[i]->leaves(e, same, n_token);
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
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->attach != NULL)
            e->verb[i]->attach(seq);
}

pith_status pi_verbs_fork(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    const struct pith_engine *e = from->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->fork != NULL)
            PI_TRY(e->verb[i]->fork(from, to, err));
    return PITH_OK;
}

void pi_verbs_truncate(struct pith_seq *seq, int32_t n_token, bool whole)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->truncate != NULL)
            e->verb[i]->truncate(seq, n_token, whole);
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
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->load != NULL)
            PI_TRY(e->verb[i]->load(seq, saved, path, err));
    return PITH_OK;
}

int32_t pi_verbs_reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->reusable != NULL)
            same = e->verb[i]->reusable(seq, same, n_token);
    return same;
}

int32_t pi_verbs_unaltered(const struct pith_seq *seq, int32_t n)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->unaltered != NULL)
            n = e->verb[i]->unaltered(seq, n);
    return n;
}

void pi_verbs_as_prompt(struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->as_prompt != NULL)
            e->verb[i]->as_prompt(seq);
}

struct kv_seq *pi_verbs_beside(const struct pith_seq *seq, int32_t i)
{
    const struct seq_hooks *v = seq->engine->verb[i];
    return v->beside != NULL ? v->beside(seq) : NULL;
}

int64_t pi_verbs_remembered(const struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    int64_t bytes = 0;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->remembered != NULL)
            bytes += e->verb[i]->remembered(seq);
    return bytes;
}

int64_t pi_verbs_draft_bytes(const struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    int64_t bytes = 0;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->draft_bytes != NULL)
            bytes += e->verb[i]->draft_bytes(seq);
    return bytes;
}

/* ---- an evaluation ---- */

void pi_verbs_note(const struct pith_seq *seq, struct pi_item_state *state)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->note != NULL)
            e->verb[i]->note(seq, state);
}

pith_status pi_verbs_copy(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                          pith_error *err)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->copy != NULL)
            PI_TRY(e->verb[i]->copy(e, items, n, err));
    return PITH_OK;
}

pith_status pi_verbs_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->reserve != NULL)
            PI_TRY(e->verb[i]->reserve(e, item, err));
    return PITH_OK;
}

pith_status pi_verbs_reserve_batch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                   pith_error *err)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->reserve_batch != NULL)
            PI_TRY(e->verb[i]->reserve_batch(e, items, n, err));
    return PITH_OK;
}

void pi_verbs_plan(struct pith_engine *e, const pith_batch_item *item, struct pi_item_plan *plan)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->plan != NULL)
            e->verb[i]->plan(e, item, plan);
}

void pi_verbs_take(struct pith_engine *e, const pith_batch_item *item, struct pi_item_state *state,
                   struct pi_item_plan *plan)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->take != NULL)
            e->verb[i]->take(e, item, state, plan);
}

void pi_verbs_overwrite(struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->overwrite != NULL)
            e->verb[i]->overwrite(seq);
}

void pi_verbs_passed(const pith_batch_item *item, const struct pi_pass_item *part)
{
    const struct pith_engine *e = item->seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->passed != NULL)
            e->verb[i]->passed(item, part);
}

pith_status pi_verbs_round(struct pith_engine *e, const pith_batch_item *item,
                           struct pi_item_state *state, pith_error *err)
{
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->round != NULL)
            PI_TRY(e->verb[i]->round(e, item, state, err));
    return PITH_OK;
}

void pi_verbs_before_round(struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->before_round != NULL)
            e->verb[i]->before_round(seq);
}

void pi_verbs_after_round(struct pith_seq *seq, const pith_batch_item *item, int32_t left)
{
    const struct pith_engine *e = seq->engine;
    for (int32_t i = 0; i < e->n_verb; i++)
        if (e->verb[i]->after_round != NULL)
            e->verb[i]->after_round(seq, item, left);
}

void pi_verbs_after(const pith_batch_item *item, const struct pi_item_state *state)
{
    const struct pith_engine *e = item->seq->engine;
    for (int32_t i = e->n_verb - 1; i >= 0; i--)
        if (e->verb[i]->after != NULL)
            e->verb[i]->after(item, state);
}
