/*
 * score.h - scoring keys: the largest product of each key with a few vectors. Keys lie one after
 * the other, as in pages. Each key is read once for all vectors, and only one number per key is
 * written to memory. kv/score.c walks a lane with these kernels.
 *
 * The arithmetic is fixed, so that all levels give the same bits. fma is the fused multiply-add,
 * other operators round to f32, and a stored value is exact in f32 (attend.h). For n_q vectors q[j]
 * and a key k of dim dimensions:
 *
 *   many vectors, n_q > PI_SCORE_FEW, the lanes of a register being vectors:
 *     x[j] = (acc = fma(k[d], q[j][d], acc), d ascending, from 0)
 *   few vectors, the lanes being dimensions:
 *     sum16[i] = (acc = fma(k[d], q[j][d], acc), d = i, i + 16, ... ascending, from 0)
 *     x[j] = tree over sum16: i with i + 8, then i + 4, i + 2, i + 1
 *   columns, the lanes being keys:
 *     x[j] = (acc = fma(k[d], q[j][d], acc), d ascending over those that are listed, from 0)
 *   codes of 8 bits:
 *     x[j] = float(sum of kc[d] * qc[j][d], exact) * qscale[j]
 *   then
 *     out = max over j of clamp(x[j]), clamp limiting to [-FLT_MAX, FLT_MAX] and turning NaN into
 *           -FLT_MAX; codes need none
 */
#ifndef PI_SCORE_H
#define PI_SCORE_H

#include "cpu/attend.h"

enum {
    PI_SCORE_FEW = 4,    /* vectors up to which each is multiplied along the key */
    PI_SCORE_BLOCK = 16, /* vectors of a block of many */
    PI_SCORE_PAD = 64,   /* codes that a row of few is padded to a multiple of */
};

/* Keys of a type, n >= 1 of them next to each other. */
struct pi_score_keys {
    const void *k;         /* [n][dim] values or codes; unit codes + 128, as uint8_t */
    const void *high;      /* [n][dim / 8] of CODE3 */
    const uint16_t *scale; /* [n][dim / 32] of q8_0, [n][dim / group] of codes of fewer bits */
    const float *table;    /* [PI_ATTEND_CODES] of these */
    int32_t group;
    int32_t n;
    int32_t dim;    /* of unit codes a multiple of 4 */
    ptrdiff_t next; /* bytes from these keys to some that are read later, which kernels ask the
                       memory for; 0: to none */
};

/* Vectors as pi_score_pack leaves them. */
struct pi_score_vectors {
    int32_t n;      /* 1 or more */
    const float *q; /* few: [n][dim up to a multiple of 16], 0 beyond dim
                       many: [blocks of 16 vectors][dim][16], the last vector filling up */
};

/* Vectors as pi_score_pack_codes leaves them: q[d] is about code * scale. */
struct pi_score_codes {
    int32_t n;
    const int8_t *code;    /* few: [n][dim up to a multiple of PI_SCORE_PAD], 0 beyond dim
                              many: [blocks of 16 vectors][dim / 4][16][4], the last filling up */
    const float *scale;    /* [n up to a multiple of 16] */
    const int32_t *offset; /* [likewise] 128 times the sum of a vector's codes */
};

/* Keys side by side. */
struct pi_score_columns {
    const void *k;  /* [dim][stride] f32 or f16 */
    int32_t stride; /* a multiple of 16; values beyond n are finite */
    int32_t n;
    const int32_t *dims; /* [n_dim] ascending, below dim */
    int32_t n_dim;
    int32_t n_q;
    const float *q; /* [n_q][n_dim] */
    ptrdiff_t next; /* as of struct pi_score_keys */
};

/* out [n up to a multiple of 16], of which the first n count. unit8 may also read keys up to a
   multiple of 16, and 16 bytes after them, which pages have. Their contents do not matter. */
struct pi_score_kernels {
    void (*dot[PI_ATTEND_N_TYPE])(const struct pi_score_keys *keys,
                                  const struct pi_score_vectors *q, float *out);
    void (*unit8)(const struct pi_score_keys *keys, const struct pi_score_codes *q, float *out);
    /* F32 and F16 alone. */
    void (*columns[PI_ATTEND_F16 + 1])(const struct pi_score_columns *c, float *out);
    /* The i < n with x[i] >= least, ascending, into at, which has room for 16 more than there are;
       returns how many. */
    int32_t (*at_least)(const float *x, int32_t n, float least, int32_t *at);
};

/* Floats of packed vectors; bytes of packed codes. */
size_t pi_score_pack_len(int32_t n_q, int32_t dim);
size_t pi_score_pack_codes_len(int32_t n_q, int32_t dim);
/* q [n_q][dim], finite, in the form that the kernels read. */
void pi_score_pack(const float *q, int32_t n_q, int32_t dim, float *out);
/* Codes are q * 127 / max|q| in double, rounded, halves away from zero, and 0 for a vector of
   zeros; the scale is max|q| / 127. Dimensions from dim to dim4, its next multiple of 4, are 0. */
void pi_score_pack_codes(const float *q, int32_t n_q, int32_t dim, int8_t *code, float *scale,
                         int32_t *offset);
/* The code of x for codes of scale 1 / inverse: x * inverse, |x| * inverse < 127.5, rounded as
 * that.
 */
static inline int32_t pi_score_code(float x, double inverse)
{
    double y = (double)x * inverse;
    return (int32_t)(y + (y < 0 ? -0.5 : 0.5));
}

#endif
