/*
 * rope.c - the arithmetic of rotary positions: cosines and sines of a position, and a vector as it
 * was before it was rotated. Where frequencies come from is the model's (model/load_rope.c).
 */
#include "tensor/rope.h"

#include <math.h>

#include "base/mem.h"

void pi_rope_free(struct pi_rope *rope)
{
    pi_mem_free(rope->freq);
    *rope = (struct pi_rope){0};
}

void pi_rope_fill(const struct pi_rope *rope, int32_t pos, float *cs)
{
    pi_rope_fill_delta(rope, pos, cs);
    for (int32_t i = 0; i < 2 * rope->n_pair; i++)
        cs[i] *= rope->magnitude;
}

void pi_rope_fill_delta(const struct pi_rope *rope, int32_t delta, float *cs)
{
    for (int32_t i = 0; i < rope->n_pair; i++) {
        double angle = delta * rope->freq[i];
        cs[2 * i] = (float)cos(angle);
        cs[2 * i + 1] = (float)sin(angle);
    }
}

void pi_rope_turn_back(const struct pi_rope *rope, int32_t pos, const float *x, int32_t dim,
                       float *cs, float *out)
{
    int32_t n = rope->n_pair;
    pi_rope_fill_delta(rope, -pos, cs);
    for (int32_t f = 0; f < n; f++) {
        int32_t i = rope->adjacent ? 2 * f : f, j = rope->adjacent ? 2 * f + 1 : n + f;
        float cosine = cs[2 * f] / rope->magnitude, sine = cs[2 * f + 1] / rope->magnitude;
        float a = x[i], b = x[j];
        out[i] = a * cosine - b * sine;
        out[j] = a * sine + b * cosine;
    }
    for (int32_t i = 2 * n; i < dim; i++)
        out[i] = x[i];
}
