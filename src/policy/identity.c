/*
 * identity.c - whose a file is that was made for a model. Pure functions.
 */
#include "policy/identity.h"

#include "base/mem.h"
#include "file/sum.h"

char *policy_name(const char *name, size_t n)
{
    char *copy = pi_mem_strndup(PI_MEM_OTHER, name, n);
    for (size_t i = 0; copy != NULL && i < n; i++) {
        uint8_t byte = (uint8_t)copy[i], next = (uint8_t)copy[i + 1]; /* the last: the zero */
        if ((byte > 0 && byte < ' ') || byte == 0x7f)
            copy[i] = '?';
        if (byte == 0xc2 && next >= 0x80 && next < 0xa0) /* UTF-8 of U+0080..U+009F */
            copy[i] = copy[i + 1] = '?';
    }
    return copy;
}

static void add_vector(struct pi_sum *hash, const float *x, int32_t n)
{
    if (x != NULL)
        pi_sum_add(hash, x, (size_t)n * sizeof(*x));
}

uint64_t policy_fingerprint(const struct pith_model *m)
{
    struct pi_sum hash;
    const struct pi_hparams *hp = &m->hp;
    const int32_t shape[] = {hp->n_layer, hp->n_embd, hp->n_ff,  hp->n_head, hp->n_head_kv,
                             hp->dim_k,   hp->dim_v,  hp->n_rot, hp->n_vocab};
    pi_sum_start(&hash);
    pi_sum_add(&hash, shape, sizeof(shape));
    pi_sum_add(&hash, m->rope.freq, (size_t)m->rope.n_pair * sizeof(double));
    if (m->kv_window != NULL)
        pi_sum_add(&hash, m->kv_window, (size_t)hp->n_layer_kv * sizeof(*m->kv_window));
    if (m->rope_local.n_pair > 0)
        pi_sum_add(&hash, m->rope_local.freq, (size_t)m->rope_local.n_pair * sizeof(double));
    for (int32_t l = 0; m->layer != NULL && l < hp->n_layer; l++) {
        const struct pi_layer *layer = &m->layer[l];
        for (int32_t i = 0; i < layer->n_block; i++)
            add_vector(&hash, layer->block[i].norm, hp->n_embd);
        add_vector(&hash, layer->attn.q_norm, hp->dim_k);
        add_vector(&hash, layer->attn.k_norm, hp->dim_k);
    }
    uint64_t value = pi_sum_value(&hash);
    return value != 0 ? value : 1;
}
