/*
 * placed.c - packs a model's weights for a device. Invariant: whatever there is when memory ends
 * can be freed.
 */
#include "model/placed.h"

/* False: no memory. A matrix that the model has not, or not packed, stays without data. */
static bool place(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab,
                  struct pi_weight *out)
{
    *out = (struct pi_weight){w->type, w->n_row, w->n_col, w->n_group, w->group_bytes, {0}};
    if (w->data != NULL)
        out->data = d->pack(d, w, n_slab);
    return w->data == NULL || pi_at_some(out->data);
}

static bool place_layer(struct pi_device *d, const struct pi_hparams *hp,
                        const struct pi_layer *layer, struct pi_placed_layer *out)
{
    bool ok = true;
    (void)hp;
#define PLACE(name, n_slab) ok = ok && place(d, &layer->name, n_slab, &out->name);
    PI_LAYER_MATRICES(PLACE)
#undef PLACE
    return ok;
}

static bool place_all(const struct pith_model *m, struct pi_placed *out)
{
    struct pi_device *d = out->device;
    out->vectors = d->pack_vector(d, m->vectors, pi_mem_size(m->vectors) / sizeof(float));
    bool ok = pi_at_some(out->vectors) && place(d, &m->output, 1, &out->output);
    if (m->embd.data == m->output.data)
        out->embd = out->output;
    else
        ok = ok && place(d, &m->embd, 1, &out->embd);
    for (int32_t l = 0; ok && l < m->hp.n_layer; l++)
        ok = place_layer(d, &m->hp, &m->layer[l], &out->layer[l]);
    return ok;
}

pith_status pi_placed_make(const struct pith_model *model, struct pi_device *device,
                           struct pi_placed *out, pith_error *err)
{
    *out = (struct pi_placed){.device = device, .model = model};
    out->layer = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)model->hp.n_layer, sizeof(*out->layer));
    if (out->layer == NULL || !place_all(model, out))
        return pi_fail(err, PITH_NOMEM, "no memory for the weights of %d layers on the %s",
                       model->hp.n_layer, device->name);
    return PITH_OK;
}

void pi_placed_free(struct pi_placed *placed)
{
    struct pi_device *d = placed->device;
    for (int32_t l = 0; placed->layer != NULL && l < placed->model->hp.n_layer; l++) {
#define FORGET(name, n_slab) d->unpack(d, placed->layer[l].name.data);
        PI_LAYER_MATRICES(FORGET)
#undef FORGET
    }
    if (d != NULL) {
        if (placed->embd.data.at != placed->output.data.at)
            d->unpack(d, placed->embd.data);
        d->unpack(d, placed->output.data);
        d->unpack(d, placed->vectors);
    }
    pi_mem_free(placed->layer);
    *placed = (struct pi_placed){0};
}
