/* rounds.h - the inside of struct keep, for budget.c (when, and the memory) and round.c alone. */
#ifndef PI_KEEP_ROUNDS_H
#define PI_KEEP_ROUNDS_H

#include "keep/keep.h"

/* Lanes that keep the same positions, during a round. Positions ascend. */
struct keep_set {
    bool due;        /* holds more than its budget */
    bool agree;      /* every lane holds exactly pos, slot by slot */
    int32_t n;       /* positions that some lane of the set holds */
    int32_t longest; /* entries of its longest lane: above n where a lane has a position twice */
    int32_t n_kept;
    int32_t *pos;   /* [cap_set] */
    float *score;   /* [cap_set] combined */
    int32_t *n_of;  /* [cap_set] lanes whose scores are in score */
    int32_t *slots; /* [cap_set] chosen: ascending indices into pos */
    struct keep_span span;
};

/* One lane at a time of each KV head, during a round. */
struct keep_part {
    int32_t n;
    int32_t n_evictable;
    int32_t *pos;    /* [cap] */
    float *score;    /* [cap] */
    bool *evictable; /* [cap] */
};

struct keep {
    struct keep_config config;
    struct keep_model model;
    int32_t n_thread;
    int32_t n_scorer; /* threads that score: at most one for each KV head */
    void *data;       /* of the policy's open */
    size_t state_size;
    size_t scratch_size;    /* of a thread's calls to the policy, at the size of cap */
    int32_t cap;            /* entries of a lane that there is memory for */
    int32_t cap_set;        /* positions of a set */
    struct keep_set *set;   /* [n_head] those of the running stage, owned */
    struct keep_part *part; /* [n_head] owned */
    struct kv_cut *cut;     /* [n_layer * n_head] what stays of the stage's lanes, owned */
    void *block;            /* the arrays above, and .. owned */
    uint32_t *rank;         /* [cap_set] */
    int32_t *merged;        /* [cap_set] */
    uint8_t *scratch;       /* [n_scorer][scratch_size] */
};

/* Sets of the lanes of one layer, and which of them a head's lane belongs to. */
static inline int32_t keep_n_set(const struct keep *k)
{
    int32_t g = k->config.rules.granularity;
    return g == KEEP_ALL || g == KEEP_LAYER ? 1 : k->model.g.n_head;
}

static inline int32_t keep_set_of(const struct keep *k, int32_t head)
{
    return keep_n_set(k) == 1 ? 0 : head;
}

/* Layers whose lanes are decided together: all of them where a set reaches across layers. */
static inline int32_t keep_stage_layers(const struct keep *k)
{
    int32_t g = k->config.rules.granularity;
    return g == KEEP_ALL || g == KEEP_HEAD ? k->model.g.n_layer : 1;
}

/* Entries of a lane that are read elsewhere than they were written: its first ones, or 0. */
int32_t keep_count_shifted(const struct kv_seq *kv, int32_t layer, int32_t head);

#endif
