/*
 * vec.h - kernels on rows of activations. Arrays may start at any float; n is any count >= 1. All
 * levels give the same bits: vec_body.h holds the one text that every level is compiled from.
 */
#ifndef PI_VEC_H
#define PI_VEC_H

#include "base/base.h"

/* Keys side by side, dimension d of key j at key[d * stride + j], and the queries that score them.
   Pair f of a key is its dimensions (2f, 2f + 1) where they are adjacent, else (f, f + n_pair).
   Dimensions from 2 * n_pair on have no pair. */
struct pi_vec_score {
    const float *key; /* [dim][stride] */
    size_t stride;
    int32_t n; /* keys */
    int32_t dim;
    int32_t n_pair;
    bool adjacent;
    int32_t n_query;
    const float *w;    /* [n_query][dim] of the dimensions */
    const float *e;    /* of the pairs' moduli, n_pair floats of a query; NULL: they do not count */
    size_t e_stride;   /* floats from a query's e to the next; 0: all have the same */
    float *out;        /* [n_query][out_stride] */
    size_t out_stride; /* at least n */
};

/* Rows of numbers that are added with weights, which change from part to part. Part j is the
   numbers i before end[j] that belong to no earlier part; its weights are c[r] * part[j *
   part_stride + r]. */
struct pi_vec_weigh {
    const float *w; /* [n_row][stride] */
    size_t stride;
    int32_t n_row;
    const float *c;     /* [n_row] */
    const int32_t *end; /* [n_part] ascending; numbers after the last part are not used */
    int32_t n_part;
    const float *part; /* [n_part][part_stride]; NULL: 1 throughout */
    size_t part_stride;
    const uint16_t *factor; /* bf16 */
    float *out;             /* overlaps nothing */
    bool add;               /* adds to out instead of writing */
};

enum { PI_CONV_TAPS = 16 }; /* of a convolution, at most */

/* A convolution over tokens, of each channel by itself. */
struct pi_vec_conv {
    const float *w;    /* [n][n_tap] the last one meets the token itself */
    const float *past; /* [n_tap - 1][past_stride] what came before the first token, oldest first */
    const float *x;    /* [n_tok][x_stride] */
    float *out;        /* [n_tok][out_stride]; overlaps nothing */
    size_t past_stride, x_stride, out_stride;
    int32_t n_tap;
    int32_t n; /* channels */
    int32_t n_tok;
};

/* Tokens that update a head's state one after the other. The state is a matrix S of `dim` rows, one
   per dimension of a key, and n columns, one per dimension of a value. */
struct pi_vec_delta {
    float *state;       /* [ceil(n / 16)][dim][16] column 16 b + l of S at [b][.][l]; those from n
                             on are 0 and stay so */
    const float *q, *k; /* [n_tok][qk_stride] of `dim` floats */
    const float *v;     /* [n_tok][v_stride] of n floats */
    const float *decay; /* [n_tok][gate_stride] one float each, as the next */
    const float *beta;
    const float *kq; /* [n_tok][kq_stride] */
    float *out;      /* [n_tok][out_stride] of n floats; may be v, else overlaps nothing */
    size_t qk_stride, v_stride, gate_stride, kq_stride, out_stride;
    float scale;
    int32_t dim, n, n_tok;
};

