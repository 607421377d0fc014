/*
 * over_ranks.c - see over_ranks.h. It knows what policies look at from their options alone.
 */
#include "engine/over_ranks.h"

#include "base/ranks.h"

static pith_status check_keep(const struct keep_config *c, pith_error *err)
{
    const struct keep_rules *r = &c->rules;
    if (c->policy == NULL)
        return PITH_OK;
    if (keep_config_allots(c) || r->granularity != KEEP_LAYER_HEAD ||
        strcmp(r->heads, "even") != 0 || strcmp(r->split, "even") != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: over ranks each lane decides for itself: write "
                       "granularity=layer-head, and no heads or split",
                       c->policy->name);
    if (r->stats[0] != '\0')
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep: %s: stats: over ranks no policy reads statistics of heads",
                       c->policy->name);
    if (strcmp(c->policy->name, "random") == 0)
        return pi_fail(err, PITH_UNSUPPORTED, "keep: random: over ranks its draws would be others");
    return PITH_OK;
}

pith_status pi_over_ranks_check(const struct policy_set *set, const struct pi_device *device,
                                pith_error *err)
{
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    struct engine_traits t = engine_traits_compute(set);
    if (!device->in_host)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "device: %s: over ranks only processors compute (cpu)", device->name);
    if (t.reads_parts)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "read: over ranks all that is stored is read: a choice looks at all query "
                       "heads");
    if (t.recalls_kv || t.recalls_text || t.shares)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: over ranks there is none: it looks at all lanes",
                       t.shares ? "share" : "recall");
    return check_keep(&set->keep, err);
}

pith_status pi_over_ranks_check_file(pith_error *err)
{
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    return pi_fail(
        err, PITH_UNSUPPORTED,
        "over ranks a sequence cannot be saved or loaded: each has a part of its entries");
}

int64_t pi_over_ranks_part(const struct pith_model *model, int64_t bytes)
{
    const struct pi_hparams *hp = &model->hp;
    if (pi_ranks()->n_rank == 1)
        return bytes;
    return bytes / hp->whole.n_head_kv * hp->n_head_kv;
}

int64_t pi_over_ranks_pages(const struct pith_model *model, const struct kv_geometry *g,
                            int64_t bytes)
{
    int64_t page = (int64_t)kv_page_bytes(g) * model->hp.n_head_kv;
    return pi_ranks()->n_rank == 1 ? bytes : pi_ranks_least(bytes / page) * page;
}

int64_t pi_over_ranks_whole(const struct pith_model *model, int64_t bytes)
{
    const struct pi_hparams *hp = &model->hp;
    if (pi_ranks()->n_rank == 1)
        return bytes;
    return pi_ceil_div(bytes, hp->n_head_kv) * hp->whole.n_head_kv;
}

double pi_over_ranks_seconds(double seconds)
{
    pi_ranks_tell(&seconds, sizeof(seconds));
    return seconds;
}
