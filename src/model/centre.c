/*
 * centre.c - the constant of centre.h, computed from the model's weights alone. It reads no text,
 * so it is the same for every sequence and every run. A key is R_p (W x + b), R_p the rotation of
 * its position. Where b is large and its pair rotates slowly, R_p b is nearly the same everywhere.
 * Its mean over positions is the common part of all keys. Where the pair rotates fast, the mean is
 * near 0 and nothing is subtracted.
 */
#include "model/centre.h"

#include <math.h>

#include "base/mem.h"

/* turn [n_pair][2]: the mean of magnitude * (cos, sin)(p freq) over the positions p. */
static void mean_turns(const struct pi_rope *rope, double *turn)
{
    for (int32_t i = 0; i < rope->n_pair; i++) {
        double c = 0.0, s = 0.0;
        for (int32_t p = 0; p < PI_CENTRE_POSITIONS; p++) {
            c += cos(p * rope->freq[i]);
            s += sin(p * rope->freq[i]);
        }
        turn[2 * i] = (double)rope->magnitude * c / PI_CENTRE_POSITIONS;
        turn[2 * i + 1] = (double)rope->magnitude * s / PI_CENTRE_POSITIONS;
    }
}

/* (a, b) -> (a c - b s, a s + b c) of each pair; dimensions without a pair stay. */
static void turn_head(const struct pi_rope *rope, const float *bias, const double *turn,
                      int32_t dim, float *out)
{
    memcpy(out, bias, (size_t)dim * sizeof(*out));
    for (int32_t i = 0; i < rope->n_pair; i++) {
        int32_t first = rope->adjacent ? 2 * i : i;
        int32_t second = rope->adjacent ? 2 * i + 1 : i + rope->n_pair;
        double a = (double)bias[first], b = (double)bias[second];
        out[first] = (float)(a * turn[2 * i] - b * turn[2 * i + 1]);
        out[second] = (float)(a * turn[2 * i + 1] + b * turn[2 * i]);
    }
}

pith_status pi_centre_create(const struct pith_model *model, float **out, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    size_t n_k = (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    for (int32_t i = 0; i < hp->n_layer_kv; i++) {
        const struct pi_layer *layer = pi_model_kv_layer(model, i);
        if (layer->attn.bk == NULL || layer->attn.k_norm != NULL || layer->rope != &model->rope)
            return pi_fail(err, PITH_UNSUPPORTED,
                           "type_k: centre subtracts the mean of the rotated key bias, and the "
                           "keys of the model's layer %d have no bias after their norm",
                           model->kv_layer[i]);
    }
    double *turn = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)model->rope.n_pair + 1, 2 * sizeof(*turn));
    float *centre = pi_mem_alloc_n(PI_MEM_OTHER, n_k * (size_t)hp->n_layer_kv, sizeof(*centre));
    if (turn == NULL || centre == NULL) {
        pi_mem_free(turn);
        pi_mem_free(centre);
        return pi_fail(err, PITH_NOMEM, "no memory for the centres of %d layers", hp->n_layer_kv);
    }
    mean_turns(&model->rope, turn);
    for (int32_t l = 0; l < hp->n_layer_kv; l++)
        for (int32_t h = 0; h < hp->n_head_kv; h++) {
            size_t at = (size_t)h * (size_t)hp->dim_k;
            turn_head(&model->rope, pi_model_kv_layer(model, l)->attn.bk + at, turn, hp->dim_k,
                      centre + (size_t)l * n_k + at);
        }
    pi_mem_free(turn);
    *out = centre;
    return PITH_OK;
}
