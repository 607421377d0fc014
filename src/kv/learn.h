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
};

/* Rows of one item in one layer, in the order of tokens. */
struct kv_learn_job {
    enum kv_learn_kind kind;
    struct pi_at from; /* f32 [n_tok][n] */
    struct pi_at to;
    int32_t n_tok;
    int32_t n; /* floats of a row */
    int32_t pos, n_ring;
};

struct kv_learn_list {
    const struct kv_learn_job *jobs;
    int32_t n;
};

#endif
