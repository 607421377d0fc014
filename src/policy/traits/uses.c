/*
 * uses.c - what sequences may be used for, with the sentence that says why not, or what is to be
 * known of it. Each use refuses by these functions, and `pith policies --matrix` prints them.
 */
#include "policy/traits/traits.h"

const char engine_guests_stay[] =
    "recall: a sequence with guests stays where it is, and others are preempted";

/* ---- what is refused ---- */

/* A prefix of others fits where the sequence would hold the same entries and nothing else, and the
   policy saw nothing of them. Recall chooses by a prompt's last tokens, which are read in any
   case. */
static pith_status check_prefix(const struct engine_traits *t, pith_error *err)
{
    if (t->reads_parts)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "read: what is read depends on where an evaluation begins, so that every "
                       "prompt is read from its first token");
    if (t->remembers)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s remembers more of a prompt than its entries, so that every prompt "
                       "is read from its first token",
                       t->keep);
    if (t->overwrites || (t->needs & KEEP_NEED_STEP_WEIGHTS) != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s goes by which tokens were evaluated alone, so that every prompt "
                       "is read from its first token",
                       t->keep);
    return PITH_OK;
}

/* A file says nothing of centres, and its keys would be taken for whole ones. */
static pith_status check_file(const struct engine_traits *t, pith_error *err)
{
    if (t->centred)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_k: keys that are stored less their mean (centre) cannot be saved or "
                       "loaded");
    return PITH_OK;
}

/* Drafts are evaluated together as if each came alone, and some of them are taken back. Marks that
   are written with an entry go with it; whatever else a policy notes of a token stays. */
static pith_status check_draft(const struct engine_traits *t, pith_error *err)
{
    bool marks_alone = (t->needs & ~(uint32_t)KEEP_NEED_PLACES) == KEEP_NEED_WRITTEN;
    if (t->reads_parts)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "read: a token that is evaluated alone reads otherwise than several at "
                       "once, so that none can be drafted");
    if (t->recalls_kv || t->recalls_text)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "recall: what comes back depends on which tokens are evaluated together, so "
                       "that none can be drafted");
    if (t->shares)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "share: steps are tokens that are evaluated alone, so that none can be "
                       "drafted");
    if (t->overwrites)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s overwrites entries, so that there is no way back from a draft",
                       t->keep);
    if (t->remembers && !marks_alone)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s remembers every token that it saw, so that there is no way back "
                       "from a draft",
                       t->keep);
    if (t->waits)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: rounds: prompt-end: a draft would be taken for a prompt, so that "
                       "nothing can be drafted");
    return PITH_OK;
}

/* ---- what is refused over several ranks ---- */

/* By rows a rank sees the lanes of its own KV heads, by layers the lanes of its own layers. With
   latent attention each rank holds all lanes, and has some of their query heads. */

static pith_status check_all_lanes(const struct engine_traits *t, pith_error *err)
{
    if (t->recalls_kv || t->recalls_text || t->shares)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: over ranks there is none: it looks at all lanes",
                       t->shares ? "share" : "recall");
    return PITH_OK;
}

static pith_status check_read_rows(const struct engine_traits *t, pith_error *err)
{
    if (t->reads_parts)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "read: over ranks all that is stored is read: a choice looks at all query "
                       "heads");
    return PITH_OK;
}

/* A layer that chooses for itself has all its heads on one rank. */
static pith_status check_read_layers(const struct engine_traits *t, pith_error *err)
{
    if (t->reads_for_all || t->reads_file)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "read: %s: over ranks it cannot work: it %s all layers", t->read,
                       t->reads_for_all ? "chooses for" : "reads a file of");
    return PITH_OK;
}

static pith_status check_budget(const struct engine_traits *t, pith_error *err)
{
    if (t->bytes)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: budget: over ranks it is a number of tokens or a share of them",
                       t->keep);
    return PITH_OK;
}

static pith_status check_even(const struct engine_traits *t, bool layers, pith_error *err)
{
    if (t->uneven_heads || (layers && t->uneven_layers))
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: over ranks budgets are even: write no %sheads or split", t->keep,
                       layers ? "layers, " : "");
    return check_budget(t, err);
}

/* Ranks exchange the scores of a round (keep/rules/elsewhere.c), but not
   the scores of each token. */
static pith_status check_rows(const struct engine_traits *t, pith_error *err)
{
    PI_TRY(check_all_lanes(t, err));
    PI_TRY(check_read_rows(t, err));
    PI_TRY(check_even(t, false, err));
    if (t->overwrites && !t->lanes_apart)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: overwrite: over ranks each lane decides for itself: write "
                       "granularity=layer-head",
                       t->keep);
    if (t->heads_share)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: over ranks a layer's heads cannot share its budget; all lanes "
                       "can (granularity=global), and --split layers has whole layers",
                       t->keep);
    return PITH_OK;
}

static pith_status check_layers(const struct engine_traits *t, pith_error *err)
{
    PI_TRY(check_all_lanes(t, err));
    PI_TRY(check_read_layers(t, err));
    return check_even(t, true, err);
}

/* All ranks take the same entries from a lane. Keys, values and hidden states are the same there;
   queries and attention's weights are of a rank's own heads. */
