/*
 * relay.c - which layer chooses for which. It scores nothing: the policies score entries.
 * Invariant: where relay_check accepted, some layer reuses, and each that does has one before it
 * that chooses.
 */
#include "policy/read/relay.h"

/* The authors' models have 32 layers, where layer 2 chooses and layer 13 anew: 11 of 29 behind. */
#define PAPER_BEHIND 11
#define PAPER_REST 29

int32_t relay_reselect(const struct relay_form *form, int32_t n_layer)
{
    int32_t first = form->source + 2, last = n_layer - 2;
    if (form->reselect > 0)
        return form->reselect;
    if (first > last)
        return n_layer;
    int32_t behind = (PAPER_BEHIND * (n_layer - 1 - form->source) + PAPER_REST / 2) / PAPER_REST;
    return (int32_t)pi_min(pi_max(form->source + behind, first), last);
}

enum read_role relay_role(const void *params, const struct policy_model *model, int32_t layer)
{
    const struct relay_form *form = params;
    if (layer < form->source)
        return READ_DENSE;
    if (layer == form->source || layer == relay_reselect(form, model->g.n_layer))
        return READ_SOURCE;
    return READ_REUSE;
}

pith_status relay_check(const void *params, const struct read_rules *rules,
                        const struct kv_geometry *g, pith_error *err)
{
    const struct relay_form *form = params;
    (void)rules;
    if (g->n_layer < 2)
        return pi_fail(err, PITH_INVALID,
                       "read: source: the model has one layer, and none behind it to choose for");
    if (form->source > g->n_layer - 2)
        return pi_fail(
            err, PITH_INVALID,
            "read: source: layer %d has none behind it to choose for in a model of %d layers: "
            "give source=0 to source=%d",
            form->source, g->n_layer, g->n_layer - 2);
    if (form->reselect > 0 && form->reselect <= form->source)
        return pi_fail(
            err, PITH_INVALID,
            "read: reselect: layer %d is not behind layer %d, which chooses first (source)",
            form->reselect, form->source);
    if (form->source == g->n_layer - 2 && form->reselect == g->n_layer - 1)
        return pi_fail(
            err, PITH_INVALID,
            "read: reselect: with layer %d choosing anew no layer of %d reuses what layer %d "
            "(source) chose",
            form->reselect, g->n_layer, form->source);
    return PITH_OK;
}
