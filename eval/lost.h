/*
 * lost.h - the loss of attention when entries are gone. It is the reference arithmetic of `replay`,
 * in double, one key after the other, and has nothing of the engine's kernels in it.
 */
#ifndef PI_EVAL_LOST_H
#define PI_EVAL_LOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One KV head. A policy judged keys 0 .. n_read - 1. Query t comes t tokens after them and sees the
 * keys 0 .. n_read + t, of which it itself is the last. All keys from n_read on are there under
 * every policy.
 */
struct lost_job {
    const float *q; /* query (t, g) at q + t * q_stride + g * dim_k, after rotation */
    size_t q_stride;
    const float *k; /* key i at k + i * k_stride, after rotation */
    size_t k_stride;
    const float *v; /* value i at v + i * v_stride */
    size_t v_stride;
    int32_t n_query; /* at least 1 */
    int32_t n_group; /* query heads that share the KV head */
    int32_t n_read;
    int32_t dim_k;
    int32_t dim_v;
    double scale;     /* multiplies q.k */
    const bool *kept; /* [n_read] */
};

/*
 * The figures are over the n_query * n_group queries. w are the softmax weights over all keys that
 * a query sees, and o = sum w v is its output. o' is the output of a softmax over the keys that are
 * left:
 *
 *   lost mass = sum of w over the evicted keys
 *   output error = |o' - o| / |o|; where |o| is 0, 0 if o' is 0 too and else 1
 */
struct lost {
    double mass; /* mean lost mass */
    double mass_max;
    double mass_best; /* the least mean lost mass of any choice of as many keys */
    double error;     /* mean output error */
    double error_max;
};

/* Doubles of scratch that a job needs. */
size_t lost_scratch_len(const struct lost_job *job);

/* mean [n_read] receives the mean weight of each judged key, kept or not. */
void lost_measure(const struct lost_job *job, double *scratch, double *mean, struct lost *out);

#endif