struct pi_vec_kernels {
    /* out[i] = x[i] * gain[i] / sqrt(mean(x^2) + eps); out may be x. The mean is taken in
       double. */
    void (*rms_norm)(const float *x, const float *gain, float *out, int32_t n, float eps);
    /* The largest of x[0 .. n), and the sum of exp(x[i] - max), whose terms have an error of 2
       units in the last place. n is at least 1, and max at least each x. */
    float (*largest)(const float *x, int32_t n);
    double (*exp_sum)(const float *x, int32_t n, float max);
    /* x[i] += y[i] */
    void (*add)(float *x, const float *y, int32_t n);
    /* gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; error below 1e-6 relative */
    void (*silu_mul)(float *gate, const float *up, int32_t n);
    /* With g = min(gate[i], 7) and u = up[i] within -7..7: gate[i] = g / (1 + exp(-1.702 g)) * (u +
       1); error below 1e-6 + 2e-7 |g| relative. The activation of OpenAI's gpt-oss. */
    void (*oai_mul)(float *gate, const float *up, int32_t n);
    /* gate[i] = g(gate[i]) * up[i] with the GELU of tanh, g(x) = x / 2 * (1 + tanh(u)) = x / (1 +
       exp(-2 u)), u = sqrt(2 / pi) * (x + 0.044715 x^3). The error is below 1e-5 relative */
    void (*gelu_mul)(float *gate, const float *up, int32_t n);
    /* x[i] = cap * tanh(x[i] / cap), cap > 0; error below 3e-7 of cap. NaN stays NaN. */
    void (*soft_cap)(float *x, float cap, int32_t n);
    /* Rotary positions of one head, in place. Pairs are (x[2i], x[2i+1]) when adjacent, else (x[i],
       x[i + n_pair]). A pair becomes (a, b) -> (a c - b s, a s + b c) with c = cs[2i], s =
       cs[2i+1]. */
    void (*rope)(float *x, const float *cs, int32_t n_pair, bool adjacent);
    /* Blocks of 32: scale = max|x| / 127, q = x * (127 / max|x|) rounded to nearest even, or 0 when
       all are below PI_ACT_LEAST. sum16 is the sums of q over 16. n is the row's length; q is
       padded with zeros to a multiple of 32. x is finite. */
    void (*quantize)(const float *x, int32_t n, int8_t *q, float *scale, int16_t *sum16);
    /* Rows of IEEE half floats, rounded to nearest even; beyond 65,504 infinity. */
    void (*f16_from_f32)(const float *x, uint16_t *out, int32_t n);
    void (*f32_from_f16)(const uint16_t *x, float *out, int32_t n);
    /* For each query q and key j, out[q][j] is a sum from 0, one by one, nothing fused. For each
       pair f, ascending, it adds w[q][a] x_a, w[q][b] x_b and e[q][f] sqrt(x_a^2 + x_b^2). Then it
       adds w[q][d] x_d for each dimension d without a pair. out overlaps no input. */
    void (*score)(const struct pi_vec_score *s);
    /* Sum of x[i] - mean, or of its square, in double: sixteen partial sums, part j of x[j],
       x[j + 16], ..., then their halves are added. */
    double (*sum)(const float *x, int32_t n, double mean, bool square);
    /* x[i] = (x[i] - mean) * scale, in double, rounded once. */
    void (*standardise)(float *x, int32_t n, double mean, double scale);
    /* z[i] = x[i] where that is greater; neither is NaN. */
    void (*take_max)(float *z, const float *x, int32_t n);
    /* out[i] = factor[i] * (c[0] w[0][i] + c[1] w[1][i] + ...), products added in the order of the
       rows, each by a fused multiply-add. With add, the result is rounded and added to out. */
    void (*weigh)(const struct pi_vec_weigh *weigh);
    /* The index of the lowest x among entries with lo <= age < hi, and among equals the one of the
       lowest age. -1 where there is none. No two entries in that range have the same age. NaN
       counts as 0. */
    int32_t (*lowest)(const float *x, const int32_t *age, int32_t n, int32_t lo, int32_t hi);
    /* The index of the lowest x where only one entry has it and it is finite and above 0. Otherwise
       -1, and also where some x is NaN or has a negative sign. */
    int32_t (*single_lowest)(const float *x, int32_t n);
    /* Sum of (x[i] - y[i])^2: sixteen partial sums as in sum, but in float. */
    float (*distance)(const float *x, const float *y, int32_t n);
    /* x = A H B x * scale in place, n a power of two from 16 to 128. B and A flip the sign of the
       elements whose bits are 0 in before and after; word i / 32 has bit i, lowest first. H is
       Hadamard's matrix in Sylvester's order without a factor. It is computed by butterflies (a, b)
       -> (a + b, a - b) of elements 1, 2, 4, ... n / 2 apart, in that order. The factor is
       multiplied last. */
    void (*wht)(float *x, int32_t n, const uint32_t *before, const uint32_t *after, float scale);
    /* The nearest of n_code centroids for each x; centroids ascend in table and are multiplied by
       length. It is the largest centroid whose midpoint with the one before it, times length, is at
       most x. n is a multiple of 16 up to 128, n_code at most 16. */
    void (*table_codes)(const float *x, int32_t n, const float *table, int32_t n_code, float length,
                        uint8_t *code);
    /* The fit of those codes: along = sum of x[i] c[i], own = sum of c[i]^2. c are the codes'
       centroids without length, as sums of steps from table[0] on. Sixteen partial sums as in
       distance. */
    void (*table_fit)(const float *x, int32_t n, const float *table, int32_t n_code, float length,
                      float *along, float *own);
    /* x[i] = x[i] / (1 + exp(-gate[i])) */
    void (*sigmoid_mul)(float *x, const float *gate, int32_t n);
    /* x[i] *= 1 / sqrt(sum of x^2 + eps); the sum is taken in double as rms_norm's. */
    void (*unit)(float *x, int32_t n, float eps);
    /* Sum of x[i] * y[i]: sixteen partial sums as in sum, by fused multiply-adds. */
    float (*product)(const float *x, const float *y, int32_t n);
    /* out[t][c] = s / (1 + exp(-s)), s = the sum of w[c][j] * x[t - n_tap + 1 + j][c], j ascending.
       The first product is plain, the others are fused; rows before the first are past's. */
    void (*conv)(const struct pi_vec_conv *conv);
    /* For each token, with a = decay and b = beta, and sums over rows i ascending, fused, from 0:
         d[j] = b (v[j] - a sum S[i][j] k[i])
         out[j] = scale (kq d[j] + a sum S[i][j] q[i]), the last product rounded, then fused
         S[i][j] = a S[i][j] + k[i] d[j], likewise
       Where kq is k.q this is: S *= a, S += k (b (v - S^T k))^T, out = scale S^T q. */
    void (*delta)(const struct pi_vec_delta *delta);
};

#endif
