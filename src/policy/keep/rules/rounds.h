/* rounds.h - the inside of struct keep, for create.c, budget.c (when), round.c and steps.c
   alone. */
#ifndef PI_KEEP_ROUNDS_H
#define PI_KEEP_ROUNDS_H

#include "base/threads.h"
#include "policy/keep/rules/keep.h"
#include "pith/calibrate.h"

/* Lanes that keep the same positions, during a round. Positions ascend. */
struct keep_set {
    bool due;        /* holds more than its budget */
    bool agree;      /* every lane holds exactly pos, slot by slot */
    int32_t n;       /* positions that some lane of the set holds */
    int32_t longest; /* entries of its longest lane: above n where a lane has a position twice */
    int32_t n_kept;
    int32_t job;    /* of the stages' choices, where it is due */
    int32_t *pos;   /* [cap_set] */
    float *score;   /* [cap_set] combined */
    int16_t *n_of;  /* [cap_set] lanes whose scores are in score */
    int32_t *slots; /* [cap_set] chosen: ascending indices into pos, in place of score */
    struct keep_span span;
    int32_t budget;  /* positions that stay */
    struct pi_at at; /* not none: scores are on the device, not in score */
    /* Of keep_find_span, and of allot.c: */
    int32_t first; /* of those that may go */
    int32_t n_may_go;
    double wish; /* positions of those that may go that it should keep */
};

/* One lane at a time of each KV head, during a round. */
struct keep_part {
    int32_t n;
    int32_t n_evictable;
    int32_t *pos;    /* [cap] */
    float *score;    /* [cap] */
    bool *evictable; /* [cap] */
};

/* KV heads of a step, from the first on, whose scores are combined in that one's row. Items are at
   work on different threads, so that they are PI_APART bytes apart. */
struct keep_combined {
    _Atomic int32_t n_head;
    uint8_t room[PI_APART - sizeof(int32_t)];
};

/* Scratch for the choices of a pass's steps, one layer at a time (steps.c). */
struct keep_steps {
    void *block; /* owned; the arrays below */
    int32_t n_item;
    int32_t cap;       /* entries of a lane that there is memory for */
    bool lanes_differ; /* there is memory for lanes that do not agree */
    size_t scratch_size;
    float *score;                   /* [n_item][n_head][cap] of the running layer */
    struct keep_combined *combined; /* [n_item] */
    float *log_scale;               /* [n_item][n_head, PI_APART bytes apart] */
    int32_t *pos;                   /* [n_item][cap] of one lane */
    int32_t *all;     /* [n_item][n_head * cap] positions that some lane has; lanes_differ only */
    float *all_score; /* [n_item][n_head * cap] combined; lanes_differ only */
    int32_t *n_of;    /* [n_item][n_head * cap] lanes whose scores are in it; lanes_differ only */
    uint8_t *scratch; /* [n_thread][scratch_size] of calls to the policy */
    /* Where the lanes' device chooses: */
    struct pi_at there;        /* of its memory: scores as above, then slots as below; owned */
    int32_t *slot;             /* [n_layer][n_item][n_head] on their way to the lanes */
    bool *asked;               /* likewise: whether one was asked for */
    struct kv_victim_job *job; /* [n_item * n_head] of the running layer */
    int32_t n_job;
    bool some; /* something was asked for */
};