static pith_status check_latent(const struct engine_traits *t, pith_error *err)
{
    const uint32_t alike = KEEP_NEED_PLACES | KEEP_NEED_VALUE_NORM | KEEP_NEED_WRITTEN;
    PI_TRY(check_all_lanes(t, err));
    PI_TRY(check_read_rows(t, err));
    if ((t->needs & ~alike) != 0)
        return pi_fail(
            err, PITH_UNSUPPORTED,
            "keep: %s: it looks at queries, and each rank has others of a lane of latent "
            "attention; --split layers has all",
            t->keep);
    return check_budget(t, err);
}

pith_status engine_traits_check(const struct engine_traits *t, pith_use use, pith_error *err)
{
    static pith_status (*const checks[PITH_N_USE])(const struct engine_traits *, pith_error *) = {
        [PITH_USE_PREFIX] = check_prefix,       [PITH_USE_FILE] = check_file,
        [PITH_USE_DRAFT] = check_draft,         [PITH_USE_RANKS_ROWS] = check_rows,
        [PITH_USE_RANKS_LAYERS] = check_layers, [PITH_USE_RANKS_LATENT] = check_latent,
    };
    return checks[use] != NULL ? checks[use](t, err) : PITH_OK;
}

/* ---- what is to be known ---- */

static void note_evaluate(const struct engine_traits *t, pith_error *out)
{
    if (t->recalls_kv)
        pi_fail(out, PITH_OK,
                "recall: guests take their part of the keep budget, so that more is evicted");
    else if (t->coarse_keys)
        pi_fail(out, PITH_OK,
                "type_k: q8_0 takes its place where %d query heads or more share a KV head, unless "
                "it is forced",
                PITH_SHARED_KEYS);
}

static void note_prefix(const struct engine_traits *t, pith_error *out)
{
    if (t->evicts)
        pi_fail(out, PITH_OK, "keep: a sequence gives what it had before its first round");
    else if (t->shares)
        pi_fail(out, PITH_OK, "share: a sequence gives its prompt, not what it generated");
}

static void note_fork(const struct engine_traits *t, pith_error *out)
{
    if (t->bounded)
        pi_fail(out, PITH_OK, "keep: a round copies the pages that forks have in common");
}

static void note_swap(const struct engine_traits *t, pith_error *out)
{
    if (t->recalls_kv)
        pi_fail(out, PITH_OK, "%s", engine_guests_stay);
    else if (t->recalls_text)
        pi_fail(out, PITH_OK,
                "recall: a sequence whose question was asked waits in host memory; before that its "
                "tokens are read again");
    else if (!t->counts_steps)
        pi_fail(out, PITH_OK,
                "its tokens are read again instead, which gives the same entries without host "
                "memory");
}

static void note_file(const struct engine_traits *t, pith_error *out)
{
    if (t->recalls_kv)
        pi_fail(out, PITH_OK, "recall: a file holds neither what was evicted nor guests");
    else if (t->shares)
        pi_fail(out, PITH_OK, "share: a file holds what is shared, but not which steps there were");
    else if (t->remembers)
        pi_fail(out, PITH_OK,
                "keep: what the policy remembers goes on only under the same policy and options");
}

static void note_draft(const struct engine_traits *t, pith_error *out)
{
    if (t->evicts)
        pi_fail(out, PITH_OK, "keep: a draft ends before the token at which a round is due");
}

void engine_traits_note(const struct engine_traits *t, pith_use use, pith_error *out)
{
    static void (*const notes[PITH_N_USE])(const struct engine_traits *, pith_error *) = {
        [PITH_USE_EVALUATE] = note_evaluate, [PITH_USE_PREFIX] = note_prefix,
        [PITH_USE_FORK] = note_fork,         [PITH_USE_SWAP] = note_swap,
        [PITH_USE_FILE] = note_file,         [PITH_USE_DRAFT] = note_draft,
    };
    if (notes[use] != NULL)
        notes[use](t, out);
}

/* ---- before there is a model ---- */

/* Lanes as many models have them, which every policy and storage type fits. */
static const struct kv_geometry usual = {.n_layer = 32, .n_head = 8, .dim_k = 128, .dim_v = 128};

pith_status pith_policies_fit(const pith_engine_params *params, pith_use use, pith_error *out)
{
    struct policy_set set;
    struct kv_geometry g = usual;
    if (params == NULL)
        return pi_fail(out, PITH_INVALID, "pith_policies_fit: params must not be NULL");
    if ((int)use < 0 || use >= PITH_N_USE)
        return pi_fail(out, PITH_INVALID, "pith_policies_fit: use: %d is not in 0..%d", (int)use,
                       PITH_N_USE - 1);
    PI_TRY(policy_set_parse(params, &set, out));
    g.page_len = params->page_len > 0 ? params->page_len : policy_set_page_len(&set);
    PI_TRY(kv_geometry_read_types(&g, params->type_k, params->type_v, &set.k, out));
    PI_TRY(kv_geometry_check(&g, out));
    PI_TRY(policy_set_fit(&set, &g, out));
    struct engine_traits t = engine_traits_compute(&set);
    PI_TRY(engine_traits_check(&t, use, out));
    *out = (pith_error){.status = PITH_OK};
    engine_traits_note(&t, use, out);
    return PITH_OK;
}
