/*
 * running.h - the inside of struct read, for run.c (its memory, what engines ask) and select.c (a
 * pass) alone.
 */
#ifndef PI_READ_RUNNING_H
#define PI_READ_RUNNING_H

#include "kv/chosen.h"
#include "policy/read/reading.h"

/* The entries that a chunk reads in the lanes of one KV head, in the running layer and over the
   pass. */
struct unit {
    int32_t n;      /* entries of earlier tokens in the running layer */
    int32_t n_kept; /* what the last source chose for the layers behind it; -1: nothing, they read
                       everything */
    struct pi_at
        kept_at; /* where it is on the device of stream `kept_on`: slots, counted behind the
                             sinks, of lanes of kept_n entries whose slots are positions. None: the
                             host has it */
    int32_t kept_on, kept_n;
    bool picked;             /* the device makes the vectors of the chunk in the running layer */
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
    bool picked;                    /* unit->picked */
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
    struct pi_at best_at[KV_PART_MOST];  /* [cap_chunk][n_head][n_group][most] where heads unite */
    struct pi_at share_at[KV_PART_MOST]; /* [cap_chunk][n_head][n_group] of blends */
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
    struct kv_score_job *packed_job;  /* [n_lane][n_row] of a call */
    struct kv_choose_job *choose_job; /* [n_lane][n_row] */
    struct pi_at *list_at;            /* [n_lane][n_row] scores of heads that unite */
    struct kv_unite_job *unite_job;   /* [n_lane] */
    struct kv_share_job *share_job;   /* [n_lane] */
    struct kv_blend_job *blend_job;   /* [cap_chunk][n_head] of blends */
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

/* By how many sets of vectors the device scores a lane for chunks of n_tok tokens. picked: it makes
   the vectors. */
static inline int32_t read_sets_of(const struct read *read, int32_t n_tok, bool picked)
{
    const struct read_policy *p = read->config.policy;
    if (picked)
        return p->unites ? read->model.n_group : 1;
    return p->n_set != NULL ? p->n_set(&read->config.params, &read->model, n_tok) : 0;
}

/* ---- select.c ---- */

struct unit *read_unit_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head);
/* [most] the host's list of a KV head, for the layers behind. */
int32_t *read_kept_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head);
enum read_role read_role_of(const struct read *read, int32_t layer);
/* Slots of the lane up to the chunk's last token; *n receives the slots of earlier tokens. False
   where the chunk's own are not the others: its first token took the place of an older entry
   (kv_seq_set_victim). */
bool read_count_earlier(const struct pi_pass_chunk *c, int32_t head, int32_t *n);
/* Whether position i is in slot i, for the first n: nothing was evicted, overwritten or shared. */
bool read_lane_whole(const struct pi_pass_chunk *c, int32_t head, int32_t n);

/* ---- left.c: choices that stay on the device ---- */

/* Whether the device makes a chunk's vectors in its layer. */
bool read_picks(const struct read *read, const struct pi_pass_chunk *c);
/* The jobs of lanes whose scores stay there, which choose_job has, in the order of packed_job:
   where scores are, and where choices go. */
void read_point_choices(struct read *read, int32_t n_lane);
/* The steps behind the choice on the device. A choice that the host must know comes. */
void read_use_left(struct read *read, struct pi_stream *stream, int32_t n_lane);
/* Before the layer's lanes: choices of a source come to the host for lanes that cannot follow
   there. */
void read_bring(struct read *read, const struct pi_pass_chunk *chunks, int32_t n);
/* Whether the lane reads what the last source chose on the device: then it is set. */
bool read_follow_there(struct lane *l);
/* pi_pass_reader.blended. */
bool read_blended(void *user, const struct pi_pass_chunk *chunks, int32_t n);

#endif
