/*
 * shape.c - answers about a model that need no more than looking: shape.h.
 */
#include "model/shape.h"

#include "file/sum.h"
#include "model/model.h"

const struct pi_hparams *pi_model_hparams(const struct pith_model *m)
{
    return &m->hp;
}

const char *pi_model_name(const struct pith_model *m)
{
    return m->name;
}

bool pi_model_has_layers(const struct pith_model *m)
{
    return m->layer != NULL;
}

/* ---- rotations ---- */

const struct pi_rope *pi_model_kv_rope(const struct pith_model *m, int32_t kv_layer)
{
    return m->kv_rope != NULL ? m->kv_rope[kv_layer] : &m->rope;
}

const struct pi_rope *pi_model_rope(const struct pith_model *m)
{
    for (int32_t l = 0; m->layer != NULL && l < m->hp.n_layer_full; l++)
        if (m->kv_rope[l] != &m->rope_none)
            return m->kv_rope[l];
    return &m->rope;
}

pith_status pi_model_check_full(const struct pith_model *m, const char *field, pith_error *err)
{
    if (m->layer != NULL && m->hp.n_layer_full == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: all %d layers with attention see a window, which policies leave alone",
                       field, m->hp.n_layer_kv);
    for (int32_t l = 0; m->layer != NULL && l < m->hp.n_layer_full; l++)
        if (m->kv_rope[l] != pi_model_rope(m) && m->kv_rope[l] != &m->rope_none)
            return pi_fail(err, PITH_UNSUPPORTED,
                           "%s: the model's layer %d has a rotation of its own, which policies and "
                           "statistics do not know",
                           field, m->kv_layer[l]);
    return PITH_OK;
}

/* ---- the fingerprint ---- */

static void add_vector(struct pi_sum *hash, const float *x, int32_t n)
{
    if (x != NULL)
        pi_sum_add(hash, x, (size_t)n * sizeof(*x));
}

uint64_t pi_model_fingerprint(const struct pith_model *m)
{
    struct pi_sum hash;
    const struct pi_hparams *hp = &m->hp;
    const struct pi_whole_shape *all = &hp->whole;
    bool part = pi_shape_is_part(hp);
    const int32_t shape[] = {part ? all->n_layer : hp->n_layer,
                             hp->n_embd,
                             all->n_ff,
                             all->n_head,
                             all->n_head_kv,
                             hp->dim_k,
                             hp->dim_v,
                             hp->n_rot,
                             hp->n_vocab};
    pi_sum_start(&hash);
    pi_sum_add(&hash, shape, sizeof(shape));
    pi_sum_add(&hash, m->rope.freq, (size_t)m->rope.n_pair * sizeof(double));
    if (part) /* which all ranks have */
        add_vector(&hash, m->output_norm, hp->n_embd);
    if (m->kv_window != NULL && !part)
        pi_sum_add(&hash, m->kv_window, (size_t)hp->n_layer_kv * sizeof(*m->kv_window));
    if (m->rope_local.n_pair > 0)
        pi_sum_add(&hash, m->rope_local.freq, (size_t)m->rope_local.n_pair * sizeof(double));
    for (int32_t l = 0; m->layer != NULL && l < hp->n_layer && !part; l++) {
        const struct pi_layer *layer = &m->layer[l];
        for (int32_t i = 0; i < layer->n_block; i++)
            add_vector(&hash, layer->block[i].norm, hp->n_embd);
        add_vector(&hash, layer->attn.q_norm, hp->dim_k);
        add_vector(&hash, layer->attn.k_norm, hp->dim_k);
    }
    uint64_t value = pi_sum_value(&hash);
    return value != 0 ? value : 1;
}

/* ---- weights ---- */

void pi_model_output_row(const struct pith_model *m, int32_t kv_layer, int32_t r, float *out)
{
    const struct pi_layer *layer = pi_model_kv_layer(m, kv_layer);
    bool latent = m->hp.latent.n_rank > 0;
    pi_matmul_unpack_row(latent ? &layer->latent.out : &layer->attn.wo, r, out);
}

void pi_model_expand_row(const struct pith_model *m, int32_t kv_layer, int32_t head, int32_t r,
                         float *out)
{
    struct pi_matrix slab = pi_matrix_slab(&pi_model_kv_layer(m, kv_layer)->latent.expand, head);
    pi_matmul_unpack_row(&slab, r, out);
}
