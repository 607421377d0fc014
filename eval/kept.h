/* kept.h - the task that shows which positions a policy keeps, by layer and KV head, over time. */
#ifndef PI_EVAL_KEPT_H
#define PI_EVAL_KEPT_H

#include "eval.h"

struct eval_kept_params {
    const char *text; /* [text_len] */
    size_t text_len;
    int32_t n_token; /* read of the text, or all where it has fewer */
    int32_t every;   /* tokens between two records; 1: the text is read as if it were generated */
};

/* Reads a text `every` tokens at a time, of which the last may be one more, and looks at all lanes
   after each. Rows: tokens (read so far), layer, head, entries, kept (positions, "0-3,128-255");
   the summary has no score. INVALID, and as pith_seq_eval. */
pith_status eval_kept(const struct eval_setup *setup, const struct eval_kept_params *params,
                      json_t **result, pith_error *err);

/* Adds positions, ascending, as ranges: "0-3,7". n may be 0. */
void eval_kept_ranges(struct eval_text *t, const int32_t *positions, int32_t n);

#endif
