/*
 * apart.h - how far entries of two lanes are apart, as a device sums it up (pi_device.apart).
 */
#ifndef PI_KV_APART_H
#define PI_KV_APART_H

#include "base/base.h"

struct kv_seq;
struct pi_rope;

/* Entries a + i and b + i, i < n, of lanes of one layer and head in two sequences of a cache. Keys
   are compared as they are stored, whatever deltas they are read at. */
struct kv_apart_job {
    const struct kv_seq *seq_a, *seq_b;
    int32_t layer, head;
    int32_t a, b; /* slots */
    bool turned; /* keys of the first are turned, and rotated dimensions divided by the magnitude */
    double k;    /* receives the sum of squares of the keys' differences, */
    double v;    /* of the values', */
    double size; /* and of both, halved */
};

struct kv_apart_list {
    struct kv_apart_job *jobs; /* [n_job] */
    int32_t n_job;
    int32_t n;                  /* entries of each, at most a page */
    const struct pi_rope *rope; /* where a job is turned, */
    const float *turn;          /* [n_pair][2] by these cosines and sines */
};

#endif
