/*
 * asked.h - weights that a pass's queries give to entries of a lane beside their own. One softmax
 * goes over both lanes. Only devices with `weigh` do it, on lanes of theirs.
 */
#ifndef PI_KV_ASKED_H
#define PI_KV_ASKED_H

#include "kv/score.h"

/* All stored entries are seen by every query. Their keys may lack a constant. */
struct kv_asked_job {
    const struct kv_seq
        *own; /* whose lane the queries read; its last n_tok entries are the queries'
                                 own tokens, slot by slot in order. NULL: there is none */
    int32_t layer;
    int32_t head;
    const struct kv_seq *stored; /* of one layer and head */
    const struct kv_seq *guests; /* entries of `stored` that the queries read, too; NULL: none */
    struct kv_score_pick pick;   /* KV_PICK_ALL of all tokens */
    const struct pi_rope *rope;  /* as in kv_score_job */
    const float *centre;         /* [dim_k] taken off stored keys; NULL: nothing */
    bool sums;    /* an entry gets the sum of the queries' weights, else the largest */
    float *out;   /* [stored] */
    float missed; /* receives the largest share of a query's weight that stored
                                      entries would get which are no guests */
};

/* Jobs of one layer. */
struct kv_asked_list {
    struct kv_asked_job *jobs; /* [n] */
    int32_t n;
    bool misses; /* `missed` is wanted, and `out` stays as it is; else the other way round */
};

#endif
