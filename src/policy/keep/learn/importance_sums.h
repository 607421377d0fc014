/*
 * importance_sums.h - learns to predict the importance of entries from the rows of a pass that
 * writes them. Features are of a model's keys, and of its layers' inputs. Texts are read twice:
 * once to measure the features, once to add them, clipped and standardised, to the sums of a ridge.
 */
#ifndef PI_KEEP_IMPORTANCE_SUMS_H
#define PI_KEEP_IMPORTANCE_SUMS_H

#include "model/forward.h"
#include "policy/keep/stats/stats.h"

#define IMPORTANCE_CLIP 5.0         /* deviations from its mean that a feature is clipped to */
#define IMPORTANCE_KEY_ALPHA 10.0   /* of the ridge on a key's features */
#define IMPORTANCE_HIDDEN_ALPHA 1e3 /* of the ridge on a layer's input */
#define IMPORTANCE_KEY_EXTRA 2      /* features beside the key: |k|, |v| */

/* The features of a key of a lane's layer: the key [dim_k] as it was before rotation to pos, |k|,
   |v|. out [dim_k + IMPORTANCE_KEY_EXTRA]; cs [2 * n_pair] is scratch. */
void importance_key_features(const struct pith_model *model, int32_t layer, int32_t pos,
                             const float *k, const float *v, float *cs, float *out);

struct importance_sums;

/* hidden: of the layers' inputs, too. Passes have at most max_tok tokens. NOMEM. */
pith_status importance_sums_create(const struct pith_model *model, bool hidden, int32_t max_tok,
                                   int32_t n_thread, struct importance_sums **out, pith_error *err);
void importance_sums_free(struct importance_sums *s);

/* From the tap, of the tokens at positions [begin, end). First reading. */
void importance_sums_measure(struct importance_sums *s, const struct pi_pass_tap_rows *rows,
                             int32_t begin, int32_t end);
/* Between the readings: what features are clipped to. */
void importance_sums_bound(struct importance_sums *s);
/* Second reading: the target of position begin + i in a lane is y[lane * y_stride + i]. held: the
   text is one that R^2 is taken from. */
void importance_sums_add(struct importance_sums *s, const struct pi_pass_tap_rows *rows,
                         int32_t begin, int32_t end, const float *y, size_t y_stride, bool held);

/* Weights from all texts, R^2 on the held ones of weights from the others (0 where one of the two
   is missing), and the bounds. *out has the counts of the model. NOMEM. */
pith_status importance_sums_fit(struct importance_sums *s, struct stats_importance *out,
                                pith_error *err);

#endif
