/*
 * running.h - the inside of struct read, for run.c (its memory, what engines ask) and select.c (a
 * pass) alone.
 */
#ifndef PI_READ_RUNNING_H
#define PI_READ_RUNNING_H

#include "policy/read/reading.h"

/* The entries that a chunk reads in the lanes of one KV head, in the running layer and over the
   pass. */
struct unit {
    int32_t n;      /* entries of earlier tokens in the running layer */
    int32_t n_kept; /* what the last source chose for the layers behind it; -1: nothing, they read
                       everything */
    struct read_tally tally; /* of the running pass */
};

/* One thread's working memory. */
struct work {
    int32_t *pos;         /* [longest] */
    struct ranked *order; /* [most] */
    int32_t *set;         /* [read_union_size(most)] */
    const int32_t **best; /* [n_head * n_group] */
    int32_t *n_best;      /* [n_head * n_group] */
    void *policy;
};

struct ranked {
    float score;
    int32_t slot;
};

/* The use of a lane's scores. */
enum use {
    USE_NONE, /* it has none, or is done with */
    USE_OWN,  /* it reads what it chooses */
    USE_KEEP, /* layers behind it do */
};

/* A lane of a chunk on its way to slots. */
struct lane {
    struct read *read;
    const struct pi_pass_chunk *of;
    struct unit *unit;
    struct work *work; /* of the thread that has it */
    struct read_view view;
    struct read_chunk c;
    enum use use;
    int32_t n_read;                 /* entries of earlier tokens */
    int32_t *slots;                 /* [cap] of the pass */
    struct kv_attend_chosen chosen; /* at none: the choice comes to slots */
    int32_t n_slot;                 /* -1: everything */
    float *score;                   /* [n_row][n] */
};

struct read {
    struct read_config config;
    struct policy_model model;
    void *data; /* owned by the policy */
    int32_t n_thread;
    struct pi_stream *stream[KV_PART_MOST]; /* [n_stream] of the lanes' devices, owned */
    struct pi_at slots_at[KV_PART_MOST];    /* [cap_chunk][n_head][most] of each, where choices stay
                                            that the host need not know; none: they all come */
    int32_t n_stream;
    int32_t n_row;    /* rows of a lane's scores: of the policy, or what the device gives */
    int32_t n_vector; /* of a lane; 0: the policy scores by itself */

    /* Of the running pass; parts of one block. */
    int32_t cap_chunk;
    int64_t longest;                     /* entries of a lane */
    int32_t most;                        /* slots that are chosen of them */
    const struct pi_pass_item **item_of; /* [cap_chunk] NULL: nothing to be counted */
    struct unit *unit;                   /* [cap_chunk][n_head] */
    float *beside;                       /* [cap_chunk][n_head][chunk][n_group] */
    int32_t *kept;     /* [cap_chunk][n_head][most] positions that a source chose, ascending; NULL
                          without roles. Where heads unite, the first has the entries of all */
    int32_t *best;     /* [cap_chunk][n_head][n_group][most] where heads unite: each query head's
                          positions in the order of their scores; else NULL */
    struct work *work; /* [n_thread] */

    int32_t n_lane;    /* that are there at once */
    struct lane *lane; /* [n_lane] */
    float *score;      /* [n_lane][n_row][longest], or [n_thread] where the policy scores */
    float *vector;     /* [n_lane][n_vector][dim_k] */
    struct kv_score_job *score_job;   /* [n_lane][n_row] */
    struct kv_choose_job *choose_job; /* [n_lane][n_row] */
    size_t score_size, choose_size;
    uint8_t *score_scratch, *choose_scratch; /* [n_thread] */
    uint8_t *block;                          /* owned */
};

/* The stream of a layer's device (run.c); -1: there is none yet. */
int32_t read_stream_number(const struct read *read, int32_t layer);
static inline struct pi_stream *read_stream_of(const struct read *read, int32_t layer)
{
    return read->stream[read_stream_number(read, layer)];
}

/* By how many sets of vectors the device scores a lane for chunks of n_tok tokens. */

static inline int32_t read_sets_of(const struct read *read, int32_t n_tok)
{
    const struct read_policy *p = read->config.policy;
    return p->n_set != NULL ? p->n_set(&read->config.params, &read->model, n_tok) : 0;
}

#endif
