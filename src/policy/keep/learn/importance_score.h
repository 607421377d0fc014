/*
 * importance_score.h - the scores of any keep policy as a round would take them after a text, with
 * nothing evicted. Also the affine map from them to the importance of entries, lane by lane.
 */
#ifndef PI_KEEP_IMPORTANCE_SCORE_H
#define PI_KEEP_IMPORTANCE_SCORE_H

#include "policy/keep/stats/stats.h"

/* A policy that is scored by, and sums over what it said. */
struct importance_score;

/* Whether a text can be one of importance_score_create's: its options, without the model.
   INVALID. */
pith_status importance_score_check(const char *text, pith_error *err);

/* text: "NAME" or "NAME:options" without a budget. Where the text does not say otherwise, it has
   stats=stats_path (NULL: none). A policy with the option z gets z=off, so that scores are not
   standardised within a lane. Each lane is scored for itself, whatever granularity is given.
   longest: tokens of a text and what is before it, at most; the budget is above it. The statuses of
   keep_config_parse, keep_config_fit and the policy's open; INVALID for none. */
pith_status importance_score_create(const char *text, const char *stats_path, int32_t longest,
                                    const struct policy_model *model, int32_t n_thread,
                                    struct importance_score **out, pith_error *err);
void importance_score_free(struct importance_score *s);

/* The options as an engine takes them. */
const char *importance_score_text(const struct importance_score *s);
/* Whether entries are all that it looks at: it need not see the pass, and has no state. */
bool importance_score_is_alone(const struct importance_score *s);

/* Scores every lane of a sequence in which nothing was evicted, after n_token tokens. Adds the
   scores of positions [begin, end) that a round could evict. y[lane * y_stride + i] is the target
   of position begin + i. state: the sequence's block, or NULL. */
void importance_score_add(struct importance_score *s, const struct kv_seq *kv,
                          const int32_t *tokens, int32_t n_token, void *state, int32_t begin,
                          int32_t end, const float *y, size_t y_stride);

/* The regression lines; of a lane where scores and targets do not rise together slope 0 and the
   mean of the targets. *out has room for as many lanes as the model, and receives the name.
   NOMEM. */
pith_status importance_score_fit(const struct importance_score *s, struct stats_map *out,
                                 pith_error *err);

#endif
