/*
 * set.c - the policies of an engine as options: read, fitted to its lanes, and refused where two of
 * them do not go together. Invariant: nothing here depends on weights or files, so that a pair is
 * refused before either is opened.
 */
#include "policy/traits/traits.h"

pith_status policy_set_parse(const pith_engine_params *params, struct policy_set *out,
                             pith_error *err)
{
    *out = (struct policy_set){0};
    PI_TRY(share_config_parse(params->share, &out->share, err));
    if (params->read_score != NULL)
        PI_TRY(read_config_set_custom(params, &out->read, err));
    else
        PI_TRY(read_config_parse(params->read, &out->read, err));
    if (params->keep_score != NULL)
        PI_TRY(keep_config_set_custom(params, &out->keep, err));
    else
        PI_TRY(keep_config_parse(params->keep, &out->keep, err));
    return recall_config_parse(params->recall, &out->recall, err);
}

/* Pages that are compared are short, so that fewer of them hold some entries of each of two
   steps. */
#define PAGE_LEN 64
#define SHARED_PAGE_LEN 16

int32_t policy_set_page_len(const struct policy_set *set)
{
    if (set->share.kind != SHARE_NONE)
        return SHARED_PAGE_LEN;
    return set->read.policy != NULL && set->read.policy->page_len > 0 ? set->read.policy->page_len
                                                                      : PAGE_LEN;
}

/* The weights that a keep policy is shown would be weights of the read entries only. */
static pith_status check_read(const struct policy_set *set, pith_error *err)
{
    const struct read_config *read = &set->read;
    uint32_t needs = keep_config_needs(&set->keep);
    if (read->policy == NULL)
        return PITH_OK;
    if ((needs & KEEP_NEED_WEIGHTS) != 0)
        return pi_fail(err, PITH_INVALID,
                       "read: %s: keep %s needs the attention of every token to all entries, so "
                       "that nothing can be read in part",
                       read->policy->name, set->keep.policy->name);
    if ((needs & KEEP_NEED_STEP_WEIGHTS) != 0 && read->rules.phase != READ_PROMPT)
        return pi_fail(err, PITH_INVALID,
                       "read: %s: keep %s needs the attention of every generated token to all "
                       "entries; with phase=prompt both work",
                       read->policy->name, set->keep.policy->name);
    return PITH_OK;
}

const char *policy_set_verb(const struct policy_set *set)
{
    return set->keep.policy != NULL          ? "keep"
           : set->read.policy != NULL        ? "read"
           : set->recall.kind != RECALL_NONE ? "recall"
           : set->share.kind != SHARE_NONE   ? "share"
                                             : NULL;
}

/* A policy that looks at keys would see them without their centre. One that reads a page at other
   positions turns queries, whose products with the centre are then others. */
static pith_status check_centre(const struct policy_set *set, pith_error *err)
{
    const char *verb = policy_set_verb(set);
    if (set->k.centre && verb != NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: its policies need whole keys, and type_k's centre stores them less "
                       "their mean",
                       verb);
    return PITH_OK;
}

/* Bytes that lanes with a window hold at most. */
static int64_t window_bytes(const struct kv_geometry *g, const struct kv_geometry *full,
                            int64_t n_token)
{
    return kv_bytes_for_tokens(g, n_token) - kv_bytes_for_tokens(full, n_token);
}

/* A budget in bytes is the whole sequence's: what windows hold is taken off it. */
static pith_status check_bytes(struct policy_set *set, const struct kv_geometry *g,
                               const struct kv_geometry *full, pith_error *err)
{
    struct policy_budget *budget = &set->keep.rules.budget;
    int64_t window = g->window != NULL ? window_bytes(g, full, INT32_MAX) : 0;
    if (set->keep.policy == NULL || budget->unit != POLICY_UNIT_BYTES || window == 0)
        return PITH_OK;
    if (budget->value <= window)
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget of %lld bytes is not more than the %lld that layers with a "
                       "window take",
                       (long long)budget->value, (long long)window);
    budget->value -= window;
    return PITH_OK;
}

pith_status policy_set_fit(struct policy_set *set, struct kv_geometry *g, pith_error *err)
{
    struct kv_geometry full = kv_full_lanes(g);
    if (full.n_layer == 0) /* which pi_model_check_full refuses where there are policies */
        return PITH_OK;
    PI_TRY(read_config_fit(&set->read, &full, err)); /* pages hold its index, too */
    g->index = full.index;
    g->index_dim = full.index_dim;
    PI_TRY(check_bytes(set, g, &full, err));
    PI_TRY(keep_config_fit(&set->keep, &full, err));
    PI_TRY(recall_config_fit(&set->recall, &full, &set->keep, err));
    PI_TRY(share_config_fit(&set->share, &set->keep, &set->recall, err));
    PI_TRY(check_centre(set, err));
    return check_read(set, err);
}

pith_status policy_set_read_scale(const struct policy_set *set, const struct kv_geometry *lanes,
                                  const char *text, double *scale, pith_error *err)
{
    /* Recall takes a part of the budget, which is the whole's. */
    const struct keep_config *whole =
        set->recall.kind == RECALL_KV ? &set->recall.whole : &set->keep;
    *scale = 0.0;
    if (set->keep.policy == NULL && strcmp(text, "none") == 0)
        return PITH_OK;
    if (set->share.kind != SHARE_NONE)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "budget: %.32s: with a share policy every sequence has the engine's", text);
    return keep_read_scale(&set->keep, &whole->rules.budget, lanes, text, scale, err);
}

int64_t policy_set_bytes(const struct policy_set *set, const struct kv_geometry *g,
                         struct keep_point to)
{
    const struct kv_geometry full = kv_full_lanes(g);
    if (full.n_layer == 0)
        return kv_bytes_for_tokens(g, to.n_token);
    return window_bytes(g, &full, to.n_token) + keep_bytes_to(&set->keep, &full, to) +
           recall_bytes_at(&set->recall, &set->keep, &full, to) +
           share_bytes_at(&set->share, &full, to.n_token, keep_most_at(&set->keep, to.n_token));
}