struct keep {
    struct keep_config config;
    struct policy_model model;
    struct policy_whole whole; /* lanes of all ranks */
    bool told;                 /* that a prompt is too long to be pinned */
    uint32_t own_needs;        /* of the policy; keep_needs adds what overwriting does */
    int32_t n_thread;
    struct pi_stream *stream; /* of the lanes' device, owned */
    int32_t n_scorer;         /* threads that score: at most one for each KV head */
    void *data;               /* of the policy's open */
    size_t state_size;
    size_t scratch_size;         /* of a thread's calls to the policy, at the size of cap */
    int32_t cap;                 /* entries of a lane that there is memory for */
    int32_t cap_set;             /* positions of a set */
    int64_t cap_all;             /* where all lanes share a budget: entries of all sets together */
    struct pith_stats *stats;    /* of the rule, owned; NULL: none */
    const struct stats_map *map; /* of the policy, where scores of lanes are compared; NULL: none */
    int32_t n_together;     /* stages whose sets there is memory for: a round takes them together. 1
                           but where the device scores, and each stage is a layer */
    struct keep_set *set;   /* [keep_round_sets] sets of the running stages, owned */
    struct keep_part *part; /* [n_head] owned */
    struct kv_cut *cut;     /* [n_layer * n_head] what stays of the stage's lanes, owned */
    bool *agrees; /* [n_layer * n_head] the stage's lanes that hold what the first of their
                     set does; owned */
    void *block;  /* the arrays above, and .. owned */
    struct keep_set
        all;         /* pos, score, n_of and slots of all sets, one behind the other [cap_all] */
    int32_t *merged; /* [cap_set] */
    int32_t *kept;   /* [cap_set] slots of one lane */
    struct kv_choose_job *job;    /* [keep_round_sets] choices of the stages */
    struct kv_choose_lane *lane;  /* [keep_n_set], and of other ranks; and .. */
    struct keep_set *everywhere;  /* with n_elsewhere: sets of all ranks, in order */
    struct kv_weigh_job *weigh;   /* [n_head] where the device scores; and .. */
    struct kv_weigh_set *weighed; /* [keep_round_sets] */
    size_t weigh_size;
    uint8_t *weigh_room; /* [n_head][weigh_size] */
    size_t choose_size;
    uint8_t *choose;  /* [n_thread][choose_size] of those */
    uint8_t *scratch; /* [n_scorer][scratch_size] */
    struct keep_steps steps;
    struct keep_witness witness; /* dropped NULL: none */
};

/* The view with what the policy is to see of the engine. */
static inline struct keep_view keep_view_complete(const struct keep *k,
                                                  const struct keep_view *view)
{
    struct keep_view whole = *view;
    whole.model = &k->model;
    whole.data = k->data;
    return whole;
}

/* Bytes of a state that are the host's, where the device learns. */
static inline size_t keep_head(const struct keep *k)
{
    return k->config.policy->learn_head(&k->config.params, &k->model);
}

/* Where the device has a set's scores from entry i on; none: the host has them. */
static inline struct pi_at keep_scores_at(const struct keep_set *set, int32_t i)
{
    return pi_at_some(set->at) ? pi_at_item(set->at, (size_t)i) : set->at;
}

/* Entries that a round leaves in a lane: overwriting keeps one place free, so that the budget holds
   while the next token is there, too. */
static inline int32_t keep_round_budget(const struct keep *k, int32_t layer, int32_t head,
                                        struct keep_point at)
{
    return keep_lane_budget_at(&k->config, layer, head, at) - k->config.rules.overwrite;
}

/* Layers, and KV heads of each, whose budgets are asked: of lanes that share one the first. */
static inline int32_t keep_asked_layers(const struct keep *k)
{
    return keep_config_is_global(&k->config) ? 1 : k->model.g.n_layer;
}

static inline int32_t keep_asked_heads(const struct keep *k)
{
    return keep_config_allots(&k->config) ? 1 : k->model.g.n_head;
}

/* Entries of a lane that stay when the next one comes. */
static inline int32_t keep_staying(const struct kv_seq *kv, int32_t layer, int32_t head)
{
    return kv_lane_len(kv, layer, head) - (kv_lane_victim(kv, layer, head) >= 0);
}

/* Sets of the lanes that are decided together, and which of them a lane belongs to. */
static inline int32_t keep_n_set(const struct keep *k)
{
    int32_t g = k->config.rules.granularity, n_head = k->model.g.n_head;
    return g == KEEP_ALL || g == KEEP_LAYER ? 1
           : g == KEEP_GLOBAL               ? k->model.g.n_layer * n_head
                                            : n_head;
}

