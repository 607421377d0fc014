/*
 * fetch.c - asks the system for experts as soon as they are chosen, where the weights lie in a file
 * that is not whole in memory. A pass then waits less for the disk, and reads those experts alone.
 * By itself the system reads around the bytes that a pass needs, and only when it needs them. Other
 * weights the system reads ahead well enough, since a pass uses them in their order.
 */
#include "model/pass.h"

static void want(const struct pith_model *m, const struct pi_matrix *w, int32_t expert)
{
    size_t size = (size_t)w->n_group * w->group_bytes;
    if (w->data == NULL)
        return;
    const uint8_t *at = pi_matrix_slab(w, expert).data;
    pi_file_want_missing(&m->weights_file, (size_t)(at - m->weights_file.data), size);
}

void pi_pass_fetch_experts(const struct pi_pass *pass)
{
    const struct pi_layer *layer = pass->now.layer;
    const struct pith_model *m = pass->model;
    int32_t room[PI_MOE_MAX_EXPERT + 1];
    size_t n_expert = (size_t)m->hp.moe.n_expert;
    if (m->weights_file.data == NULL || !pass->device->in_host)
        return;
    const int32_t *busy = pass->device->download(pass->stream, pass->moe.places.busy,
                                                 (n_expert + 1) * sizeof(*room), room);
    for (int32_t i = 0; i < busy[n_expert]; i++) { /* n_busy lies after busy */
        want(m, &layer->moe.gate, busy[i]);
        want(m, &layer->moe.up, busy[i]);
        want(m, &layer->moe.down, busy[i]);
    }
}
