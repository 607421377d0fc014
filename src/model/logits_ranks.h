/*
 * logits_ranks.h - rows of logits over ranks (base/ranks.h). By rows each rank has a part of a row,
 * by layers the last one has all of it. The best tokens go to all ranks, which is a kilobyte, and
 * the row stays where it is until all ask for it.
 */
#ifndef PI_LOGITS_RANKS_H
#define PI_LOGITS_RANKS_H

#include "model/pass.h"

/* Whether rows stay so: each rank chooses tokens itself. */
bool pi_logits_stay(const struct pi_pass *pass);
/* The logits of a row that this rank has. */
int32_t pi_logits_own(const struct pi_pass *pass);
/* From rows [n][own], in host memory, the best tokens of whole rows. They are not known where a
   logit is not finite. */
void pi_logits_find_best(const struct pi_pass *pass, const float *rows, int32_t n,
                         struct pi_best *const *out);
/* A whole row, of which own has this rank's part. */
void pi_logits_gather(const struct pi_pass *pass, const float *own, float *out);

#endif
