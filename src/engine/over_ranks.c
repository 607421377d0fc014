/*
 * over_ranks.c - see over_ranks.h. It knows how the model is split, and so which use of the
 * policies this is. The traits say what they cannot do there (policy/traits/uses.c).
 */
#include "engine/over_ranks.h"

#include "base/ranks.h"

/* Whether each rank holds all lanes, and has some of their query heads. */
static bool holds_all(const struct pi_hparams *hp)
{
    return pi_ranks_by_rows() && hp->latent.n_rank > 0;
}

pith_status pi_over_ranks_check(const struct pith_model *model, const struct policy_set *set,
                                const struct pi_device *device, pith_error *err)
{
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    if (!device->in_host)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "device: %s: over ranks only processors compute (cpu)", device->name);
    const struct engine_traits t = engine_traits_compute(set);
    return engine_traits_check(&t,
                               pi_ranks_by_layers()    ? PITH_USE_RANKS_LAYERS
                               : holds_all(&model->hp) ? PITH_USE_RANKS_LATENT
                                                       : PITH_USE_RANKS_ROWS,
                               err);
}

/* ---- layers of the whole model ---- */

/* The layers of an edge that are this rank's, of n without a window, or with one where all have. */
static pith_status fit_edge(const struct pi_hparams *hp, const char *field, struct kv_edge *edge,
                            pith_error *err)
{
    const struct pi_whole_shape *all = &hp->whole;
    bool full = all->n_layer_full > 0;
    int64_t n_all = full ? all->n_layer_full : all->n_layer_kv;
    int64_t n = full ? hp->n_layer_full : hp->n_layer_kv;
    int64_t before = full ? all->first_full : all->first_kv;
    if ((int64_t)edge->first + edge->last > n_all)
        return pi_fail(err, PITH_INVALID,
                       "%s: the first %d and the last %d layers do not fit in %lld layers", field,
                       edge->first, edge->last, (long long)n_all);
    int64_t last = pi_min(pi_max(edge->last - (n_all - before - n), 0), n);
    edge->first = (int32_t)pi_min(pi_max(edge->first - before, 0), n);
    edge->last = (int32_t)last;
    return PITH_OK;
}

pith_status pi_over_ranks_fit(const struct pith_model *model, struct policy_set *set,
                              struct kv_geometry *g, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    struct read_rules *read = &set->read.rules;
    if (keep_config_is_global(&set->keep))
        set->keep.n_elsewhere =
            hp->whole.n_layer_full * hp->whole.n_head_kv - hp->n_layer_full * hp->n_head_kv;
    if (!pi_shape_is_part(hp))
        return PITH_OK;
    read->dense_layers = (int32_t)pi_max(read->dense_layers - hp->whole.first_full, 0);
    PI_TRY(fit_edge(hp, "type_k", &g->edge_k, err));
    return fit_edge(hp, "type_v", &g->edge_v, err);
}

/* ---- memory ---- */

/* Whether lanes of other ranks may take other bytes than this one's for as many tokens. */
static bool has_windows(const struct pi_hparams *hp)
{
    return pi_shape_is_part(hp) && hp->whole.n_layer_full < hp->whole.n_layer_kv;
}

pith_status pi_over_ranks_check_file(pith_error *err)
{
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    return pi_fail(
        err, PITH_UNSUPPORTED,
        "over ranks a sequence cannot be saved or loaded: each has a part of its entries");
}

/* KV memory is divided by KV heads, or by layers with lanes. Lanes that each rank holds take as
   much on all. Returns how many are this rank's. */
static int32_t count_units(const struct pi_hparams *hp, int32_t *n_all)
{
    bool layers = pi_shape_is_part(hp);
    if (holds_all(hp)) {
        *n_all = pi_ranks()->n_rank;
        return 1;
    }
    *n_all = layers ? hp->whole.n_layer_kv : hp->whole.n_head_kv;
    return layers ? hp->n_layer_kv : hp->n_head_kv;
}

int64_t pi_over_ranks_part(const struct pith_model *model, int64_t bytes)
{
    int32_t n_all, n = count_units(&model->hp, &n_all);
    return pi_ranks()->n_rank == 1 ? bytes : bytes / n_all * n;
}

int64_t pi_over_ranks_pages(const struct pith_model *model, const struct keep_config *keep,
                            const struct kv_geometry *g, int64_t bytes)
{
    const struct pi_hparams *hp = &model->hp;
    int64_t unit = (int64_t)kv_page_bytes(g) * hp->n_head_kv, state = kv_bytes_of_state(g);
    if (pi_ranks()->n_rank == 1 || has_windows(hp) || keep_config_allots(keep))
        return bytes;
    if (pi_shape_is_part(hp))
        unit = kv_bytes_for_tokens(g, 1);
    return pi_ranks_least(pi_max(bytes - state, 0) / unit) * unit + state;
}

int64_t pi_over_ranks_whole(const struct pith_model *model, int64_t bytes)
{
    int32_t n_all, n = count_units(&model->hp, &n_all);
    return pi_ranks()->n_rank == 1 ? bytes : pi_ceil_div(bytes, n) * n_all;
}

bool pi_over_ranks_are_alike(const struct pith_engine *e)
{
    const struct pi_hparams *hp = &e->model->hp;
    if (pi_ranks()->n_rank > 1 && keep_config_allots(&e->policies.keep))
        return false;
    return !pi_shape_is_part(hp) || !(has_windows(hp) || hp->delta.n_layer > 0);
}

pith_status pi_over_ranks_agree(const struct pith_engine *e, pith_status status, pith_error *err)
{
    return pi_over_ranks_are_alike(e) ? status : pi_ranks_agree(status, err);
}

double pi_over_ranks_seconds(double seconds)
{
    pi_ranks_tell(&seconds, sizeof(seconds));
    return seconds;
}
