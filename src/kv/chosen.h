/*
 * chosen.h - work on choices that stay on a device (kv_choose_job.there). Several lists become one
 * choice, and outputs make up for entries that were not read. Only devices with `weigh` do it.
 */
#ifndef PI_KV_CHOSEN_H
#define PI_KV_CHOSEN_H

#include "device/device.h"

struct kv_seq;

/* One list out of n_list, whose entries rank by their scores, of equal ones the lower first. Taken
   are the first entries of all lists in order, then all second ones, and so on, until there are k
   different ones. n_list k stays below 2^24. */
struct kv_unite_job {
    const struct pi_at *score; /* [n_list] f32 [n] each */
    struct pi_at lists;        /* int32 [n_list][k] places in score, each list ascending */
    int32_t n_list, n, k;
    struct pi_at out; /* int32 [k], ascending */
};
struct kv_unite_list {
    const struct kv_unite_job *jobs;
    int32_t n;
};

/* The share of a token's weights that the entries have which it reads of a lane, query head by
   query head. The last `score` made the weights (kv_score_soft.kept). The last entry is the token's
   own. */
struct kv_share_job {
    struct pi_at weight; /* f32 [n_group][n] */
    struct kv_attend_chosen *chosen;
    int32_t n_group, n;
    struct pi_at out; /* f32 [n_group] */
};
struct kv_share_list {
    const struct kv_share_job *jobs;
    int32_t n;
};

/* Output g of a lane becomes a_g out + (1 - a_g) mean, the mean of the lane's first n values. */
struct kv_blend_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    int32_t n, n_group;
    struct pi_at share; /* f32 [n_group] a */
    struct pi_at out;   /* f32 [n_group][dim_v] */
};
struct kv_blend_list {
    const struct kv_blend_job *jobs; /* [n], lanes of one layer */
    int32_t n;
};

#endif
