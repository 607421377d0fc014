/*
 * fetch.c - asks the system for weights before the pass comes to them, where they lie in a file and
 * memory had not all of them. A pass then waits for a disk less, and it reads what it needs alone:
 * of experts those that were chosen. It must not know what a block computes.
 *
 * Asking costs some microseconds per megabyte even where nothing has to be read. So nobody asks
 * until the process has read from a disk since the pass before.
 */
#include "model/pass.h"

/* Asks for a part of the packed weights. */
static void want(const struct pi_pass *pass, const uint8_t *at, size_t size)
{
    const struct pith_model *m = pass->model;
    if (pass->fetches)
        pi_file_want(&m->weights_file, (size_t)(at - m->weights_file.data), size);
}

static void want_slab(const struct pi_pass *pass, const struct pi_matrix *w, int32_t i)
{
    if (w->data != NULL)
        want(pass, pi_matrix_slab(w, i).data, (size_t)w->n_group * w->group_bytes);
}

void pi_pass_fetch_begin(struct pi_pass *pass)
{
    pass->fetches = false;
    if (pass->model->weights_file.data == NULL)
        return;
    int64_t n = pi_disk_reads();
    pass->fetches = n != pass->disk_reads;
    pass->disk_reads = n;
    pi_pass_fetch_layer(pass, 0);
}

void pi_pass_fetch_layer(const struct pi_pass *pass, int32_t l)
{
    const struct pith_model *m = pass->model;
    if (l < m->hp.n_layer)
        want(pass, m->weights + m->layer[l].weights_at, m->layer[l].weights_size);
    else
        want_slab(pass, &m->output, 0);
}

void pi_pass_fetch_experts(const struct pi_pass *pass, const int32_t *expert, int32_t n)
{
    const struct pi_layer *layer = pass->layer;
    for (int32_t i = 0; i < n && pass->fetches; i++) {
        want_slab(pass, &layer->w_gate_exps, expert[i]);
        want_slab(pass, &layer->w_up_exps, expert[i]);
        want_slab(pass, &layer->w_down_exps, expert[i]);
    }
}