static inline int32_t keep_set_of(const struct keep *k, int32_t layer, int32_t head)
{
    bool global = k->config.rules.granularity == KEEP_GLOBAL;
    return keep_n_set(k) == 1 ? 0 : global ? layer * k->model.g.n_head + head : head;
}

/* Sets that a round has at a time, and which of them a lane belongs to. */
static inline int32_t keep_round_sets(const struct keep *k)
{
    return keep_n_set(k) * k->n_together;
}

static inline int32_t keep_round_set(const struct keep *k, int32_t layer, int32_t head)
{
    int32_t stage = k->n_together > 1 ? layer % k->n_together : 0;
    return stage * keep_n_set(k) + keep_set_of(k, layer, head);
}

/* Whether a set has lanes of this rank's layers that other ranks have, and of other layers. */
static inline bool keep_spans_heads(const struct keep *k)
{
    int32_t g = k->config.rules.granularity;
    return (g == KEEP_ALL || g == KEEP_LAYER) && k->model.g.n_head < k->whole.n_head;
}

static inline bool keep_spans_layers(const struct keep *k)
{
    int32_t g = k->config.rules.granularity;
    return (g == KEEP_ALL || g == KEEP_HEAD) && k->model.g.n_layer < k->whole.n_layer;
}

/* Layers whose lanes are decided together: all of them where a set reaches across layers. */
static inline int32_t keep_stage_layers(const struct keep *k)
{
    int32_t g = k->config.rules.granularity;
    return g == KEEP_ALL || g == KEEP_HEAD || g == KEEP_GLOBAL ? k->model.g.n_layer : 1;
}

/* Entries of a lane that are read elsewhere than they were written: its first ones, or 0. */
int32_t keep_count_shifted(const struct kv_seq *kv, int32_t layer, int32_t head);

/* create.c. Makes the scratch of rounds larger where lanes have up to cap entries, sets cap_set
   positions, and sets that lie one behind the other cap_all. Its contents are lost. False: no
   memory, and it is as it was. */
bool keep_grow_scratch(struct keep *k, int32_t cap, int32_t cap_set, int64_t cap_all);

/* Bytes of the scratch of one sequence's steps over lanes of `longest` entries that agree. */
size_t keep_steps_bytes(const struct keep *k, int32_t longest);

/* allot.c. Finds the entries of a set that may go: the positions within the span, which lie
   together. */
void keep_find_span(struct keep_set *set);

/* Sets the budget of each of the sets whose lanes share one, a lane each, gathered and
   scored. Their sum is total, or all entries that they hold and the protected ones. lanes [n_set]
   is scratch. */
void keep_allot(struct pi_stream *stream, const struct keep_config *config, struct keep_set *set,
                struct kv_choose_lane *lanes, int32_t n_set, int64_t total);
/* Lanes that share a budget with a layer's, and their entries. */
int64_t keep_allot_lanes(const struct keep *k);
int64_t keep_allot_sum(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                       struct keep_point at);
/* Entries per lane of those, rounded up. */
int64_t keep_allot_len(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                       struct keep_point at);
/* Entries that this rank's of those lanes hold. */
int64_t keep_allot_own(const struct keep *k, const struct kv_seq *kv, int32_t layer);

/* elsewhere.c. Lanes of other ranks. */

/* Adds the scores of a layer's lanes, of all ranks' heads in order, to their set: fold is called
   with each lane's [set->n]. */
void keep_fold_heads(const struct keep *k, struct keep_set *set,
                     void (*fold)(const struct keep *k, struct keep_set *set, const float *score));
/* The sets that are due have what layers before this rank's scored; and then what all did. */
void keep_receive_sets(const struct keep *k);
void keep_hand_on_sets(const struct keep *k);
/* As keep_allot, of all ranks' lanes, whose total it is. The sequence has n_token tokens; *tally
   gets what others hold then. */
void keep_allot_everywhere(const struct keep *k, int64_t total, int32_t n_token,
                           struct keep_tally *tally);

#endif
