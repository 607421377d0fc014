/*
 * rope.h - rotary positions: which dimensions rotate, how fast, and in which pairing. Phases are
 * computed in double, so that positions far out keep their angle.
 */
#ifndef PI_ROPE_H
#define PI_ROPE_H

#include "base/base.h"

struct pi_rope {
    int32_t n_pair;  /* rotated pairs of a head; dimensions 2 * n_pair and above are left alone */
    bool adjacent;   /* pairs (2i, 2i+1); otherwise (i, i + n_pair) */
    double *freq;    /* [n_pair] radians per position, scaling included; owned */
    float magnitude; /* factor on cos and sin (YaRN); 1 otherwise */
    float base;      /* of the frequencies before scaling, for reports */
    float factor;    /* of their scaling; 1: none */
    bool linear;     /* and whether that is one of all frequencies */
};

void pi_rope_free(struct pi_rope *rope);

/* cs[2i] = magnitude * cos(pos * freq[i]), cs[2i+1] = magnitude * sin(...); [n_pair][2]. */
void pi_rope_fill(const struct pi_rope *rope, int32_t pos, float *cs);

/* The same without the magnitude: rotates an already rotated vector on by delta positions. */
void pi_rope_fill_delta(const struct pi_rope *rope, int32_t delta, float *cs);

/* out [dim] = the vector x [dim] as it was before it was rotated to pos, magnitude included; out
   may be x. cs [n_pair][2] is scratch. */
void pi_rope_turn_back(const struct pi_rope *rope, int32_t pos, const float *x, int32_t dim,
                       float *cs, float *out);

#endif
