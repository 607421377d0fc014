/*
 * rows.h - the stored entries of a lane as policies and callers look at them.
 */
#ifndef PI_POLICY_ROWS_H
#define PI_POLICY_ROWS_H

#include "policy/policy.h"

/* The keys of run i of a lane (kv_lane_run_keys) as attention sees them. Keys of a page that is
   read at other positions than it was written at are rotated there. key [dim_k][page_len]; columns
   beyond the run are finite. */
void policy_run_keys(const struct policy_model *model, const struct kv_seq *kv, int32_t layer,
                     int32_t head, int32_t i, float *key);

/* Floats of policy_rows' page. */
size_t policy_rows_page(const struct kv_geometry *g);

/* Entries from .. from + n - 1 of a lane: k [n][dim_k] as above and v [n][dim_v]; either may be
   NULL. */
void policy_rows(const struct policy_model *model, const struct kv_seq *kv, int32_t layer,
                 int32_t head, int32_t from, int32_t n, float *page, float *k, float *v);

#endif
