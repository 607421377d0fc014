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
    PI_TRY(read_config_parse(params->read, &out->read, err));
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

/* The weights that a keep policy is shown would be those of what was read. */
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

/* Who looks at keys would see them without their centre, and who reads a page at other positions
   turns queries, whose products with the centre are then others. */
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

pith_status policy_set_fit(struct policy_set *set, struct kv_geometry *g, pith_error *err)
{
    PI_TRY(read_config_fit(&set->read, g, err)); /* pages hold its index, too */
    PI_TRY(keep_config_fit(&set->keep, g, err));
    PI_TRY(recall_config_fit(&set->recall, g, &set->keep, err));
    PI_TRY(share_config_fit(&set->share, &set->keep, &set->recall, err));
    PI_TRY(check_centre(set, err));
    return check_read(set, err);
}

int64_t policy_set_bytes(const struct policy_set *set, const struct kv_geometry *g,
                         struct keep_point to)
{
    return keep_bytes_to(&set->keep, g, to) +
           recall_bytes_at(&set->recall, &set->keep, g, to.n_token) +
           share_bytes_at(&set->share, g, to.n_token, keep_most_at(&set->keep, to.n_token));
}
