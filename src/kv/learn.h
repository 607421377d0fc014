/*
 * learn.h - the rows of a pass that a device remembers for policies, which say where. Their rounds
 * score by them (kv/weigh.h).
 */
#ifndef PI_KV_LEARN_H
#define PI_KV_LEARN_H

#include "device/device.h"

enum kv_learn_kind {
    KV_LEARN_RING, /* row t goes to place (pos + t) mod n_ring of `to`, f32 [n_ring][n]; of rows for
                      one place the last stays */
    KV_LEARN_MOMENTS, /* sums over tokens of each of n_head parts x of a row, part after part. They
                         begin with f, the x of the first token that counts, and the sum of x - f.
                         With `square` sums of (x_i - f_i) (x_j - f_j) follow, j >= i */
    KV_LEARN_PAIRS, /* adds to sums over tokens, f64 [n_head][3 n_pair + n_flat]. A part has n_pair
                       pairs: their first numbers, then their second ones, then their lengths.
                       Then come n_flat other numbers */
};

/* Rows of one item in one layer, in the order of tokens. */
struct kv_learn_job {
    enum kv_learn_kind kind;
    struct pi_at from; /* f32 [n_tok][n] */
    struct pi_at to;
    int32_t n_tok;
    int32_t n;           /* floats of a row */
    int32_t pos, n_ring; /* of RING */
    int32_t n_head;      /* of MOMENTS and PAIRS */
    bool square;
    bool begins;   /* of MOMENTS: no token has counted before */
    bool adjacent; /* of PAIRS: pair f is numbers 2 f and 2 f + 1, else f and n_pair + f */
    int32_t n_pair, n_flat;
};

struct kv_learn_list {
    const struct kv_learn_job *jobs;
    int32_t n;
};

/* The first mark of new entries, which says how important they are, from the rows of their tokens.
   Features are clipped to [low, high] first, but for NETWORK. */
enum kv_predict_kind {
    KV_PREDICT_KEY,     /* weights of the key, |k| and |v|, and a number of its own */
    KV_PREDICT_HIDDEN,  /* weights of h, and a number of its own */
    KV_PREDICT_NETWORK, /* weights of gelu of neurons, and a number of its own. A neuron is weights
                           of h, and a number of its own */
};

/* A lane whose entries were just appended. Jobs of an item follow each other. */
struct kv_predict_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    enum kv_predict_kind kind;
    int32_t n_tok;
    int32_t slot;         /* of the first token's entry; the others are the lane's last */
    struct pi_at k, v, h; /* rows of the first token, f32; k before rope */
    size_t k_stride, v_stride;
    int32_t n, dim_v; /* features of k or h, and of v */
    int32_t n_neuron;
    struct pi_at weight;    /* f32: [n + 3] of KEY, [n + 1] of HIDDEN, [n_neuron + 1] of NETWORK */
    struct pi_at low, high; /* f32: [n + 2], [n] */
    struct pi_at neuron;    /* f32 [n_neuron][n + 1] */
};

struct kv_predict_list {
    const struct kv_predict_job *jobs;
    int32_t n;
};

#endif
