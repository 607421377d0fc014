/*
 * snapkv.h - the score that SnapKV, PyramidKV and Ada-KV share: what the last queries look at,
 * pooled over neighbours. LongFlow cuts long prompts by a form of it, too.
 */
#ifndef PI_KEEP_SNAPKV_H
#define PI_KEEP_SNAPKV_H

#include "policy/keep/rules/policy.h"
#include "policy/pool.h"

enum snapkv_group { SNAPKV_MEAN, SNAPKV_MAX, SNAPKV_SUM };
enum snapkv_softmax { SNAPKV_ALL, SNAPKV_BEFORE };

struct snapkv_form {
    int32_t n_query; /* the last queries, and the last positions that they do not score */
    int32_t pool;    /* enum policy_pool_kind */
    int32_t kernel;
    int32_t group;   /* enum snapkv_group: of the query heads of a KV head, before pooling */
    int32_t softmax; /* enum snapkv_softmax: over all entries, or those before the last positions */
};

/* Scratch of snapkv_score over n entries. */
size_t snapkv_score_scratch(const struct snapkv_form *form, const struct policy_model *model,
                            int32_t n);

/* Scores of a lane's entries, out [lane->n], by the queries at the beginning of the view's state.
   Entries at the last n_query positions get more than all others, so that they go last. scratch is
   aligned to 64 bytes. All equal where no query is remembered. */
void snapkv_score(const struct snapkv_form *form, const struct keep_view *view,
                  const struct keep_lane *lane, void *scratch, float *out);

/* The same by the lanes' device. */
void snapkv_votes(const struct snapkv_form *form, const struct keep_view *view,
                  struct kv_weigh_job *job);

/* Members of a policy whose params begin with a struct snapkv_form. */
uint32_t snapkv_needs(const void *params);
size_t snapkv_state_size(const void *params, const struct policy_model *model, const void *data);
size_t snapkv_scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n);
void snapkv_observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows);
void snapkv_learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job);
size_t snapkv_learn_head(const void *params, const struct policy_model *model);
bool snapkv_silent(const void *params, const struct keep_view *view, int32_t layer);
void snapkv_score_lane(const void *params, const struct keep_view *view,
                       const struct keep_lane *lane, float *out);
void snapkv_weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room);

extern const char *const snapkv_pool_words[];
extern const char *const snapkv_group_words[];
extern const char *const snapkv_softmax_words[];

/* Rows of their parameter tables. */
/* clang-format off */
#define SNAPKV_PARAMS                                                                              \
    {"queries", POLICY_TYPE_COUNT, offsetof(struct snapkv_form, n_query), 1, 4096, "32",           \
     "the last queries that score; entries at their positions go last, whatever window says",      \
     NULL},                                                                                        \
    {"pool", POLICY_TYPE_CHOICE, offsetof(struct snapkv_form, pool), 0, 0, "avg",                  \
     "avg: the mean of the neighbours, with zeros beyond the ends (the authors' avg_pool1d). "     \
     "max: the largest, without them", snapkv_pool_words},                                         \
    {"kernel", POLICY_TYPE_COUNT, offsetof(struct snapkv_form, kernel), 1, 4095, "5",              \
     "neighbours that are pooled; 1: none", NULL},                                                 \
    {"group", POLICY_TYPE_CHOICE, offsetof(struct snapkv_form, group), 0, 0, "mean",               \
     "the query heads of a KV head, before pooling: mean, max or sum", snapkv_group_words},        \
    {"softmax", POLICY_TYPE_CHOICE, offsetof(struct snapkv_form, softmax), 0, 0, "all",            \
     "all: attention over all entries. before: over entries before the last queries alone",        \
     snapkv_softmax_words}
/* clang-format on */

#endif
